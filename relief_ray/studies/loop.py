"""The loop over the cells of a study: one after the other in this process, or as a scheduler says (``actors.grids``).

Whoever computes a cell writes its folder; the loop reads the new lines of the running cells' ledgers and tells the
callback, after each round of a cell that this process computes, else twice a second. ``run`` is ``relief_ray.run``.
"""

from __future__ import annotations

import logging
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import entry_points
from itertools import groupby
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from relief_ray.config.experiment import EvaluationConfig, ExperimentConfig, RecordConfig, parse
from relief_ray.data import federate, num_clients, open_dataset
from relief_ray.data.partition import available
from relief_ray.experiment.experiment import Stop, never, open_cell, run_opened
from relief_ray.experiment.lifecycle import naming_data
from relief_ray.experiment.setup import Setup
from relief_ray.experiment.verify import verified
from relief_ray.plugins.blame import has_users_code, naming_users_code, take_as_users
from relief_ray.plugins.fresh import Asker, call_fresh
from relief_ray.plugins.load import is_path, sources
from relief_ray.records.checkpoint import last_saved
from relief_ray.records.facts import Alerts
from relief_ray.records.ledger import LedgerEnd, LineFormat, scan
from relief_ray.records.lock import is_folder_locked
from relief_ray.records.run_folder import ROUNDS_FILE, RUN_FILE, read_run
from relief_ray.records.schema import PARTLY, VERIFIED, RoundRecord, RunRecord, Status
from relief_ray.records.sync.sender import Senders
from relief_ray.report.runs import draw_of, variant_names
from relief_ray.strategies import facts_of, method_name
from relief_ray.studies.copies import Say, copied
from relief_ray.studies.plan import Plan, State, look_at, refuse_stale
from relief_ray.studies.progress import Callback, End, Leader, Running, View, display, headline_f1
from relief_ray.studies.request import (
    BackboneLike,
    Folds,
    Place,
    Request,
    Seeds,
    StrategyLike,
    Target,
    plan_of,
)
from relief_ray.studies.spec import HASH_DIGITS, Cell, Values
from relief_ray.studies.study import Study
from relief_ray.support.errors import UserCodeError, UserError, counted, in_python, keywords, listed, option
from relief_ray.support.process import refuse_changed_torch, threads
from relief_ray.support.text import install
from relief_ray.training.executor import SerialExecutor
from relief_ray.training.inputs import InputCache

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    from relief_ray.config.runtime import RuntimeConfig, TrackingConfig
    from relief_ray.data.config import DataConfig
    from relief_ray.data.loader import Loader
    from relief_ray.devices.accounting import CostConfig
    from relief_ray.devices.fleet import FleetConfig
    from relief_ray.server.optimizer import ServerConfig
    from relief_ray.training.config import TrainingConfig

    class Settings(TypedDict, total=False):
        """Sections of a configuration: a mapping changes the keys it names, an object replaces the section."""

        data: str | Loader | DataConfig | Values
        backbone: BackboneLike
        fleet: FleetConfig | Values
        training: TrainingConfig | Values
        server: ServerConfig | Values
        evaluation: EvaluationConfig | Values
        costs: CostConfig | Values
        record: RecordConfig | Values
        runtime: RuntimeConfig | Values
        tracking: TrackingConfig | Values
        participation: float
        metrics: str | Callable[..., float] | Sequence[str | Callable[..., float]]


_LOG = logging.getLogger(__name__)
_REFRESH_S = 0.5
Tell = Callable[..., None]


