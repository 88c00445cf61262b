"""The plain loop around ``run_round``: evaluate, record, checkpoint, resume. The same for every executor.

A round is committed in this order: its line in ``rounds.jsonl``, clients' personal state, then its checkpoint, which is
written while the next round trains. A run killed anywhere continues from the last checkpoint with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import get_args

from relief_ray.config import ExperimentConfig, RuntimeConfig, parse
from relief_ray.errors import UserError
from relief_ray.federated import RoundResult, run_round
from relief_ray.messages import ClientInfo
from relief_ray.models.frozen import differing
from relief_ray.process import choose_device
from relief_ray.protocols import Executor
from relief_ray.recording import binding_of, calibration_of, now, round_record, run_record
from relief_ray.records.checkpoint import Checkpoint
from relief_ray.records.identity import other_program
from relief_ray.records.ledger import RunFolder
from relief_ray.records.personal import CheckpointStateStore
from relief_ray.records.reading import read_run
from relief_ray.records.resume import restore
from relief_ray.records.saver import Saver
from relief_ray.records.schema import Metrics, RoundRecord, RunRecord, Status, Totals
from relief_ray.records.tracking import NullTracker, Tracker
from relief_ray.setup import (
    Setup,
    context_of,
    deadline_s,
    prepare,
    subject_names,
)
from relief_ray.stages import Engine
from relief_ray.tested import tested
from relief_ray.training.job import Job
from relief_ray.training.metrics import summarise

OnRound = Callable[[RoundRecord], None]
MakeExecutor = Callable[[Job], Executor]


def never() -> bool:
    """Nobody asks to stop."""
    return False


def ignore(record: RoundRecord) -> None:
    """Nobody watches."""


@dataclass(kw_only=True)
class Experiment:
    """One run in one folder; ``run`` goes on from wherever the folder is."""

    setup: Setup
    folder: RunFolder
    executor: Executor
    tracker: Tracker = field(default_factory=NullTracker)

    def __post_init__(self) -> None:
        """Loads the newest checkpoint, or starts from the initial model."""
        setup = self.setup
        self.binding = binding_of(setup)
        restored = restore(self.folder, self.binding)
        found, past, self.repairs = restored.checkpoint, restored.rounds, restored.repairs
        self.store = CheckpointStateStore(found.clients if found else {})
        fresh = partial(setup.strategy.init, setup.layout, setup.fleet, setup.streams, setup.start)
        self.state = found.state if found else fresh()
        self.totals: Mapping[str, Totals] = past[-1].totals if past else {}
        self.target_s = deadline_s(setup)
        self.next_round = found.round + 1 if found else (0 if setup.strategy.bootstrap else 1)
        self.saved_round = self.next_round - 1
        self.saver = Saver()

    def run(self, on_round: OnRound = ignore, should_stop: Callable[[], bool] = never) -> RunRecord:
        """Runs the remaining rounds; stops between rounds when asked to.

        Raises:
            RoundVoid: no client returned a usable update; the folder stays resumable.
        """
        self.tracker.start(self.folder.update(status="running"), self.folder.path)
        status: Status = "failed"
        try:
            while self.next_round <= self.setup.config.rounds and not should_stop():
                record = self._round(self.next_round)
                self.tracker.round(record)
                on_round(record)
            if self.next_round - 1 > self.saved_round:
                self._save()
            self.saver.wait()
            status = "finished" if self.next_round > self.setup.config.rounds else "interrupted"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            with suppress(UserError):  # another error is on its way already
                self.saver.wait()
            run = self.folder.update(status=status, finished=now())
            self.tracker.finish(status)
        return run

    def _round(self, round_: int) -> RoundRecord:
        began = perf_counter()
        setup = self.setup
        context = context_of(setup, round_, self._participants(round_))
        try:
            result = run_round(setup.strategy, self.state, context, self.executor, self.store, setup.accountant)
            metrics = self._evaluate(result) if self._is_evaluated(round_) else {}
            record = round_record(
                setup,
                context,
                result,
                metrics=metrics,
                began_s=began,
                before=self.totals,
                target_s=self.target_s,
            )
            self.folder.append(record)
        except BaseException:
            # Whoever tries the round again starts from what the last one committed.
            self.store.discard()
            raise
        self.store.commit()
        self.state, self.totals, self.next_round = result.state, record.totals, round_ + 1
        if round_ % setup.config.record.checkpoint_every == 0 or round_ == setup.config.rounds:
            self._save()
        return record

    def _save(self) -> None:
        point = Checkpoint(round=self.next_round - 1, state=self.state, clients=dict(self.store.committed))
        self.saver.save(self.folder.path, point, self.binding)
        self.saved_round = point.round

    def _participants(self, round_: int) -> tuple[ClientInfo, ...]:
        """``max(1, round(p N))`` clients without replacement; the bootstrap round uses all."""
        clients = self.setup.fleet.clients
        share = self.setup.config.participation
        if share >= 1.0 or (round_ == 0 and self.setup.strategy.bootstrap):
            return clients
        number = max(1, round(share * len(clients)))
        chosen = self.setup.streams.numpy("participation", round_).choice(len(clients), size=number, replace=False)
        return tuple(clients[i] for i in sorted(chosen))

    def _is_evaluated(self, round_: int) -> bool:
        return round_ % self.setup.config.evaluation.every == 0 or round_ == self.setup.config.rounds

    def _evaluate(self, result: RoundResult) -> dict[str, Metrics]:
        setup, state = self.setup, result.state
        what = tested(setup, state, {**self.store.committed, **result.trained.states})
        found = {}
        for part, windows in setup.job.parts.items():
            matrices = self.executor.evaluate(what.models, what.targets, what.states, part)
            found[part] = summarise(matrices, what.plan, setup.rare, subject_names(setup, windows))
        return found


def stored_engine(run: RunRecord) -> Engine:
    """The engine a run was started with; a resume obeys it."""
    known: tuple[Engine, ...] = get_args(Engine)
    for engine in known:
        if engine == run.engine:
            return engine
    raise UserError(f"run {run.cell}: engine {run.engine!r} is unknown to this version; known: {', '.join(known)}")


def create(
    config: ExperimentConfig, path: Path, root: Path | None = None, *, parent: str | None = None
) -> tuple[Setup, RunFolder]:
    """A new run in a new folder; ``parent`` names the grid that it is a cell of."""
    setup = prepare(config, root)
    return setup, RunFolder.create(path, run_record(setup, parent))


def reopen(
    path: Path, root: Path | None = None, *, runtime: RuntimeConfig | None = None, other_code: bool = False
) -> tuple[Setup, RunFolder]:
    """An existing run, with the engine and the data it was started with; it counts as resumed.

    ``runtime``: where it is carried out from now on; ``other_code``: may another program go on with it?

    Raises:
        UserError: data, device profile or program are not the same any more, or the configuration cannot be read by
            this version.
    """
    run = read_run(path)
    config = parse(run.config, str(path / "run.json"))
    if runtime is not None:
        config = config.model_copy(update={"runtime": runtime})
    why = other_program(run)
    if why is not None and not other_code:
        raise UserError(
            f"{path}: was begun by another program ({why}); a resume would mix both in one run; use the one that "
            "began it, start a new run, or allow it with --other-code (the record then says so)"
        )
    setup = as_begun(run, path, config, root)
    device = choose_device("cuda" if run.machine.device.startswith("cuda") else "cpu")
    setup = replace(setup, job=replace(setup.job, trainer=replace(setup.job.trainer, device=device)))
    folder = RunFolder.resume(path)
    mixed = [] if why is None else [f"resumed by another program: {why}"]
    folder.update(num_resumes=folder.run.num_resumes + 1, warnings=[*folder.run.warnings, *mixed])
    return setup, folder


def as_begun(run: RunRecord, path: Path, config: ExperimentConfig, root: Path | None = None) -> Setup:
    """The setup of the run in ``path`` by its recorded ``config``, with its engine, on its data.

    Raises:
        UserError: data, frozen encoder or clocks are others today.
    """
    setup = prepare(config, root, engine=stored_engine(run))
    refuse_changes(setup, run, path)
    return setup


def refuse_changes(setup: Setup, run: RunRecord, path: Path) -> None:
    """Compares what a run was begun on with what was found now.

    Raises:
        UserError: other data, another frozen encoder, or other clocks.
    """
    if setup.data.digest != run.data_digest:
        raise UserError(
            f"{path}: was computed on data {run.data_digest[:12]}, found {setup.data.digest[:12]}; "
            "resume where the same data are (RELIEF_DATA), or start a new run"
        )
    if differing(run.backbone, setup.frozen):
        raise UserError(
            f"{path}: was computed on the frozen encoder {run.backbone}, found {dict(setup.frozen)}; "
            "give backbone.weights the same files, or start a new run"
        )
    if calibration_of(setup) != run.calibration:
        raise UserError(
            f"{path}: the clocks are not those it was begun with (another device profile in "
            f"{setup.config.costs.profile}, or other fitted values); resume with the old ones, or start a new run"
        )


__all__ = ["Experiment", "create", "reopen", "run_record"]
