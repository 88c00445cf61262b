"""Judges the rules that every strategy keeps, on a problem of seconds: real data, few windows, a small model.

A rule is judged by running the strategy, never by reading it. Beside the checks stand what they and others run:
``outcome``, an executor that finds out what clients depend on (``IsolationCheck``), and a short training
that every machine can repeat (``reference_numbers``).
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict
from urllib.parse import unquote

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from relief_ray.config.experiment import ExperimentConfig, assign, parse, settings_of
from relief_ray.conformance.instrumented import global_state, instrument, replaced
from relief_ray.conformance.rules import Broken, Check, NotJudged, Verdict, judge
from relief_ray.core.groups import GroupLayout, Params
from relief_ray.core.messages import NO_STATE, Assignment, ClientState, Models, States, Trained
from relief_ray.devices.fleet import PRESETS as DEVICES
from relief_ray.experiment.evaluation import evaluation_inputs, served
from relief_ray.experiment.experiment import MakeExecutor, Stop, never, run_cell, same
from relief_ray.experiment.lifecycle import as_begun
from relief_ray.experiment.recording import binding_of
from relief_ray.experiment.setup import Setup, context_of, prepare
from relief_ray.records import checkpoint
from relief_ray.records.identity import machine_facts
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.schema import Machine, comparable
from relief_ray.support.errors import CoordinatorLost, UserError
from relief_ray.support.files import sha256_file, sha256_of
from relief_ray.support.process import Device, device_name, threads, use_threads
from relief_ray.training.executor import SerialExecutor
from relief_ray.training.job import BlockResult, Job

Array = NDArray[np.float32]
Arrays = dict[str, Array]

FAST_LINK = {"uplink_mbit_s": 8e4, "downlink_mbit_s": 8e4, "latency_s": 0.0}
PROBLEM: Mapping[str, object] = {
    "name": "conformance",
    "data": {"name": "dsa_mini", "stride_s": 20.0},
    "backbone": {"conv1": 8, "conv2": 8, "steps": 4, "fusion": 6},
    "training": {"epochs": 1, "lr": 0.01},
    "fleet": {"gap": 2.0, "types": {name: FAST_LINK for name in DEVICES["paper"]}},
    "evaluation": {"every": 2},
    "rounds": 3,
    "participation": 0.5,
    # A refused update is a broken rule with a name of its own, not a void round.
    "runtime": {"mode": "inline", "quorum": 0.01},
    "tracking": {"enabled": False},
}


# Rules that the instrumented run judges.
_INSTRUMENTED = ("finishes", "allocation", "purity", "bytes", "state", "evaluation", "randomness", "globals")
# Share of a model's largest value below which a change is rounding: a step of Adam is a thousand times that.
_NOISE = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What is under test, and the place of its runs.

    Attributes:
        config: configuration with it.
        root: folder of all runs.
        executors: other executors to compare with, by name.
        done: outcomes of runs that later ones are compared with.
    """

    config: ExperimentConfig
    root: Path
    executors: Mapping[str, MakeExecutor] = field(default_factory=dict)
    done: dict[str, Outcome] = field(default_factory=dict)

    def run(
        self,
        name: str,
        config: ExperimentConfig | None = None,
        make_executor: MakeExecutor = SerialExecutor,
        num_rounds: int | None = None,
        instrumented: bool = False,
    ) -> Outcome:
        """Run to the end, in one go or interrupted after every ``num_rounds``, and return the outcome."""
        config, path = config or self.config, self.root / name
        adapt = _instrumented if instrumented else same
        while run_cell(config, path, make_executor, after_rounds(num_rounds), adapt=adapt).status != "done":
            pass
        refused = {c: why for record in read_rounds(path) for c, why in record.rejected.items()}
        if refused and instrumented:
            raise Broken("finishes", f"updates of clients were refused: {refused}")
        if instrumented and not any(record.clients for record in read_rounds(path)):
            raise Broken("allocation", "allocate gave no participant a task in any round")
        return outcome(path)


def after_rounds(number: int | None) -> Stop:
    """Return a function that asks to stop after so many rounds; None: never."""
    if number is None:
        return never
    remaining = iter(range(number))
    return lambda: next(remaining, None) is None


def _instrumented(setup: Setup) -> Setup:
    """The setup with the strategy as it was written, all of it held to the contract and the rules."""
    strategy = instrument(setup.config.strategy.build())
    return replace(setup, strategy=strategy, job=replace(setup.job, program=strategy.client))