@dataclass(kw_only=True)
class Computer:
    """Computes cells that were opened: this one in this process, ``actors.launch.OnRay`` on Ray."""

    lost: Say | None = None
    """Called where Ray does not answer any more."""
    inputs: InputCache = field(default_factory=InputCache)
    """Prepared windows of the last cell, of which the next one may have some."""

    def where(self, setup: Setup) -> str:
        """Where its clients are computed, in words."""
        return "in this process"

    def compute(self, setup: Setup, path: Path, stop: Stop, on_note: Say) -> RunRecord:
        """Compute the missing rounds of the run in ``path``; ``stop`` is asked between rounds, and often."""
        with threads(setup.job.num_threads):
            make = partial(SerialExecutor, inputs=self.inputs)
            return run_opened(setup, path, make, stop, on_note=on_note)

    def carry_out(self, loop: Loop, jobs: int | None = 1, *, other_code: bool = False) -> None:
        """Compute a loop's cells, here one after the other; the first error ends it.

        Cells are computed in this process, unless users' code takes part. Then each cell with such code has a process
        of its own, and those without have others, which none has touched.

        ``jobs``: cells at a time, None: as many as there are places; ``other_code``: other programs' runs go on.
        """
        take_as_users(module for state in loop.states for module in state.config.modules())
        todo = {state.name for state in loop.todo}

        def hear(event: str, *arguments: object) -> None:
            getattr(self if event == "lost" else loop, event)(*arguments)

        try:
            for (is_finished, _), group in groupby(loop.states, key=_process_of):
                if loop.stop():
                    return
                states = [state for state in group if is_finished or state.name in todo]
                if is_finished:
                    for state in states:
                        loop.reuse(state)
                elif has_users_code():
                    # Users' code may change the working folder there.
                    cells = [(s.name, s.config.model_dump(mode="json"), s.folder.absolute()) for s in states]
                    arguments = self.unopened(), cells, other_code, keywords()
                    call_fresh(_compute_for, *arguments, hear=hear, stop=loop.stop)
                else:
                    here = ((s.name, s.config, s.folder) for s in states)
                    _compute(hear, loop.stop, self, here, other_code)
        except BaseException:
            loop.give_up_all()
            raise

    def unopened(self) -> Computer:
        """The same for another process, without what is open in this one."""
        return self

    def opened(self, tell: Tell) -> AbstractContextManager[object]:
        """In that process: compute inside the block, and ``tell`` what concerns the asker (``note``, ``lost``)."""
        return nullcontext()


@dataclass(kw_only=True)
class _Followed:
    """A cell that is being computed.

    Attributes:
        state: its cell and folder.
        since_s: monotonic clock at its beginning.
        last: the last round that was told of, or that it goes on after; 0 before the first.
        is_running: its ``run.json`` says so: what a resume drops of the ledger is gone by then.
        has_warned: what is odd about its data was told.
        lines: format of its ledger, once it is known.
        end: how far its ledger has been read.
        f1: of its last evaluation.
        alerts: what its rounds warn of.
    """

    state: State
    since_s: float = field(default_factory=time.monotonic)
    last: int = 0
    is_running: bool = False
    has_warned: bool = False
    lines: LineFormat | None = None
    end: LedgerEnd | None = None
    f1: float | None = None
    alerts: Alerts = field(default_factory=Alerts)

    def new_rounds(self) -> tuple[RoundRecord, ...]:
        """The rounds that were committed since the last call."""
        folder = self.state.folder
        try:
            if self.lines is None:
                run = read_run(folder)
                # After a kill the ledger still has rounds that a resume drops, until the next driver locks the folder.
                is_left = run.status == "running" and not is_folder_locked(folder)
                if not self.is_running and (is_left or run.status in ("interrupted", "failed")):
                    return ()
                self.is_running, self.lines = True, LineFormat.of(run)
            lines = scan(folder / ROUNDS_FILE, self.lines, self.end)
            new = tuple(lines.rounds.where(lambda number: number > self.last))
        except UserError:  # not there yet; or damaged: the cell itself will say so, and the others go on
            self.lines = self.end = None
            return ()
        self.end = lines.end
        for record in new:
            self.last = record.round
            f1 = headline_f1(record)
            self.f1 = self.f1 if f1 is None else f1
        return new


