"""Tries the fast tests on broken copies of the core and of its recovery: each mutation below must make a test fail.

    python tests/mutations.py [--list] [--only NAME,..] [--json FILE]

A mutation is one exact piece of code, in whichever one file of the packages holds it. The tree is copied once; a
mutation is written into the copy, its tests run there, the file is put back. An entry may have several pairs of code
and replacement, for commits that spell it in other words: the first that is there counts; ``\\n`` in it is a line
break. Exit status: 0 where all were killed, 1 where one survived or could not be judged, 2 where nothing was tried: a
text is not in exactly one place, a test file is missing, or the tests fail without any mutation.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Status = Literal["killed", "SURVIVED", "error"]
ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("relief_ray", "actors")
NOT_COPIED = (".git", ".venv", "venv", "runs", "mlruns", "mlartifacts", "datasets", "build", "dist", ".*_cache")
LIMIT_S = 600.0
# Hypothesis' own profile: the same examples every time, and no deadline, which a busy machine misses without mutations.
# The marks: what `.ci/run` runs, in either of its two steps.
STEADY = ("--hypothesis-profile=ci", "-m", "not slow and not gpu")

# name | test files (``a.py/b.py``: the first that there is) | what it breaks; then the code and its replacement.
TABLE = r"""
eq3-cohort | test_relief.py | Eq. (3): a block's mean is over everybody, not over the cohort that trained it
- not config.cohort and tools.round > 0
+ tools.round > 0

eq4-modalities | test_relief.py | Eq. (4): B is averaged without the weights |M_n|
- weight * len(client.modalities)
+ weight

total-participants | test_aggregation.py | the total over all participants counts them instead of adding their weights
- float(reduction.weight(group, fleet[t.client], t))
+ 1.0

eq5-mean | test_divergence.py/test_relief.py | Eq. (5): the mean of squares without the square of the mean
- part.sq_norm / count - float(mean.dot(mean))
+ part.sq_norm / count

eq6-gamma | test_divergence.py/test_relief.py | Eq. (6): gamma weighs the past instead of the new divergence
- gamma * value + (1.0 - gamma) * d_bar[j]
+ (1.0 - gamma) * value + gamma * d_bar[j]

