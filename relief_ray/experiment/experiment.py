"""The loop around ``run_round``: evaluate, record, checkpoint, resume; the same for every executor.

A round is committed in this order: its line in ``rounds.jsonl``, clients' personal state, then its checkpoint, which is
written while the next round trains. A run killed anywhere continues from the last checkpoint with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, time
from typing import Protocol, runtime_checkable

from relief_ray.config.experiment import ExperimentConfig
from relief_ray.core.federated import RoundResult, RoundVoid, run_round
from relief_ray.core.messages import ClientInfo
from relief_ray.core.protocols import Executor
from relief_ray.experiment.evaluation import advanced, client_views, evaluation_inputs, is_tested
from relief_ray.experiment.lifecycle import create, reopen
from relief_ray.experiment.recording import UntrainedGroups, binding_of, round_record, speedup_at_paper
from relief_ray.experiment.setup import Setup, context_of, deadline_s, subject_names
from relief_ray.experiment.update_filter import Accepting
from relief_ray.plugins.blame import reason
from relief_ray.records.cells import refuse_linked
from relief_ray.records.checkpoint import Averages, Checkpoint, CheckpointStateStore, Saver, Tally
from relief_ray.records.facts import LeftOutLog
from relief_ray.records.metrics import summarise
from relief_ray.records.run_folder import RUN_FILE, RunFolder, restore
from relief_ray.records.schema import Facts, Metrics, RoundRecord, RunRecord, RunStatus, Totals
from relief_ray.server.optimizer import server_step
from relief_ray.support.errors import UserError
from relief_ray.support.text import now
from relief_ray.training.executor import SerialExecutor
from relief_ray.training.job import Job

OnRound = Callable[[RoundRecord], None]

MakeExecutor = Callable[[Job], Executor]

Stop = Callable[[], bool]


def never() -> bool:
    """Return False: the default of ``should_stop``."""
    return False


def same(setup: Setup) -> Setup:
    """Return the setup: the default of ``adapt``."""
    return setup


def ignore(value: object) -> None:
    """Do nothing: the default of ``on_round`` and ``on_note``."""


@dataclass(kw_only=True)
class Experiment:
    """One run in one folder.

    Attributes:
        setup: everything that the run needs.
        folder: its folder, under this process's lock.
        executor: where its clients run.
    """

    setup: Setup
    folder: RunFolder
    executor: Executor

    def __post_init__(self) -> None:
        """Load the newest checkpoint, or start from the initial model."""
        setup = self.setup
        self.binding = binding_of(setup, self.folder.run)
        restored = restore(self.folder, self.binding)
        last, self.repairs = restored.last, restored.repairs
        point = restored.checkpoint or Checkpoint(
            round=0, state=setup.strategy.init(setup.layout, setup.fleet, setup.streams, setup.start)
        )
        self.store = CheckpointStateStore(point.clients)
        self.state, self.averages = point.state, point.averages
        self.totals: Mapping[str, Totals] = last.totals if last else {}
        self.target_s = deadline_s(setup)
        self.saved_round, self.next_round = point.round, point.round + 1
        self.saver = Saver()
        self.accepting = Accepting(executor=self.executor, quorum=setup.config.runtime.quorum)
        self.left_out = LeftOutLog(
            entries={(e.client, e.cause): e for e in point.tally.left_out}, last=last.left_out if last else {}
        )
        self.untrained = UntrainedGroups(
            layout=setup.fedavg.counter.layout, name=setup.config.label(), missed=dict(point.tally.untrained)
        )

    def run(self, on_round: OnRound = ignore, should_stop: Stop = never) -> RunRecord:
        """Run the remaining rounds; stop between rounds when ``should_stop`` says so.

        Whatever it raises, ``run.json`` keeps the reason, and whom a void round lacked.

        Raises:
            RoundVoid: too few clients returned a usable update; the run can be resumed.
        """
        self.folder.update(status="running", runtime=self._where(), note="", left_out=self.left_out.summary())
        status: RunStatus = "failed"
        note, left_out = "", self.left_out
        try:
            while self.next_round <= self.setup.config.rounds and not should_stop():
                on_round(self._round(self.next_round))
            self.keep()
            status = "done" if self.next_round > self.setup.config.rounds else "interrupted"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        except RoundVoid as void:
            note, left_out = str(void), self.left_out.with_void(self.next_round, void.rejected, self.setup.fleet)
            raise
        except Exception as error:
            note = reason(error)
            raise
        finally:
            with suppress(UserError):  # another error is being raised already
                self.saver.wait()
            run = self.folder.update(
                status=status, finished=now(), note=note, runtime=self._where(), left_out=left_out.summary()
            )
        return run

    def keep(self) -> None:
        """Save the last committed round where the regular checkpoints are farther apart; return once it is on disk."""
        if self.next_round - 1 > self.saved_round:
            self._save()
        self.saver.wait()

    def _where(self) -> Facts:
        """Facts on where clients run, and how often that failed so far."""
        return self.executor.facts() if isinstance(self.executor, Placed) else {"mode": "inline"}

    def _round(self, round_: int) -> RoundRecord:
        began = perf_counter()
        setup = self.setup
        context = context_of(setup, round_, self._participants(round_))
        try:
            step = partial(server_step, setup.config.server)
            result = run_round(setup.strategy, self.state, context, self.accepting, self.store, setup.accountant, step)
            identities = setup.strategy.averaging.identities(result.state)
            averages = advanced(setup.config, self.averages, round_, result.state, identities)
            metrics = self._evaluate(result, averages) if is_tested(setup.config, round_) else {}
            record = round_record(
                setup,
                context,
                result,
                metrics=metrics,
                wall_s=perf_counter() - began,
                ended_unix_s=time(),
                before=self.totals,
                deadline_s=self.target_s,
                speedup_paper=speedup_at_paper(setup, result.charged, context.participants),
                left_out=self.left_out.facts(round_, result.trained.rejected, setup.fleet),
                warnings=(
                    *setup.missed(round_),
                    *self.untrained.add_updates(
                        round_,
                        [s for r in result.trained.worked for s in r.sq_norm.values()],
                        is_idle=bool(context.participants) and not result.tasks,
                    ),
                    *self.untrained.add(
                        round_,
                        context.participants,
                        [j for r in result.trained.worked for j in r.assignment.train],
                        setup.strategy.insight.rests(context),
                    ),
                ),
            )
            self.folder.append(record)
        except BaseException:
            # A second try of the round starts from the state that the last one committed.
            self.store.discard()
            raise
        self.store.commit()
        self.left_out.add(record)
        self.state, self.averages = result.state, averages
        self.totals, self.next_round = record.totals, round_ + 1
        last = setup.config.rounds
        # `experiment.verify` begins before the last round.
        is_needed = round_ == last or (round_ == last - 1 and bool(setup.config.modules()))
        if round_ % setup.config.record.checkpoint_every == 0 or is_needed:
            self._save()
        return record

    def checkpoint(self) -> Checkpoint:
        """The last committed round, as a resume would go on from it."""
        return Checkpoint(
            round=self.next_round - 1,
            state=self.state,
            clients=self.store.committed,
            averages=self.averages,
            tally=Tally(untrained=dict(self.untrained.missed), left_out=self.left_out.summary()),
        )

    def _save(self) -> None:
        point = self.checkpoint()
        self.saver.save(self.folder.path, point, self.binding)
        self.saved_round = point.round

    def _participants(self, round_: int) -> tuple[ClientInfo, ...]:
        """Draw ``max(1, round(p N))`` of the clients that are there without replacement, or take all of them.

        All are taken where the method needs everybody. Who is there is drawn by round and client (``available``).
        """
        everyone, clients = self.setup.fleet.clients, self.setup.there(round_)
        share = self.setup.config.participation
        if share >= 1.0 or self.setup.strategy.everybody(self.state):
            return clients
        number = min(len(clients), max(1, round(share * len(everyone))))
        chosen = self.setup.streams.numpy("participation", round_).choice(len(clients), size=number, replace=False)
        return tuple(clients[i] for i in sorted(chosen))

    def _evaluate(self, result: RoundResult, averages: Averages) -> dict[str, Metrics]:
        setup, state = self.setup, result.state
        personal = {**self.store.committed, **result.trained.states}
        inputs = evaluation_inputs(setup, state, personal, averages)
        metrics = {}
        for part, windows in setup.job.parts.items():
            matrices = self.executor.evaluate(inputs.models, inputs.targets, inputs.states, part)
            names, views = subject_names(setup, windows), client_views(setup.job, windows)
            sensors, own = setup.fleet.modalities, setup.metrics
            metrics[part] = summarise(matrices, inputs.plan, setup.rare, names, views, sensors, own)
        return metrics


@runtime_checkable
class Placed(Protocol):
    """An executor that says where its clients run."""

    def facts(self) -> Facts:
        """Facts for ``run.json``."""


def open_cell(config: ExperimentConfig, path: Path, *, parent: str | None = None, other_code: bool = False) -> Setup:
    """Create the run of a configuration in ``path``, or reopen it; how it is carried out may have changed since.

    Args:
        config: what is computed, and where (``runtime``).
        path: the run's folder, which is closed again.
        parent: name of the grid that it is a cell of.
        other_code: go on with a run that another program began.

    Raises:
        UserError: the folder is a link beside its plan or holds something else, or data, program or clocks are not
            those it was begun with.
    """
    refuse_linked(path)
    if (path / RUN_FILE).exists():
        setup, folder = reopen(path, runtime=config.runtime, other_code=other_code)
    else:
        setup, folder = create(config, path, parent=parent)
    folder.close()
    return setup


def run_opened(
    setup: Setup,
    path: Path,
    make_executor: MakeExecutor = SerialExecutor,
    should_stop: Stop = never,
    *,
    on_round: OnRound = ignore,
    on_note: Callable[[str], None] = ignore,
    drive: Callable[[Experiment], RunRecord] | None = None,
) -> RunRecord:
    """Run the remaining rounds of the run in ``path``: the one place, whatever executes its clients.

    Args:
        setup: what ``open_cell`` returned.
        path: the run's folder, closed.
        make_executor: where its clients run; by default in this process, one after the other.
        should_stop: polled; True asks the run to stop after its round.
        on_round: called with every committed round.
        on_note: called with messages for the user, e.g. repairs of the run folder.
        drive: runs the rounds, e.g. with retries; None: ``Experiment.run``.

    Raises:
        RoundVoid: no client returned a usable update; the folder stays resumable.
    """
    with RunFolder.resume(path) as folder, closing(make_executor(setup.job)) as executor:
        experiment = Experiment(setup=setup, folder=folder, executor=executor)
        for repair in experiment.repairs:
            on_note(f"repaired: {repair}")
        return experiment.run(on_round, should_stop) if drive is None else drive(experiment)


def run_cell(
    config: ExperimentConfig,
    path: Path,
    make_executor: MakeExecutor = SerialExecutor,
    should_stop: Stop = never,
    *,
    adapt: Callable[[Setup], Setup] = same,
) -> RunRecord:
    """Create or reopen the run of a configuration in ``path`` and run its remaining rounds.

    ``adapt``: changes what was set up, e.g. instruments a method that is judged.
    """
    return run_opened(adapt(open_cell(config, path)), path, make_executor, should_stop)