class Loop:
    """Cells under computation, as their folders show them.

    Attributes:
        plan: the plan that they belong to.
        states: all of its cells as they were at the beginning.
        todo: those that are to be computed.
        callback: hears of everything.
        disk_full: whether a cell failed because nothing can be written any more.
        stop_requested: whether a stop was asked for; reads no ledger.
        senders: hear of begun runs, of their rounds and of their ends.
    """

    def __init__(self, plan: Plan, callback: Callback, todo: Iterable[State], stop: Stop = never) -> None:
        """``stop``: asks all cells to stop after their round."""
        wanted = {state.name for state in todo}
        self.plan, self.callback, self.stop_requested = plan, callback, stop
        self.states = replace(plan, cells=_titled(plan)).look()
        self.todo = tuple(state for state in self.states if state.name in wanted)
        self.disk_full, self.senders = False, Senders((), callback.note)
        self._states = {state.name: state for state in self.states}  # as they are now, but for running cells
        self._left = {state.name: rounds_to_do(state) for state in self.todo}
        self._scores: dict[str, float] = {}
        for state in self.states:
            if state.status == "done":
                self._keep_score(state, state.last_tested())
        self._running: dict[str, _Followed] = {}
        self._told: set[str] = set()
        self._since_s, self._first_s, self._refreshed_s, self._num_new = time.monotonic(), 0.0, 0.0, 0

    def stop(self) -> bool:
        """Whether cells should stop after their round; asked between rounds, so that the callback hears of each."""
        self._follow_all()
        return self.stop_requested()

    def tick(self) -> None:
        """Tell the callback how the study stands, twice a second; called many times a second."""
        if time.monotonic() - self._refreshed_s >= _REFRESH_S:
            self._refreshed_s = time.monotonic()
            self._follow_all()
            self.callback.refresh(self.view())

    def begin(
        self,
        name: str,
        text: str = "",
        last: int | None = None,
        data_notes: Iterable[str] = (),
        warnings: Iterable[str] = (),
        devices: str = "",
    ) -> None:
        """Follow a cell that begins.

        Args:
            name: its name.
            text: facts on it.
            last: the round that it goes on after; None: look.
            data_notes: what is odd about its data.
            warnings: what else is to be said of it.
            devices: its fleet in a line, told with the first cell that has it.
        """
        if name in self._running:
            return
        self._first_s = self._first_s or time.monotonic()
        state = self._states[name]
        last = last_saved(state.folder) if last is None else last
        self._running[name] = _Followed(state=state, last=last)
        self.callback.begin(state.cell, text, last or None)
        if devices and devices not in self._told:
            self._told.add(devices)
            self.callback.note(devices)
        self.warn_once(data_notes)
        for warning in warnings:
            self.note(name, f"NOTE: {warning}")

    def note(self, name: str, text: str) -> None:
        """Tell something of a cell; of none where the name is empty."""
        self.callback.note(f"{self._states[name].cell.title}: {text}" if name else text)

    def give_up(self, name: str) -> _Followed | None:
        """Stop following a cell whose computation is over, after the callback has heard of its last rounds."""
        running = self._running.pop(name, None)
        if running is not None:
            running.is_running = True
            self._follow(running)
            self.senders.end(running.state.folder)
        return running

    def give_up_all(self) -> None:
        """Stop following all cells."""
        for name in tuple(self._running):
            self.give_up(name)

    def end(self, name: str, status: Status | None = None) -> None:
        """A cell has ended; ``status``: of its run, which this process computed; None: that of its folder."""
        running = self.give_up(name)
        before = self._states[name]
        state = self._states[name] = look_at(before.cell, before.folder)
        self._left.pop(name, None)
        self.disk_full = self.disk_full or is_disk_full(state)
        if (run := state.run) is not None and run.own_code:
            what = "start, first and last round computed once more, " if run.own_code.startswith(VERIFIED) else ""
            text = f"own code: {run.own_code} ({what}{run.own_code_s:.1f} s)"
            if run.own_code in (VERIFIED, PARTLY):
                self.note(name, text)
            else:
                self.callback.warn(text, f"{state.cell.title}: ")
        is_done = state.status == "done"
        record = state.last_tested() if is_done or status is not None else None
        if is_done:
            self._keep_score(state, record)
        seconds = time.monotonic() - running.since_s if running else 0.0
        why = state.why if status is None else ""
        end = End(status=status or state.status, seconds=seconds, record=record, why=why, view=self.view())
        self.callback.end(state.cell, end)

    def end_all(self) -> None:
        """End the cells that were running at a stop: Tune does not say how their trials end."""
        for name in tuple(self._running):
            self.end(name)

    def reuse(self, state: State) -> None:
        """Tell of a run that was finished before.

        Raises:
            UserError: the data are others.
        """
        why, view = check_reusable(state), self.view()
        end = End(status=state.status, record=state.last_tested(), why=why, reused=True, view=view)
        self.callback.end(state.cell, end)

    def warn_once(self, warnings: Iterable[str]) -> None:
        """Print each data warning once, not for every cell."""
        for warning in warnings:
            if warning not in self._told:
                self._told.add(warning)
                self.callback.warn(warning)

    def _follow_all(self) -> None:
        for running in self._running.values():
            self._follow(running)

    def _follow(self, running: _Followed) -> None:
        """Tell of the new lines of a cell's ledger."""
        cell = running.state.cell
        if not running.has_warned and (running.state.folder / RUN_FILE).exists():
            running.has_warned = True
            self.senders.wake(running.state.folder)
            with suppress(UserError):
                self.warn_once(read_run(running.state.folder).data_notes)
        for record in running.new_rounds():
            self.callback.round(cell, record)
            for alert in running.alerts.of(record):
                self.callback.warn(alert, f"{cell.title}: ")
            self.senders.wake(running.state.folder)
        if (before := self._left.get(cell.name)) is not None:
            self._left[cell.name] = left = min(before, max(0, cell.config.rounds - running.last))
            self._num_new += before - left

    def _keep_score(self, state: State, record: RoundRecord | None) -> None:
        if (f1 := headline_f1(record)) is not None:
            self._scores[state.name] = f1

    def view(self) -> View:
        """The study as it stands now."""
        now_s = time.monotonic()
        rate = self._num_new / (now_s - self._first_s) if self._first_s else 0.0
        statuses = [state.status for name, state in self._states.items() if name not in self._running]
        return View(
            f1_heading=f1_heading(self.states),
            num_cells=len(self.states),
            num_done=statuses.count("done"),
            num_failed=statuses.count("failed"),
            num_stopped=statuses.count("stopped"),
            elapsed_s=now_s - self._since_s,
            left_s=sum(self._left.values()) / rate if rate else None,
            running=tuple(
                Running(title=r.state.cell.title, num_rounds=r.last, num_planned=r.state.config.rounds, f1=r.f1)
                for r in self._running.values()
            ),
            leaders=leaders(self.states, self._scores),
        )