class Outcome(TypedDict):
    """What two equal runs share: all records without ``WALL_FIELDS``, and the hash of the last checkpoint."""

    rounds: list[JsonValue]
    state: str


def outcome(path: Path) -> Outcome:
    """What came of a run."""
    newest = checkpoint.generations(path)[0] / checkpoint.STATE_FILE
    return {"rounds": [comparable(record) for record in read_rounds(path)], "state": sha256_file(newest)}


def models_of(path: Path) -> tuple[int, Arrays]:
    """Round of a run's newest checkpoint, and the values of the server's models in it by ``model/group``."""
    newest = checkpoint.generations(path)[0]
    arrays = safetensors.numpy.load_file(newest / checkpoint.STATE_FILE)
    models = {unquote(n.removeprefix("models/")): x for n, x in arrays.items() if n.startswith("models/")}
    return checkpoint.round_of(newest), models


def largest_gap(x: Array, y: Array) -> float:
    """Largest difference of two values; infinite where the shapes differ."""
    if x.shape != y.shape:
        return float("inf")
    return 0.0 if np.array_equal(x, y) else float(np.abs(x.astype(np.float64) - y.astype(np.float64)).max())


def check(config: ExperimentConfig, executors: Mapping[str, MakeExecutor] | None = None) -> Iterator[Verdict]:
    """Judge the rules on ``config``'s strategy; ``executors``: other executors to compare with, by name.

    Raises:
        UserError: the other executors do not work, whatever the strategy is.
    """
    # A run pins torch's threads: here before the first snapshot of what a method must not change.
    with threads(config.runtime.num_threads), tempfile.TemporaryDirectory(prefix="relief-ray-") as folder:
        yield from judge(_CHECKS, Bench(config=config, root=Path(folder), executors=executors or {}))


def require_comes_back(config: ExperimentConfig, section: str) -> None:
    """Check that a configuration survives JSON.

    Raises:
        Broken: rule ``configuration``; the ``section`` that is judged is shown.
    """
    if (again := parse(config.model_dump(mode="json"))) != config:
        raise Broken("configuration", f"{getattr(config, section)!r} comes back as {getattr(again, section)!r}")


def _travels(bench: Bench) -> None:
    config = bench.config
    for part, value in (("the strategy", config.strategy.build()), ("the configuration", config)):
        try:
            pickle.loads(pickle.dumps(value))
        except Exception as error:
            raise Broken("travels", f"{part} cannot be pickled ({error})") from error


def _first_run(bench: Bench) -> None:
    before = global_state(bench.config)
    bench.done["first"] = bench.run("first", instrumented=True)
    after = global_state(bench.config)
    for rule in ("randomness", "globals"):
        changed = [name for (kind, name), value in before.items() if kind == rule and after.get((kind, name)) != value]
        if changed or (changed := [name for kind, name in after.keys() - before.keys() if kind == rule]):
            raise Broken(rule, f"{', '.join(sorted(changed))}: changed while clients trained")
    if functions := replaced(bench.config):
        raise Broken("globals", f"{', '.join(functions)}: replaced by a function of the method's module")


def _moves(bench: Bench) -> None:
    path = bench.root / "first"
    run, config = read_run(path), bench.config
    setup = as_begun(run, path, config)
    point = checkpoint.load(path, binding_of(setup, run))
    assert point is not None
    first = setup.strategy.init(setup.layout, setup.fleet, setup.streams, setup.start)
    before = served(evaluation_inputs(setup, first, {}), setup.layout)
    after = served(evaluation_inputs(setup, point.state, point.clients, point.averages), setup.layout)
    gap = max(_gap(params, before.get(label, setup.start)) for label, params in after.items())
    rounds = range(1, config.rounds + 1)
    if gap > _NOISE or all(setup.strategy.insight.rests(context_of(setup, number)) for number in rounds):
        return
    losses = [record.loss for record in read_rounds(path) if record.loss is not None]
    losses_text = (
        f"training loss {losses[0]:.3g} in the first, {losses[-1]:.3g} in the last" if losses else "no client trained"
    )
    raise Broken("moves", f"after {config.rounds} rounds its values differ by {gap:.2g} at most; {losses_text}")


def _gap(theta: Params, start: Params) -> float:
    """Largest change of a value, as a share of the largest value of the start, 1 at least."""
    scale = max(1.0, *(float(values.abs().max()) for values in start.values()))
    return max(float((theta[j] - values).abs().max()) for j, values in start.items()) / scale