eq7-bisection | test_budget.py/test_relief.py | Eq. (7): T* is enough for one client, not for all
- all((target_s - n.overhead_s)
+ any((target_s - n.overhead_s)

eq7-slots | test_budget.py/test_relief.py | Eq. (7): the overhead T_o is not taken off T*
- (target_s - load.overhead_s) / load.tau_s + SLACK
+ target_s / load.tau_s + SLACK

eq7-overhead | test_relief.py/test_budget.py | T_o is the fastest link of the fleet, not the slowest
- max(link_s(context, client)
+ min(link_s(context, client)

eq7-tau | test_relief.py/test_budget.py | with fill: count, links count in the time per group too
- else times(accessible).compute_s
+ else times(accessible).busy_s

eq7-fill | test_relief.py/test_budget.py | with fill: count, a group must fit into T* as well
- limit_s = target if config.fill == "time"
+ limit_s = target if config.fill

slots-slowest | test_budget.py/test_relief.py | slots of the slowest are not limited by what it reaches
- min(slots_slowest, len(load.accessible))
+ slots_slowest

cover | test_budget.py/test_relief.py | a group is covered by the device that needs longest for it
- max(min(s for load, s in everything
+ max(max(s for load, s in everything

untrained | test_untrained.py | a group that was trained keeps its count of missed rounds
- dict.fromkeys(trained, 0)
+ {}

eq7-allocation | test_budget.py/test_relief.py | the allocation gives one group more than there are slots
- len(chosen) >= budget
+ len(chosen) > budget

eq8-selection | test_budget.py/test_relief.py | free slots go to the least divergent groups
- -d_bar.get(j, 0.0)
+ d_bar.get(j, 0.0)

eq8-bytes | test_relief.py | Eq. (8): groups that were not trained go up as well
- up=chosen, epochs=context.epochs, phase=phase
+ up=context.layout.select(), epochs=context.epochs, phase=phase

reduction-order | test_aggregation.py | blocks are cut in the order in which tasks come
- sorted(tasks, key=lambda t: t.client), min(
+ list(tasks), min(

reduction-weights | test_aggregation.py | sums of weighted updates are added up without the weights
- exact * part.weight
+ exact

reduction-bucket | test_aggregation.py | all updates go into the one global sum, whatever their bucket
- reduction.bucket(task): parts
+ "global": parts

apply-step-sign | test_aggregation.py | the model moves against its clients' mean step
- add_exactly(value, step[j], torch.empty_like(value))
+ add_exactly(value, -step[j], torch.empty_like(value))

fedprox-half | test_fedprox.py | the proximal term is mu |w - w_0|^2 without the half
- (mu / 2.0) * drift.dot(drift)
+ mu * drift.dot(drift)

fedsa-lora-b | test_fedsa_lora.py | FedSA-LoRA: the B factors travel and are averaged like A
- A_ONLY if "lora_a" in kinds
+ WHOLE if "lora_a" in kinds

fedel-window | test_elastic.py/test_fedel.py | FedEL: the window stays at the output and never starts again
- last[1] < num
+ last[1] <= num

fedel-probe | test_fedel.py | FedEL: the probe's step is the gradient's sign, as a fresh Adam's
- -self.config.lr * trial.lr_scale.get(j, 1.0) * g for
+ -self.config.lr * trial.lr_scale.get(j, 1.0) * g.sign() for

fedel-chain-order | test_fedel.py | FedEL: chains are priced from the input to the output
- key=lambda g: -(block(layout, g) + (g.role == "fusion_b") / 2)
+ key=lambda g: block(layout, g) + (g.role == "fusion_b") / 2

fedel-first-block | test_fedel.py | FedEL: the next window begins at the last block that trained, not at the first
- first = min((block(layout, layout[j])
+ first = max((block(layout, layout[j])

fedel-negative | test_fedel.py | FedEL: a step that raises the loss counts like one that lowers it
- config.beta * local[j] + (1.0 - config.beta) * known[j] if known else local[j]
+ config.beta * abs(local[j]) + (1.0 - config.beta) * known[j] if known else abs(local[j])

fedicu-consensus | test_consensus.py/test_fedicu.py | FedICU: the consensus direction is not made a unit vector
- length_C * direction_RC / size_C.clamp_min(EPS)
+ length_C * direction_RC

harmony-clusters | test_clusters.py/test_harmony.py | Harmony: k-means starts from coinciding centres
- points_ND[int(nearest_N.argmax())]
+ points_ND[int(nearest_N.argmin())]

helora-padding | test_helora.py | HeLoRA: linear padding copies the last rank instead of the mean rank
- values.mean(axis, keepdim=True) if padding == "linear"
+ values.mean(axis, keepdim=True) if padding == "adjacent"

fedlease-silhouette | test_clustering.py/test_fedlease.py | FedLEASE: the worst clustering has the best silhouette
- (b - a) / max(a, b) if max(a, b) > 0.0
+ (a - b) / max(a, b) if max(a, b) > 0.0

fedlease-experts | test_experts.py | FedLEASE: weights of the experts that are kept are not renormalised
- kept / kept.sum(-1, keepdim=True)
+ kept

pilot-mixing | test_mixing.py/test_pilot.py | Pilot: far neighbours count more than near ones
- 1.0 / float(distance[k, i])
+ float(distance[k, i])

darkdistill-weights | test_darkdistill.py | DarkDistill: depth classes count the same, however many clients they have
- (m.weight, m.params[g.id]) for m in models
+ (1.0, m.params[g.id]) for m in models

darkdistill-judge | test_distillation.py | DarkDistill: a class's own network judges its generated windows' difficulty
- _train_generator(rung, pairs, judged, draws, epoch)
+ _train_generator(rung, pairs, rung.network, draws, epoch)

darkdistill-noise | test_distillation.py | DarkDistill: generators are fed with normal noise instead of uniform noise
- torch.rand(num, rung.network.num_classes, generator=make)
+ torch.randn(num, rung.network.num_classes, generator=make)

darkdistill-relu | test_distillation.py | DarkDistill: the exit weights' hidden layer is tanh instead of ReLU
- nn.Linear(3, 100), nn.ReLU(), nn.Linear(100, 1)
+ nn.Linear(3, 100), nn.Tanh(), nn.Linear(100, 1)

darkdistill-own-exit | test_darkdistill.py | DarkDistill: shallow clients are evaluated through the deepest exit
- output=output if isinstance(output, str) else None
+ output=None

codec-dense | test_codec.py | a payload is announced without its magic and the length of its header
- 8 + len(_header(layout, selection)) + 4 * layout.num_values(selection)
+ len(_header(layout, selection)) + 4 * layout.num_values(selection)

codec-sparse | test_codec.py | the last bits of a sparse payload are not counted where they fill no byte
- -(-layout.num_values({j: part}) // 8)
+ layout.num_values({j: part}) // 8

stages-descendants | test_stages.py | stages that read from a trained one are not computed again
- if below & set(stage.inputs):
+ if False:

stages-ancestors | test_forward_plan.py/test_reuse.py | what lies below an absent feature is computed all the same
- and stage.id not in zeroed
+ and True

cost-backward | test_workload.py | the gradient of a stage's input is charged where nobody asks for it
- spent.input_grad_flops if live.intersection(stage.inputs) else inner
+ spent.input_grad_flops

cost-link | test_time.py | sending up takes no latency
- device.latency_s + load.bytes_up / device.uplink_bytes_per_s
+ load.bytes_up / device.uplink_bytes_per_s

cost-energy | test_energy.py | joules of the link are charged at the power of computing
- device.comm_power_w * times.link_s
+ device.active_power_w * times.link_s

streams-seed | test_streams.py | every run draws the same numbers, whatever its seed
- [self.seed, word,
+ [0, word,

adam-bias | test_optimizer.py | Adam corrects every step's bias as the first one's
- [_step_number(s.count) for s in slots]
+ [_step_number(1) for s in slots]
- [_number(s.count) for s in slots]
+ [_number(1) for s in slots]

adam-eps | test_optimizer.py | Adam's eps is a hundred times too large
- "eps": 1e-8
+ "eps": 1e-6

metrics-absent | test_metrics.py | classes that neither occur nor are predicted count as 0 in macro-F1
- scores[~scores.isnan()].mean()
+ scores.nan_to_num().mean()

config-hash | test_experiment.py | runs of two seeds have the same name
- NOT_DECIDING = frozenset({"name",
+ NOT_DECIDING = frozenset({"seed", "name",
- ("name", "runtime", "tracking", "choice", "replicate")
+ ("name", "runtime", "tracking", "choice", "replicate", "seed")

checkpoint-digest | test_checkpoint.py | a damaged state is loaded
- if _sha256(data) != sha256:
+ if not data:

ledger-torn | test_run_folder_ledger.py | a torn last line stays in the ledger, in front of the next round
- os.ftruncate(self._fd, self._num_bytes)
+ os.fsync(self._fd)

data-windows | test_windows.py | a bout's last window reaches one row into the next bout
- np.arange(start, stop - window + 1, stride
+ np.arange(start, stop - window + 2, stride

data-leak | test_federated_data.py | windows are standardised by the test subjects' statistics too
- [table[:, 0] for table in plan.train]
+ [np.concatenate([table, plan.test])[:, 0] for table in plan.train]

checkpoint-folder | test_checkpoint.py | a checkpoint gets its name before the names of its files are on disk
- files.sync(beside)
+ files.sync(beside / MANIFEST_FILE)

commit-order | test_experiment.py | clients' personal parts are committed before the round's line is written
- self.folder.append(record)
+ self.store.commit(), self.folder.append(record)

saver-awaited | test_experiment.py | a run is done whether its last checkpoint could be saved or not
- self.saver.wait()\n            status =
+ status =

void-retries | test_coordinator.py | a void round ends the run at once
- _MAX_VOID_RETRIES = 2
+ _MAX_VOID_RETRIES = 0

void-recover | test_coordinator.py | a void round is tried again without waiting for lost hosts
- with suppress(Interrupted):  # a stop was asked for then\n                recover()
+ pass

dropped-saved | test_coordinator.py | a stop that drops a round leaves no checkpoint of the one before
- _save_point(experiment)\n    return run
+ pass\n    return run

grace | test_coordinator.py | a round under way may hold a stop up for minutes
- _GRACE_S = 3.0
+ _GRACE_S = 600.0

hung-host | test_worker_pool.py | a host that does not answer in time is left alive
- ray.kill(host.handle, no_restart=False)
+ host.probe = None

answers-identity | test_worker_pool.py | answers of hosts that run other code are used
- check(identify(), answer.identity)
+ identify()

signals-shield | test_processes.py | Ray's processes hear a SIGTERM to the whole group and end first
- signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_THEIRS)
+ signal.pthread_sigmask(signal.SIG_BLOCK, ())

signals-echo | test_signals.py | the second signal of `timeout` counts as a second Ctrl-C
- if is_same and self._num_signals:
+ if is_same and False:

signals-end | test_signals.py | a process that hears no signal is not ended
- self.at_s = code, min(self.at_s, time.monotonic() + seconds)
+ self.at_s = code, min(self.at_s, time.monotonic() + 1e6)

frozen-raylet | test_processes.py | a frozen raylet is waited for without end
- if self.stopped_s > self.frozen_s
+ if self.silent_s > 1e12
"""


class Refused(Exception):
    """Why nothing can be tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutation:
    """A piece of code, what stands there instead, what that breaks, and the test files that must notice."""

    name: str
    code: str
    instead: str
    breaks: str
    tests: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome of a mutation in ``file``; ``by``: the test that failed, or what went wrong."""

    name: str
    file: str
    status: Status
    by: str
    seconds: float


@cache
def sources() -> dict[Path, str]:
    """Texts of all modules of the packages, by their paths from the root."""
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in files}


def mutations() -> Iterator[Mutation]:
    """Reads the table."""
    for entry in TABLE.strip().split("\n\n"):
        head, *forms = entry.split("\n")
        name, tests, breaks = head.split(" | ")
        pairs = list(zip(forms[::2], forms[1::2], strict=True))
        pairs = [(code.replace("\\n", "\n"), instead.replace("\\n", "\n")) for code, instead in pairs]
        code, instead = next(
            (pair for pair in pairs if any(pair[0][2:] in text for text in sources().values())), pairs[0]
        )
        assert code.startswith("- ") and instead.startswith("+ "), f"{name}: expected a line '- ..' and a line '+ ..'"
        yield Mutation(name=name, code=code[2:], instead=instead[2:], breaks=breaks, tests=tuple(tests.split()))


def chosen(names: str | None) -> list[Mutation]:
    """Picks the named ones, all by default."""
    known = {m.name: m for m in mutations()}
    wanted = [name.strip() for name in names.split(",")] if names else list(known)
    if unknown := [name for name in wanted if name not in known]:
        raise Refused(f"no mutation is called {', '.join(unknown)}; see --list")
    return [known[name] for name in wanted]


def home_of(mutation: Mutation) -> Path:
    """Finds the one file that holds the code, exactly once; its path from the root."""
    counts = {path: text.count(mutation.code) for path, text in sources().items()}
    places = {str(path): number for path, number in counts.items() if number}
    if sum(places.values()) != 1:
        where = ", ".join(f"{path} ({number})" for path, number in places.items()) or "nowhere"
        raise Refused(f"{mutation.name}: expected once, found {where}: {mutation.code!r}")
    return Path(*places)


def test_files(mutation: Mutation) -> list[str]:
    """Finds its test files by their names below ``tests``, wherever they are and whatever was added to the names."""
    everything = sorted((ROOT / "tests").rglob("test_*.py"))
    chosen_files: list[str] = []
    for selector in mutation.tests:
        stems = [Path(name).stem for name in selector.split("/")]
        found_by = ([p for p in everything if p.stem == s] or longer(s, everything) for s in stems)
        paths = next((paths for paths in found_by if paths), None)
        if paths is None:
            raise Refused(f"{mutation.name}: no test file is called {selector}, nor has its name with more around it")
        chosen_files += [p.relative_to(ROOT).as_posix() for p in paths]
    return list(dict.fromkeys(chosen_files))


def longer(stem: str, everything: Sequence[Path]) -> list[Path]:
    """Picks the files whose names hold ``stem`` and more: ``test_relief_budget.py`` for ``test_budget``."""
    return [p for p in everything if stem.removeprefix("test_") in p.stem.removeprefix("test_")]


def run_tests(tree: Path, files: Sequence[str]) -> tuple[int | None, str]:
    """Runs pytest in ``tree`` up to the first failure; its exit status (None: out of time) and what it said."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *STEADY, *files]
    surroundings = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, cwd=tree, env=surroundings, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return None, f"no end after {LIMIT_S:.0f} s"
    return done.returncode, done.stdout + done.stderr


def attempt(tree: Path, mutation: Mutation, file: Path, files: Sequence[str]) -> Outcome:
    """Tries one mutation in the copy and puts the file back, its time included: compiled files stay right."""
    began, text = time.monotonic(), (ROOT / file).read_text(encoding="utf-8")
    try:
        (tree / file).write_text(text.replace(mutation.code, mutation.instead), encoding="utf-8")
        code, said = run_tests(tree, files)
    finally:
        shutil.copy2(ROOT / file, tree / file)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, flags=re.M)
    status: Status = "killed" if code == 1 else "SURVIVED" if code == 0 else "error"
    by = failed[1] if status == "killed" and failed else "" if status == "SURVIVED" else last_words(code, said)
    return Outcome(name=mutation.name, file=str(file), status=status, by=by, seconds=time.monotonic() - began)


def last_words(code: int | None, said: str) -> str:
    """Sums up what a run without a verdict said."""
    return f"pytest ended with {code}: {' / '.join(said.strip().splitlines()[-3:])}"


def tried(wanted: Sequence[Mutation]) -> Iterator[Outcome]:
    """Yields the outcomes, one after the other, once the tests are green without any mutation."""
    homes, tests = [home_of(m) for m in wanted], [test_files(m) for m in wanted]
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        tree, began = Path(folder).resolve() / "tree", time.monotonic()
        shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        files = list(dict.fromkeys(file for some in tests for file in some))
        code, said = run_tests(tree, files)
        if code != 0:
            raise Refused(f"the tests are not green without any mutation\n{said[-3000:]}")
        print(f"{len(files)} test files are green without any mutation, {time.monotonic() - began:.1f} s", flush=True)
        for mutation, file, some in zip(wanted, homes, tests, strict=True):
            yield attempt(tree, mutation, file, some)


def main() -> int:
    """Does what the command line asks for; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print the mutations and try none")
    parser.add_argument("--only", metavar="NAME,..", help="try these alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes there too")
    arguments = parser.parse_args()
    try:
        wanted, outcomes = chosen(arguments.only), list[Outcome]()
        if arguments.list:
            for m in wanted:
                print(f"{m.name:20} {home_of(m)}, {' '.join(test_files(m))}: {m.breaks}")
            return 0
        for o in tried(wanted):
            print(f"{o.status:8} {o.name:20} {o.seconds:6.1f} s  {o.by or o.file}", flush=True)
            outcomes.append(o)
    except Refused as why:
        print(f"refused: {why}", file=sys.stderr)
        return 2
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n", encoding="utf-8")
    killed, seconds = sum(o.status == "killed" for o in outcomes), sum(o.seconds for o in outcomes)
    print(f"{killed} of {len(outcomes)} killed, {seconds:.1f} s")
    return int(killed < len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
