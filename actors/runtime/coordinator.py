"""The coordinator: server state, rounds, records and checkpoints, with clients on workers.

``run_on_workers`` computes rounds in the process that calls it: the driver's, where it has started the cluster for
itself and clients are packed, else that of a ``Coordinator``. That one runs on the driver's node, where the driver
reads rounds from the ledger, and answers questions during a round. Its workers belong to the driver, so they outlive
it: a coordinator that died restarts and goes on from the last checkpoint, with the same bits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import ray

from actors.runtime import serialization
from actors.runtime.errors import Interrupted, errno_travels
from actors.runtime.executor import RayExecutor
from actors.runtime.gauges import Gauges
from actors.runtime.placement import WorkerGroup, driver_node
from actors.runtime.worker_pool import WorkerPool
from relief_ray.config.runtime import RuntimeConfig
from relief_ray.core.federated import RoundVoid
from relief_ray.experiment.experiment import Experiment, OnRound, run_opened
from relief_ray.experiment.setup import Setup
from relief_ray.plugins.blame import naming_users_code
from relief_ray.records.schema import Facts, RunRecord
from relief_ray.support.process import use_threads

_MAX_VOID_RETRIES = 2
_GRACE_S = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Answer to the question how a run goes on; its rounds are in its ledger."""

    path: Path | None
    """The run's folder; None until a run has begun."""
    notes: tuple[str, ...]
    """What the asker has not heard of repairs, workers, limits and void rounds, in order."""
    place: tuple[int, str]
    """The coordinator's process id and node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """Request to run an experiment."""

    setup: ray.ObjectRef[Setup]
    """Everything that the run needs."""
    path: Path
    """An existing run folder without a driver, absolute."""
    group: WorkerGroup
    """The workers that its clients run on."""
    options: RuntimeConfig
    """How they run."""


def after_grace(should_stop: Callable[[], bool], grace_s: float = _GRACE_S) -> Callable[[], bool]:
    """Turn "stop after this round" into "stop now": true once the round has had ``grace_s`` seconds more."""
    since_s: float | None = None

    def is_over() -> bool:
        nonlocal since_s
        if since_s is None and should_stop():
            since_s = time.monotonic()
        return since_s is not None and time.monotonic() - since_s > grace_s

    return is_over


def run_with_retries(
    experiment: Experiment,
    on_round: OnRound,
    should_stop: Callable[[], bool],
    on_note: Callable[[str], None],
    recover: Callable[[], None],
) -> RunRecord:
    """Run an experiment to its end or to a stop; a void round is tried thrice.

    ``on_note`` hears why a round is tried again; ``recover`` waits for lost workers before that. A stop in the meantime
    leaves in ``run.json`` why the round was void and whom it lacked.

    Raises:
        RoundVoid: the round stays void.
    """
    void_round, num_tries = -1, 0
    void: Facts = {}
    while True:
        try:
            run = experiment.run(on_round, should_stop)
            break
        except Interrupted:
            reason = void if experiment.next_round == void_round else {}
            run = experiment.folder.update(status="interrupted", **reason)
            break
        except RoundVoid as error:
            num_tries = num_tries + 1 if experiment.next_round == void_round else 1
            void_round = experiment.next_round
            void = experiment.folder.run.model_dump(mode="json", include={"note", "left_out"})
            if num_tries > _MAX_VOID_RETRIES:
                raise
            on_note(f"void, tried again ({num_tries} of {_MAX_VOID_RETRIES}): {error}")
            with suppress(Interrupted):  # a stop was asked for then
                recover()
            if should_stop():
                run = experiment.folder.update(status="interrupted")
                break
    if run.status == "interrupted":
        experiment.keep()
    return run


def run_on_workers(
    setup: Setup,
    path: Path,
    group: WorkerGroup,
    options: RuntimeConfig,
    should_stop: Callable[[], bool],
    on_note: Callable[[str], None],
    on_round: OnRound | None = None,
) -> RunRecord:
    """Run the remaining rounds of the run in ``path`` in this process, its clients on the workers of ``group``.

    ``on_round`` is called with every committed round; None: gauges show it.

    Raises:
        UserError, RoundVoid, ClientFailed: as the rounds raise them.
    """
    executor = RayExecutor(setup.job, group, options, after_grace(should_stop), on_note=on_note)
    shown = on_round or _shown(setup, path, executor.pool)

    def drive(experiment: Experiment) -> RunRecord:
        return run_with_retries(experiment, shown, should_stop, on_note, executor.pool.recover)

    return run_opened(setup, path, lambda job: executor, on_note=on_note, drive=drive)


def _shown(setup: Setup, path: Path, pool: WorkerPool) -> OnRound:
    """Shows each round in the run's gauges, with the memory of its workers."""
    gauges = Gauges(cell=path.resolve().name, setup=setup)
    return lambda record: gauges.show(record, pool.peak_mib)


class Coordinator:
    """Runs an experiment in a process of its own; wrapped by ``ray.remote`` with a "control" group of threads."""

    def __init__(self, name: str = "coordinator") -> None:
        """Start without a run."""
        self._name = name
        self._path: Path | None = None
        self._notes: list[str] = []
        self._stopping = False

    def __repr__(self) -> str:
        """Name in Ray's dashboard and logs."""
        return self._name

    def run(self, request: RunRequest) -> RunRecord:
        """Run the remaining rounds.

        Raises:
            UserError, RoundVoid, ClientFailed: as the rounds raise them.
        """
        # An error's traceback, which says whose code it was, and its cause do not travel.
        with naming_users_code(), errno_travels():
            setup = serialization.get(request.setup)
            use_threads(setup.job.num_threads)
            self._notes, self._path = [], request.path
            return run_on_workers(
                setup, request.path, request.group, request.options, lambda: self._stopping, self._notes.append
            )

    @ray.method(concurrency_group="control")
    def progress(self, num_notes: int = 0) -> Progress:
        """All notes but the first ``num_notes``, and what is going on; answered during a round."""
        return Progress(path=self._path, notes=tuple(self._notes[num_notes:]), place=(os.getpid(), driver_node()))

    @ray.method(concurrency_group="control")
    def stop(self) -> None:
        """Ask to stop after the round, or within seconds where that takes longer."""
        self._stopping = True
