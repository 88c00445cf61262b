"""``actors.run``: a study as ``relief_ray.run`` takes it, computed by Ray workers, with the same bits.

A local cluster is started with the first run and stopped with the last, unless ``runtime`` names the ``address`` of one
to join. Clients are packed on a worker per core unless ``runtime`` has another ``mode``. ``actors.conformance`` judges
what is one's own by the rules, as the command of that name does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from actors.launch import RunCallbacks, choose_mode, local_session, ray_executors, run_experiment
from actors.runtime.session import ray_session
from relief_ray.conformance.trial import Conformance, trial_of
from relief_ray.data.loader import Loader
from relief_ray.experiment.experiment import OnRound
from relief_ray.experiment.setup import Setup
from relief_ray.records.schema import RunRecord
from relief_ray.studies.call import compute_study
from relief_ray.studies.keywords import check_words, in_python
from relief_ray.studies.loop import here
from relief_ray.studies.objects import BackboneLike, StrategyLike, named_target, settings_of
from relief_ray.studies.request import Folds, Request, Seeds, Target
from relief_ray.studies.study import Study

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from actors.runtime.warm_pool import WorkerCache
    from relief_ray.studies.call import Settings


@dataclass(kw_only=True, slots=True)
class _OnRay:
    """Ray for the runs of one study: opened with the first run that needs it, ended with ``session``."""

    session: ExitStack = field(default_factory=ExitStack)
    workers: WorkerCache | None = None

    def compute(self, setup: Setup, path: Path, on_round: OnRound, on_note: Callable[[str], None]) -> RunRecord:
        """Compute the missing rounds of a run; worker processes stay for the next run."""
        config = setup.config
        if choose_mode(config.runtime, len(setup.fleet), config.training.stack) == "inline":
            return here(setup, path, on_round, on_note)
        if self.workers is None:
            self.session.enter_context(ray_session(local_session(setup)))
            from actors.runtime.warm_pool import WorkerCache

            self.workers = WorkerCache(config.name)
            self.session.callback(self.workers.close)
        return run_experiment(setup, path, RunCallbacks(on_round=on_round, on_note=on_note), self.workers)


def run(
    experiment: Target = None,
    *,
    strategies: StrategyLike | Sequence[StrategyLike] | None = None,
    seeds: Seeds = None, folds: Folds = None, rounds: int | None = None,
    name: str | None = None, claims: str | Path | None = None, out: str | Path | None = None,
    set: Mapping[str, object] | None = None,
    quiet: bool = False, other_code: bool = False, rerun_stale: bool = False,
    **settings: Unpack[Settings],
) -> Study:  # fmt: skip
    """Compute a study on Ray and return it; the arguments are those of ``relief_ray.run``.

    Args:
        experiment: a preset's name, a file, an ``ExperimentConfig``, a mapping of its values, or None.
        strategies: names, import paths, classes, configurations or mappings.
        seeds: a list of seeds.
        folds: folds of the held-out subjects: a list, or one.
        rounds: rounds of every run, without the bootstrap.
        name: name of the study in reports.
        claims: file of claims to judge.
        out: folder of the records; None: a temporary one.
        set: settings by dotted key, as `--set` takes them.
        quiet: show no progress.
        other_code: take runs as they are that other code computed or began; without it they are refused.
        rerun_stale: compute such runs again; the old ones are kept in the folder ``stale``.
        settings: sections of the configuration: ``runtime={"num_hosts": 4}``.

    Raises:
        UserError: bad input, or a cluster that cannot be joined.
    """
    request = Request(
        target=experiment, strategies=strategies, seeds=seeds, folds=folds, rounds=rounds, name=name, claims=claims,
        set=set or {}, settings=dict(settings),
    )  # fmt: skip
    with (ray := _OnRay()).session:
        return compute_study(
            request, out, "ray", ray.compute, quiet=quiet, other_code=other_code, rerun_stale=rerun_stale
        )


def conformance(
    target: StrategyLike | BackboneLike | Loader,
    *,
    set: Mapping[str, object] | None = None,
    ray: bool = True,
    equals: str = "",
    within: float = 0.0,
) -> Conformance:
    """Judge the rules that every method, backbone or data set keeps, as `relief-ray conformance` does.

    Args:
        target: a name, an import path, a class, a configuration or a loader.
        set: settings by dotted key; a key without a section is the method's or the backbone's own: ``{"mu": 0}``.
        ray: compare a method with a run on Ray too; without it nothing of Ray is loaded.
        equals: judge only whether the method's rounds are those of this one.
        within: the largest difference of a value that ``equals`` allows.

    Raises:
        UserError: there is no such target, or a setting is wrong.
    """
    with in_python(), ExitStack() as stack:
        name, fields = named_target(target)
        check_words({}, set or {})
        executors = ray_executors(stack) if ray else {}
        return trial_of(name, [*fields, *settings_of(set or {})], executors, equals, within).judge()