def compute(
    plan: Plan,
    how: Callable[[Loop], None],
    callback: Callback,
    todo: Iterable[State],
    stop: Stop = never,
    out_of_time: Stop = never,
) -> Loop:
    """Compute these cells of the plan, in the way ``how``, while its records are copied.

    ``stop`` is asked between rounds; so is ``out_of_time``, after which the copy is waited for as at a good end.

    Raises:
        UserError: data, program or settings of a begun run are others than today's, or the copy's URI is none.
    """
    loop = Loop(plan, callback, todo, lambda: stop() or out_of_time())
    loop.warn_once(plan.untested())
    with copied(plan, callback.note, stop) as loop.senders:
        how(loop)
        loop.end_all()
    return loop


def _process_of(state: State) -> tuple[bool, str]:
    """What neighbours must have in common to be computed in one process."""
    return state.is_finished, state.name if state.config.modules() else ""


def _compute(
    tell: Tell, stop: Stop, computer: Computer, cells: Iterable[tuple[str, ExperimentConfig, Path]], other_code: bool
) -> None:
    """Compute cells in this process, one after the other; ``tell`` names the methods of ``Loop`` that hear of it."""
    for name, config, folder in cells:
        if stop():
            return
        refuse_changed_torch()
        setup = open_cell(config, folder, other_code=other_code)
        text = _facts_text(setup, computer.where(setup))
        saved = last_saved(folder)
        tell("begin", name, text, saved, read_run(folder).data_notes, setup.warnings, _devices_text(setup))
        run = computer.compute(setup, folder, stop, partial(tell, "note", name))
        tell("end", name, verified(run, setup, folder, stop).status)