def _compare(bench: Bench, rule: str, other: Outcome, how: str) -> None:
    first = bench.done["first"]
    if other == first:
        return
    pairs = zip(first["rounds"], other["rounds"], strict=False)
    differ = [i for i, (a, b) in enumerate(pairs, 1) if a != b]
    where = f"records differ from line {differ[0]} of rounds.jsonl on" if differ else "the last states differ"
    raise Broken(rule, f"{how}: {where}")


def _repeats(bench: Bench) -> None:
    _compare(bench, "repeats", bench.run("again"), "two runs in one process")


def _resumes(bench: Bench) -> None:
    _compare(bench, "resumes", bench.run("resumed", num_rounds=1), "interrupted after every round")


def _participation(bench: Bench) -> None:
    bench.run("one", bench.config.model_copy(update={"participation": 1e-3}), instrumented=True)


def _received(bench: Bench) -> None:
    everybody = bench.config.model_copy(update={"participation": 1.0})
    bench.run("received", everybody, make_executor=IsolationCheck)
    bench.run("received by some", make_executor=IsolationCheck)


def _missing(bench: Bench) -> None:
    training = bench.config.training.model_copy(update={"missing": "zero_feature"})
    bench.run(
        "missing", bench.config.model_copy(update={"training": training, "participation": 1.0}), instrumented=True
    )


def _executors(bench: Bench) -> None:
    if not bench.executors:
        raise NotJudged("needs Ray")
    for name, make in bench.executors.items():
        _compare(bench, "executors", bench.run(name, make_executor=make), name)


# Where one is broken that others build on, those are not judged; no rule needs those from `resumes` on.
_CHECKS: tuple[Check[Bench], ...] = (
    # A user's method is built as its configuration is read, and what that returns is checked there.
    Check(rules=("configuration",), run=lambda bench: require_comes_back(bench.config, "strategy")),
    Check(rules=("travels",), run=_travels, needs=("configuration",)),
    Check(rules=_INSTRUMENTED, run=_first_run, needs=("travels",)),
    Check(rules=("moves",), run=_moves, needs=_INSTRUMENTED),
    Check(rules=("repeats",), run=_repeats, needs=("moves",)),
    Check(rules=("resumes",), run=_resumes, needs=("repeats",)),
    Check(rules=("participation",), run=_participation, needs=("repeats",)),
    Check(rules=("received",), run=_received, needs=("repeats",)),
    Check(rules=("missing",), run=_missing, needs=("repeats",)),
    # What a user must mend here is the cluster: the same strategy has just run without it.
    Check(rules=("executors",), run=_executors, needs=("repeats",), lets_through=(UserError, CoordinatorLost)),
)


# Values that never reached a client: an executor that finds out whether it computes with them.


class IsolationCheck(SerialExecutor):
    """Trains every client twice more, the second time with NaN wherever nothing was received or kept.

    A client has the values that came ``down``, those that it ``keep``s, and the model that all began with.
    """

    def __init__(self, job: Job) -> None:
        """Build the worker; the first model that it trains counts as the one that all clients began with."""
        super().__init__(job)
        self._layout = self._worker.backbone.layout
        self._start: Params = {}

    def train(
        self,
        round_: int,
        models: Models,
        tasks: Sequence[Assignment],
        states: States,
    ) -> Trained:
        """Train one round.

        Raises:
            Broken: rule ``received``.
        """
        self._start = self._start or next(iter(models.values()))
        for task in tasks:
            self._compare(round_, models, task, states)
        return super().train(round_, models, tasks, states)

    def _compare(self, round_: int, models: Models, task: Assignment, states: States) -> None:
        theta, received = models[task.view], None
        if self._worker.job.trainer.wire.reachable:
            # Rows in place of absent sensors' networks came down: they are of the server's own model both times.
            theta, received = self._worker.runs.received(models, task)
        other = changed(self._layout, theta, self._start, task, states.get(task.client, NO_STATE))
        result, changed_result = (
            next(self._worker.train_blocks(round_, {**models, task.view: view}, [[task]], states, received))
            for view in (theta, other)
        )
        if _bits(result) != _bits(changed_result):
            unsent = [j for j in self._layout.ids if j in theta and not torch.equal(other[j], theta[j])]
            raise Broken(
                "received",
                f"round {round_}: client {task.client} depends on values that it neither received nor kept, of groups "
                f"{', '.join(unsent)}",
            )


