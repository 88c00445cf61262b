"""The rules that every strategy keeps, tried out on a problem of seconds: real data, few windows, a small model.

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

from relief_ray.config import ExperimentConfig, parse
from relief_ray.conformance.instrumented import globals_of, watched
from relief_ray.conformance.isolation import WatchedTraining
from relief_ray.conformance.rules import Broken, Verdict, what_broke
from relief_ray.errors import UserError
from relief_ray.experiment.experiment import Experiment, MakeExecutor, never
from relief_ray.experiment.lifecycle import create, reopen
from relief_ray.federated import Strategy
from relief_ray.records import checkpoint, read_rounds
from relief_ray.records.schema import RunRecord, comparable
from relief_ray.training.serial_executor import SerialExecutor

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
        "runtime": {"mode": "inline"},
        "tracking": {"enabled": False},
    }
)


# Whatever one run can tell. Others build on these, but not on what stands alone.
WATCHED = ("finishes", "allocation", "purity", "bytes", "state", "evaluation", "randomness", "globals")
SEPARATE = frozenset({"resumes", "participation", "received", "missing", "executors"})


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scene:
    """Where the trial takes place; ``done``: outcomes of the runs that others are compared with."""

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
        watch: bool = False,
    ) -> dict[str, JsonValue]:
        """The outcome of a run, watched or not, whole or in drives of ``num_rounds``."""
        config, path = config or self.config, self.root / name
        while drive(config, path, make_executor, after_rounds(num_rounds), watch).status != "finished":
            pass
        refused = {c: why for record in read_rounds(path) for c, why in record.rejected.items()}
        if refused and watch:
            raise Broken("finishes", f"updates of clients were refused: {refused}")
        return outcome(path)


def after_rounds(number: int | None) -> Callable[[], bool]:
    """Asks to stop once so many rounds have been done; never without a number."""
    if number is None:
        return never
    asked = iter(range(number))
    return lambda: next(asked, None) is None


def drive(
    config: ExperimentConfig,
    path: Path,
    make_executor: MakeExecutor = SerialExecutor,
    should_stop: Callable[[], bool] = never,
    watch: bool = False,
) -> RunRecord:
    """Starts the run in ``path``, or goes on with it, until it is done or ``should_stop``."""
    setup, folder = reopen(path) if (path / "run.json").exists() else create(config, path)
    with folder:
        if watch:
            strategy = watched(setup.strategy, setup.fleet, setup.layout)
            setup = replace(setup, strategy=strategy, job=replace(setup.job, program=strategy.client))
        executor = make_executor(setup.job)
        try:
            return Experiment(setup=setup, folder=folder, executor=executor).run(should_stop=should_stop)
        finally:
            executor.close()


def outcome(path: Path) -> dict[str, JsonValue]:
    """Every round's record without what a wall clock decides, and the last state: model, ``d_bar``, personal parts."""
    newest = checkpoint.generations(path)[0] / checkpoint.STATE_FILE
    rounds: list[JsonValue] = [comparable(record) for record in read_rounds(path)]
    return {"rounds": rounds, "state": hashlib.sha256(newest.read_bytes()).hexdigest()}


def check(config: ExperimentConfig, executors: Mapping[str, MakeExecutor] | None = None) -> Iterator[Verdict]:
    """Tries the rules on ``config``'s strategy; ``executors`` are the others to compare with, by name.

    Raises:
        UserError: the other executors do not work, whatever the strategy is.
    """
    with tempfile.TemporaryDirectory(prefix="relief-ray-") as folder:
        scene = _Scene(config=config, root=Path(folder), executors=executors or {})
        why = ""
        for rules, trial in TRIALS:
            if why:
                yield from _unjudged(rules, why)
            elif rules == ("executors",) and not executors:
                yield Verdict(rule="executors", status="not judged", found="needs Ray")
            else:
                verdicts = list(_judge(rules, trial, scene))
                yield from verdicts
                broken = [v.rule for v in verdicts if v.status == "broken"]
                why = broken[0] if broken and not SEPARATE.issuperset(broken) else ""