def _compute_for(
    asker: Asker,
    computer: Computer,
    cells: Iterable[tuple[str, Values, Path]],
    other_code: bool,
    keywords: Collection[str] | None,
) -> None:
    """Compute cells in this fresh process."""
    read = ((name, parse(values, name), folder) for name, values, folder in cells)
    with in_python(keywords), naming_users_code(), computer.opened(asker.tell):
        _compute(asker.tell, asker.stopping.is_set, computer, read, other_code)


def _facts_text(setup: Setup, where: str) -> str:
    """A run's rounds, clients, place and data in a line; a user's method by its import path too."""
    number, label = len(setup.fleet), setup.config.label()
    windows = sum(client.num_windows for client in setup.fleet.clients)
    length = f"{f'{label}, ' if is_path(label) else ''}{counted(setup.config.rounds, 'round')}"
    return f"{length}, {counted(number, 'client')} {where}, {windows} windows ({setup.data.origin})"


def _devices_text(setup: Setup) -> str:
    """``devices: 3 A acc gyro mag, 2 C acc``: how many clients of each type train with which sensors."""
    wearing = Counter((client.device, client.modalities) for client in setup.fleet.clients)
    known = sorted(wearing.items(), key=lambda item: [*setup.types].index(item[0][0]))
    types = (f"{number} {kind} {' '.join(sensors)}" for (kind, sensors), number in known)
    return "" if setup.config.strategy.pooled else f"devices: {', '.join(types)}"


def rounds_to_do(state: State) -> int:
    """Number of rounds that are missing."""
    # Not read from the ledger here: where its last line is damaged, a resume cuts it off and goes on.
    return max(0, state.config.rounds - state.num_rounds)


def _titled(plan: Plan) -> tuple[Cell, ...]:
    """The cells with titles: ``relief (gamma=0.5), fold 0, replicate 2``; a grid's cell's name without its hash."""
    if plan.is_grid:
        return tuple(replace(cell, title=cell.name.removesuffix(f"-{cell.hash[:HASH_DIGITS]}")) for cell in plan.cells)
    methods = [(method_name(c.config.strategy, c.label), c.config.model_dump(mode="json")) for c in plan.cells]
    names = variant_names(methods, [facts_of(c.config.strategy, c.label) for c in plan.cells])
    drawn = zip(plan.cells, names, methods, strict=True)
    return tuple(replace(cell, title=f"{name}, {draw_of(config)}") for cell, name, (_, config) in drawn)


def f1_heading(states: Iterable[State]) -> str:
    """Heading of F1 in tables of these cells, which says so where it is of validation windows."""
    parts = {part for state in states for part in state.config.evaluation.parts}
    return "validation F1 %" if parts == {"validation"} else "F1 %"


def is_disk_full(state: State) -> bool:
    """True where a cell failed because nothing can be written any more."""
    return state.status == "failed" and any(w in state.why for w in ("No space left", "MiB free, expected at least"))


def leaders(states: Iterable[State], scores: Mapping[str, float]) -> tuple[Leader, ...]:
    """The best method of each setting by mean score over its finished folds and seeds."""
    by_setting: dict[str, dict[str, list[float]]] = {}
    for cell in (state.cell for state in states if state.name in scores):
        by_setting.setdefault(cell.setting, {}).setdefault(cell.method, []).append(scores[cell.name])
    rows = []
    for setting, methods in by_setting.items():
        means = {method: fmean(f1s) for method, f1s in methods.items()}
        label = max(means, key=means.__getitem__)
        rows.append(Leader(setting=setting, label=label, f1=means[label], num=len(methods[label]), of=len(means)))
    return tuple(rows)