def changed(layout: GroupLayout, theta: Params, start: Params, task: Assignment, state: ClientState) -> Params:
    """Put NaN for values of ``theta`` that the client does not have: not in ``down``, not kept, not in ``start``."""
    other: dict[str, Tensor] = {}
    for j, values in theta.items():
        known = values == start[j]
        for selection in (task.down, {k: part for k, part in task.keep.items() if k in state}):
            if j in selection:
                known[layout.indices(j, selection[j])] = True  # indices: positions within the group
        other[j] = torch.where(known, values, torch.nan)
    return other


def _bits(result: BlockResult) -> dict[str, bytes]:
    """Return the bits of everything that a client returns, except times."""
    tensors: dict[str, Tensor] = {}
    for update in result.updates:
        tensors |= {f"delta {j}": x for j, x in update.delta.items()}
    for groups in result.sums.values():
        tensors |= {f"sum {j}": part.plain for j, part in groups.items()}
    for state in result.states.values():
        tensors |= {f"state {name}": x for name, x in state.items()}
    for receipt in result.receipts:
        tensors |= {f"stats {name}": x for name, x in receipt.stats.items()}
        tensors["loss"] = torch.tensor(receipt.work.loss, dtype=torch.float64)
    return {name: value.contiguous().numpy().tobytes() for name, value in tensors.items()}


# Reference numbers: a short federated training that every machine can repeat, and how far two results may differ.
#
# Equal processors with the same torch give the same bits. Others add up in another order, so the numbers agree to
# rounding: FedAvg with plain SGD, which amplifies no last bit as Adam's division does, stays within ``WITHIN``.

WITHIN = 1e-4
_REFERENCE_SETTINGS = {
    "strategy": "fedavg",
    "training.optimizer": "sgd",
    "training.lr": 0.3,
    "training.epochs": 4,
    "rounds": 3,
    "participation": 1.0,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceNumbers:
    """One machine's result.

    Attributes:
        machine: where it was computed; its ``device`` says on what.
        sha256: hash of all values' bits.
        values: what training added to each group's values, float32: a start model would hide small errors.
    """

    machine: Machine
    sha256: str
    values: Mapping[str, Array]


def reference_numbers(device: Device = "cpu") -> ReferenceNumbers:
    """Compute the reference numbers here, with one thread, on the excerpt that ships with the package."""
    use_threads(1)
    config = parse(assign(PROBLEM, settings_of({**_REFERENCE_SETTINGS, "training.device": device})), "conformance")
    with tempfile.TemporaryDirectory(prefix="relief-ray-") as folder:
        run_cell(config, Path(folder) / "run")
        _, models = models_of(Path(folder) / "run")
    start = prepare(config).start
    values = {j: models[f"global/{j}"] - start[j].numpy() for j in sorted(start)}
    sha256 = sha256_of(
        b"".join(f"{name}\0{value.shape}\0".encode() + value.tobytes() for name, value in values.items())
    )
    machine = machine_facts().model_copy(update={"device": device_name(device)})
    return ReferenceNumbers(machine=machine, sha256=sha256, values=values)


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """Comparison of a machine's numbers with the reference.

    Attributes:
        is_same: whether all bits are equal.
        needs_bits: whether they have to be: same processor, device, torch and numpy.
        difference: largest relative difference of a group, ``max |x - y| / max |y|``; infinite where shapes differ.
    """

    is_same: bool
    needs_bits: bool
    difference: float

    @property
    def is_kept(self) -> bool:
        """Whether the machine reproduces the reference as far as it has to."""
        return self.is_same or (not self.needs_bits and self.difference <= WITHIN)


def agreement(numbers: ReferenceNumbers, reference: ReferenceNumbers) -> Agreement:
    """Compare two results."""
    mine, theirs = numbers.machine, reference.machine
    alike = ("cpu", "architecture", "device", "torch", "numpy")
    if numbers.values.keys() != reference.values.keys():
        difference = float("inf")
    else:
        difference = max(_relative(numbers.values[name], y) for name, y in reference.values.items())
    return Agreement(
        is_same=numbers.sha256 == reference.sha256,
        needs_bits=all(getattr(mine, name) == getattr(theirs, name) for name in alike),
        difference=difference,
    )


def _relative(x: Array, y: Array) -> float:
    """Largest difference over the largest value; infinite where shapes differ or a value is not finite."""
    return largest_gap(x, y) / (float(np.abs(y).max()) or 1.0) if np.isfinite(x).all() else float("inf")
