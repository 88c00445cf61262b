"""Judges the rules that every strategy keeps, on a problem of seconds: real data, few windows, a small model.

A rule is judged by running the strategy, never by reading it. Rules are tried in the order of ``RULES``; where one is
broken that others build on, those are not judged, so that one mistake is reported once.
"""

from __future__ import annotations

import hashlib
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from pydantic import JsonValue

from relief_ray.config.experiment import ExperimentConfig, parse
from relief_ray.conformance.instrumented import global_state, instrument
from relief_ray.conformance.isolation import IsolationCheck
from relief_ray.conformance.rules import Broken, Verdict, not_judged, what_broke
from relief_ray.core.federated import Strategy
from relief_ray.core.groups import Params
from relief_ray.experiment.evaluation import evaluation_inputs, served
from relief_ray.experiment.experiment import MakeExecutor, never, run_cell, same
from relief_ray.experiment.lifecycle import as_begun
from relief_ray.experiment.recording import binding_of
from relief_ray.experiment.setup import Setup, context_of
from relief_ray.records import checkpoint, read_rounds, read_run
from relief_ray.records.base import comparable
from relief_ray.records.schema import RunRecord
from relief_ray.support.errors import UserError
from relief_ray.support.process import threads
from relief_ray.training.executor import SerialExecutor

FAST_LINK = {"uplink_bytes_per_s": 1e10, "downlink_bytes_per_s": 1e10, "latency_s": 0.0}
PROBLEM: Mapping[str, object] = MappingProxyType(
    {
        "name": "conformance",
        "data": {"name": "dsa_mini", "stride_s": 20.0},
        "backbone": {"conv1": 8, "conv2": 8, "steps": 4, "fusion": 6},
        "training": {"epochs": 1, "lr": 0.01},
        "fleet": {"gap": 2.0, "types": {t: FAST_LINK for t in "ABC"}},
        "evaluation": {"every": 2},
        "rounds": 3,
        "participation": 0.5,
        # A refused update is a broken rule with a name of its own, not a void round.
        "runtime": {"mode": "inline", "quorum": 0.01},
        "tracking": {"enabled": False},
    }
)


# Rules that one instrumented run judges. Later rules are judged only where these are kept; no rule needs those of
# _SEPARATE.
_INSTRUMENTED = ("finishes", "allocation", "purity", "bytes", "state", "evaluation", "randomness", "globals")
_SEPARATE = frozenset({"resumes", "participation", "received", "missing", "executors"})

# Share of a model's largest value below which a change is rounding: a step of Adam is a thousand times that.
_NOISE = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bench:
    """The strategy under test and the place of its runs.

    Attributes:
        config: configuration with the strategy.
        root: folder of all runs.
        executors: other executors to compare with, by name.
        done: outcomes of runs that later ones are compared with.
    """

    config: ExperimentConfig
    root: Path
    executors: Mapping[str, MakeExecutor]
    done: dict[str, dict[str, JsonValue]] = field(default_factory=dict)

    def run(
        self,
        name: str,
        config: ExperimentConfig | None = None,
        make_executor: MakeExecutor = SerialExecutor,
        num_rounds: int | None = None,
        instrumented: bool = False,
    ) -> dict[str, JsonValue]:
        """Run to the end, in one go or interrupted after every ``num_rounds``, and return the outcome."""
        config, path = config or self.config, self.root / name
        while drive(config, path, make_executor, after_rounds(num_rounds), instrumented).status != "done":
            pass
        refused = {c: why for record in read_rounds(path) for c, why in record.rejected.items()}
        if refused and instrumented:
            raise Broken("finishes", f"updates of clients were refused: {refused}")
        return outcome(path)


def after_rounds(number: int | None) -> Callable[[], bool]:
    """Return a function that asks to stop after so many rounds; None: never."""
    if number is None:
        return never
    remaining = iter(range(number))
    return lambda: next(remaining, None) is None


def drive(
    config: ExperimentConfig,
    path: Path,
    make_executor: MakeExecutor = SerialExecutor,
    should_stop: Callable[[], bool] = never,
    instrumented: bool = False,
) -> RunRecord:
    """Start the run in ``path``, or resume it, until it is done or ``should_stop``."""
    return run_cell(config, path, make_executor, should_stop, adapt=_instrumented if instrumented else same)


def _instrumented(setup: Setup) -> Setup:
    """The setup with the strategy as it was written: the guards of a run would name a fault before its rule does."""
    strategy = instrument(setup.config.strategy.build())
    return replace(setup, strategy=strategy, job=replace(setup.job, program=strategy.client))


def outcome(path: Path) -> dict[str, JsonValue]:
    """Return what two equal runs share: all records without ``WALL_FIELDS``, and the hash of the last checkpoint."""
    newest = checkpoint.generations(path)[0] / checkpoint.STATE_FILE
    rounds: list[JsonValue] = [comparable(record) for record in read_rounds(path)]
    return {"rounds": rounds, "state": hashlib.sha256(newest.read_bytes()).hexdigest()}