def check_reusable(state: State) -> str:
    """Check that a finished run was computed on today's data; return the line that says it is reused.

    Raises:
        UserError: the data are others.
    """
    assert state.run is not None
    config, recorded = state.config.data, state.run.data_digest
    with naming_data(state.run, state.folder):
        dataset = open_dataset(config)
    number = num_clients(dataset, config)
    digest = federate(dataset, config, available(config, number)).digest
    if digest != recorded:
        raise UserError(
            f"{state.folder}: was computed on data {recorded[:12]}, found {digest[:12]}; "
            f"choose another folder ({option('out', 'DIR')}), or point RELIEF_DATA to the data it was computed on"
        )
    stale = f"; stale: {state.why}" if state.status == "stale" else ""
    return f"reused, finished already{stale}"


# Files of users' modules as this process saw them first: the module's import (a reload makes a new one) and the hash.
_FIRST_SEEN: dict[str, tuple[object, str]] = {}


def run(
    experiment: Target = None,
    *,
    strategies: StrategyLike | Sequence[StrategyLike] | None = None,
    seeds: Seeds = None,
    folds: Folds = None,
    rounds: int | None = None,
    name: str | None = None,
    claims: str | Path | None = None,
    out: str | Path | None = None,
    set: Mapping[str, object] | None = None,
    quiet: bool = False,
    other_code: bool = False,
    rerun_stale: bool = False,
    on: Place = "here",
    jobs: int = 1,
    **settings: Unpack[Settings],
) -> Study:
    """Compute a study and return it: one run per method, seed and fold.

    Args:
        experiment: a preset's name, a YAML or JSON file, an ``ExperimentConfig``, a mapping of its values, or None.
        strategies: names (also ``"fedavg,relief"``), import paths (``"my_module:MyMethod"``), classes, configurations
            or mappings.
        seeds: seeds, in place of the experiment's seeds or replicates: a list, a range, an array.
        folds: folds of the held-out subjects: a list, or one.
        rounds: rounds of every run.
        name: name of the study in reports.
        claims: YAML file with at most six claims, named before the first run.
        out: folder of the records, whose runs are reused or gone on with; None: a temporary one.
        set: settings by dotted key, as `--set` takes them: ``{"training.epochs": 2}``.
        quiet: show no progress; what is odd about the data is then a Python warning.
        other_code: take runs that other code computed, and go on with those that it began; else they are refused.
        rerun_stale: compute such runs again; the old ones are kept in the folder ``stale``.
        on: ``here``: in this process; ``ray``: on Ray, with the same bits. A local cluster is started with the first
            run and stopped with the last, unless ``runtime`` names the ``address`` of one to join; clients are packed
            on a worker per core unless ``runtime`` has another ``mode``.
        jobs: how many runs are computed at a time, each in a process of its own on Ray, as `--jobs` does it; 1: one
            after the other.
        settings: sections of the configuration: ``data="dsa_mini"``, ``training={"epochs": 2}``.

    Raises:
        UserError: bad input; the message names the place, what was found, what was expected and the fix.
        UserCodeFailed: a file of one's own raised an error; the message names it, function and line.
    """
    request = Request(
        target=experiment,
        strategies=strategies,
        seeds=seeds,
        folds=folds,
        rounds=rounds,
        name=name,
        claims=claims,
        out=out,
        set=set or {},
        quiet=quiet,
        other_code=other_code,
        rerun_stale=rerun_stale,
        on=on,
        jobs=jobs,
        settings=settings,
    )
    try:
        with _computing(request) as computer:
            return _compute_study(request, computer)
    except UserCodeError as error:
        raise error.with_traceback(None) from error.__cause__
    except UserError as error:
        # The message is the answer; the way to it through this library is none of the reader's.
        raise error.with_traceback(None) from None