def _unjudged(rules: tuple[str, ...], why: str) -> Iterator[Verdict]:
    for rule in rules:
        yield Verdict(rule=rule, status="not judged", found=f"first mend {why!r}")


def _judge(rules: tuple[str, ...], trial: Callable[[_Scene], None], scene: _Scene) -> Iterator[Verdict]:
    """All of ``rules`` are kept, or the one that the trial found broken is and the others are not judged."""
    try:
        trial(scene)
        broken, found = "", ""
    except Exception as error:
        if isinstance(error, UserError) and rules == ("executors",):
            raise  # the cluster is at fault: the same strategy has just run without it
        broken, found = what_broke(error, rules, scene.config.modules())
    for rule in rules:
        if rule == broken:
            yield Verdict(rule=rule, status="broken", found=found)
        elif broken:
            yield from _unjudged((rule,), broken)
        else:
            yield Verdict(rule=rule, status="kept")


def _configuration(scene: _Scene) -> None:
    config = scene.config
    if (again := parse(config.model_dump(mode="json"))) != config:
        raise Broken("configuration", f"{config.strategy!r} comes back as {again.strategy!r}")
    strategy: object = config.strategy.build()
    if not isinstance(strategy, Strategy):
        raise Broken("configuration", f"build() returned a {type(strategy).__name__}")


def _travels(scene: _Scene) -> None:
    config = scene.config
    for part, value in (("the strategy", config.strategy.build()), ("the configuration", config)):
        try:
            pickle.loads(pickle.dumps(value))
        except Exception as error:
            raise Broken("travels", f"{part} cannot be pickled ({error})") from error


def _first_run(scene: _Scene) -> None:
    before = globals_of(scene.config)
    scene.done["first"] = scene.run("first", watch=True)
    after = globals_of(scene.config)
    for rule in ("randomness", "globals"):
        changed = [name for (kind, name), value in before.items() if kind == rule and after.get((kind, name)) != value]
        if changed or (changed := [name for kind, name in after.keys() - before.keys() if kind == rule]):
            raise Broken(rule, f"{', '.join(sorted(changed))}: changed while clients trained")


def _compare(scene: _Scene, rule: str, found: Mapping[str, JsonValue], how: str) -> None:
    first = scene.done["first"]
    if found == first:
        return
    pairs = zip(_rounds(first), _rounds(found), strict=False)
    differ = [i for i, (a, b) in enumerate(pairs, 1) if a != b]
    where = f"records differ from line {differ[0]} of rounds.jsonl on" if differ else "the last states differ"
    raise Broken(rule, f"{how}: {where}")


def _rounds(found: Mapping[str, JsonValue]) -> list[JsonValue]:
    rounds = found["rounds"]
    assert isinstance(rounds, list)
    return rounds


def _repeats(scene: _Scene) -> None:
    _compare(scene, "repeats", scene.run("again"), "two runs in one process")


def _resumes(scene: _Scene) -> None:
    _compare(scene, "resumes", scene.run("resumed", num_rounds=1), "interrupted after every round")


def _participation(scene: _Scene) -> None:
    scene.run("one", scene.config.model_copy(update={"participation": 1e-3}), watch=True)


def _received(scene: _Scene) -> None:
    everybody = scene.config.model_copy(update={"participation": 1.0})
    scene.run("received", everybody, make_executor=WatchedTraining)
    scene.run("received by some", make_executor=WatchedTraining)


def _missing(scene: _Scene) -> None:
    training = scene.config.training.model_copy(update={"missing": "zero_feature"})
    scene.run("missing", scene.config.model_copy(update={"training": training, "participation": 1.0}), watch=True)


def _executors(scene: _Scene) -> None:
    for name, make in scene.executors.items():
        _compare(scene, "executors", scene.run(name, make_executor=make), name)


TRIALS: tuple[tuple[tuple[str, ...], Callable[[_Scene], None]], ...] = (
    (("configuration",), _configuration),
    (("travels",), _travels),
    (WATCHED, _first_run),
    (("repeats",), _repeats),
    (("resumes",), _resumes),
    (("participation",), _participation),
    (("received",), _received),
    (("missing",), _missing),
    (("executors",), _executors),
)