def check(config: ExperimentConfig, executors: Mapping[str, MakeExecutor] | None = None) -> Iterator[Verdict]:
    """Judge the rules on ``config``'s strategy; ``executors``: other executors to compare with, by name.

    Raises:
        UserError: the other executors do not work, whatever the strategy is.
    """
    # A run pins torch's threads: here before the first snapshot of what a method must not change.
    with threads(config.runtime.num_threads), tempfile.TemporaryDirectory(prefix="relief-ray-") as folder:
        bench = _Bench(config=config, root=Path(folder), executors=executors or {})
        why = ""
        for rules, trial in _TRIALS:
            if why:
                yield from (not_judged(rule, why) for rule in rules)
            elif rules == ("executors",) and not executors:
                yield Verdict(rule="executors", status="not judged", found="needs Ray")
            else:
                verdicts = list(_judge(rules, trial, bench))
                yield from verdicts
                broken = [v.rule for v in verdicts if v.status == "broken"]
                why = broken[0] if broken and not _SEPARATE.issuperset(broken) else ""


def _judge(rules: tuple[str, ...], trial: Callable[[_Bench], None], bench: _Bench) -> Iterator[Verdict]:
    """Run a trial: all of ``rules`` are kept, or one is broken and the others are not judged."""
    try:
        trial(bench)
        broken, reason = "", ""
    except Exception as error:
        if isinstance(error, UserError) and rules == ("executors",):
            raise  # the cluster is at fault: the same strategy has just run without it
        broken, reason = what_broke(error, rules, bench.config.modules())
    for rule in rules:
        if rule == broken:
            yield Verdict(rule=rule, status="broken", found=reason)
        elif broken:
            yield not_judged(rule, broken)
        else:
            yield Verdict(rule=rule, status="kept")


def _configuration(bench: _Bench) -> None:
    config = bench.config
    if (again := parse(config.model_dump(mode="json"))) != config:
        raise Broken("configuration", f"{config.strategy!r} comes back as {again.strategy!r}")
    strategy: object = config.strategy.build()
    if not isinstance(strategy, Strategy):
        raise Broken("configuration", f"build() returned a {type(strategy).__name__}")


def _travels(bench: _Bench) -> None:
    config = bench.config
    for part, value in (("the strategy", config.strategy.build()), ("the configuration", config)):
        try:
            pickle.loads(pickle.dumps(value))
        except Exception as error:
            raise Broken("travels", f"{part} cannot be pickled ({error})") from error


def _first_run(bench: _Bench) -> None:
    before = global_state(bench.config)
    bench.done["first"] = bench.run("first", instrumented=True)
    after = global_state(bench.config)
    for rule in ("randomness", "globals"):
        changed = [name for (kind, name), value in before.items() if kind == rule and after.get((kind, name)) != value]
        if changed or (changed := [name for kind, name in after.keys() - before.keys() if kind == rule]):
            raise Broken(rule, f"{', '.join(sorted(changed))}: changed while clients trained")


def _moves(bench: _Bench) -> None:
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
    if gap > _NOISE or all(setup.strategy.rests(context_of(setup, number)) for number in rounds):
        return
    losses = [record.loss for record in read_rounds(path) if record.loss is not None]
    said = (
        f"training loss {losses[0]:.3g} in the first, {losses[-1]:.3g} in the last" if losses else "no client trained"
    )
    raise Broken("moves", f"after {config.rounds} rounds its values differ by {gap:.2g} at most; {said}")


def _gap(theta: Params, start: Params) -> float:
    """Largest change of a value, as a share of the largest value of the start, 1 at least."""
    scale = max(1.0, *(float(values.abs().max()) for values in start.values()))
    return max(float((theta[j] - values).abs().max()) for j, values in start.items()) / scale


def _compare(bench: _Bench, rule: str, other: Mapping[str, JsonValue], how: str) -> None:
    first = bench.done["first"]
    if other == first:
        return
    pairs = zip(_rounds(first), _rounds(other), strict=False)
    differ = [i for i, (a, b) in enumerate(pairs, 1) if a != b]
    where = f"records differ from line {differ[0]} of rounds.jsonl on" if differ else "the last states differ"
    raise Broken(rule, f"{how}: {where}")


def _rounds(outcome: Mapping[str, JsonValue]) -> list[JsonValue]:
    rounds = outcome["rounds"]
    assert isinstance(rounds, list)
    return rounds


def _repeats(bench: _Bench) -> None:
    _compare(bench, "repeats", bench.run("again"), "two runs in one process")


def _resumes(bench: _Bench) -> None:
    _compare(bench, "resumes", bench.run("resumed", num_rounds=1), "interrupted after every round")


def _participation(bench: _Bench) -> None:
    bench.run("one", bench.config.model_copy(update={"participation": 1e-3}), instrumented=True)


def _received(bench: _Bench) -> None:
    everybody = bench.config.model_copy(update={"participation": 1.0})
    bench.run("received", everybody, make_executor=IsolationCheck)
    bench.run("received by some", make_executor=IsolationCheck)


def _missing(bench: _Bench) -> None:
    training = bench.config.training.model_copy(update={"missing": "zero_feature"})
    bench.run(
        "missing", bench.config.model_copy(update={"training": training, "participation": 1.0}), instrumented=True
    )


def _executors(bench: _Bench) -> None:
    for name, make in bench.executors.items():
        _compare(bench, "executors", bench.run(name, make_executor=make), name)


_TRIALS: tuple[tuple[tuple[str, ...], Callable[[_Bench], None]], ...] = (
    (("configuration",), _configuration),
    (("travels",), _travels),
    (_INSTRUMENTED, _first_run),
    (("moves",), _moves),
    (("repeats",), _repeats),
    (("resumes",), _resumes),
    (("participation",), _participation),
    (("received",), _received),
    (("missing",), _missing),
    (("executors",), _executors),
)