def _computing(request: Request) -> AbstractContextManager[Computer]:
    """What computes the runs of a study: this process, or an installed runtime, which this library never imports.

    Raises:
        UserError: there is no such runtime here.
    """
    place, asked = request.on, f"on={request.on!r}"
    if request.jobs > 1:
        place, asked = "ray", f"jobs={request.jobs}: several runs at a time are processes of Ray"
    if place == "here":
        return nullcontext(Computer())
    with suppress(ImportError):
        if found := next(iter(entry_points(group="relief_ray.runtimes", name=place)), None):
            made: AbstractContextManager[Computer] = found.load()()
            return made
    leave = ", or leave jobs out" if request.jobs > 1 else ""
    raise UserError(f"{asked}: this runtime is not installed; {install('server')}{leave}")


def _compute_study(request: Request, computer: Computer) -> Study:
    """Plan a study, compute what is missing of it, and open it.

    Raises:
        UserError: bad input.
        UserCodeFailed: a file of the user's raised an error; the message names it, function and line.
    """
    with in_python(request.keywords), naming_users_code():
        refuse_changed_torch()
        with ExitStack() as temporary:
            out = request.out
            if out is None:
                out = temporary.enter_context(TemporaryDirectory(prefix="relief-ray-"))
            folder = Path(out).expanduser()
            plan = plan_of(request, folder)
            plan.refuse_unread_address(request.jobs)
            _refuse_edited(plan)
            if request.rerun_stale:
                plan = plan.without_stale()
            elif not request.other_code:
                refuse_stale(plan)
            _computed(plan.write(), computer, request)
            study = Study(folder, is_temporary=request.out is None)
            weakref.finalize(study, temporary.pop_all().close)  # as long as the study is there
            return study


def _computed(plan: Plan, computer: Computer, request: Request) -> None:
    states = plan.look()
    how = partial(computer.carry_out, jobs=request.jobs, other_code=request.other_code)
    shown = display(len(states), sum(map(rounds_to_do, states)), request.jobs, quiet=request.quiet)
    with closing(shown):
        try:
            loop = compute(plan, how, shown, [state for state in states if not state.is_finished])
        except KeyboardInterrupt:
            if request.out is not None:
                shown.note(f"interrupted; what was recorded is kept: call run() with out= again, or {plan.resume}")
            # Without the frames below, which say nothing to who pressed the keys.
            raise KeyboardInterrupt from None
        if request.out is None:
            shown.note("the records are temporary; run(.., out='runs/mine') keeps them")
    for name in loop.senders.behind:
        _LOG.warning("%s: behind; everything is in %s, and the next call sends it", name, plan.out)
    if failed := [state for state in plan.look() if not state.is_finished]:  # of several at a time
        lines = [f"{state.name}: {state.why or state.status}" for state in failed]
        raise UserError(
            "\n".join(lines) + f"\n{len(failed)} of {len(plan.cells)} runs failed; call run() again with the same out= "
            "to go on with them"
        )


def _refuse_edited(plan: Plan) -> None:
    """Check that this process runs the user's files as they are now: a record names the hash of the file.

    A file that was edited before the first call that saw its import is not noticed: Python keeps no hash of what it has
    imported.

    Raises:
        UserError: a file was edited after this process had imported it, so that the old code would run.
    """
    edited = []
    for source in sources({module for cell in plan.cells for module in cell.config.modules()}):
        module = sys.modules.get(source.module)
        spec = getattr(module, "__spec__", None)
        seen, digest = _FIRST_SEEN.get(source.name, (None, ""))
        if spec is None or seen is not spec:
            _FIRST_SEEN[source.name] = (spec, source.sha256)
        elif digest != source.sha256:
            edited.append(source.name)
    if edited:
        verb = "was" if len(edited) == 1 else "were"
        raise UserError(
            f"{listed(edited)} {verb} edited after this process had imported it: the old code would run, and the "
            "record would name the new; start Python again (in a notebook: restart the kernel), or importlib.reload "
            "its module"
        )
