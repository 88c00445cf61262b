"""`relief-ray run`, `resume` and `grid`: they plan a study, or read its plan, and compute what is missing of it.

Their options are declared in ``actors.commands.options``; ``actors.cli.main`` turns those that are short for a setting
into ``--set``.
A grid is several cells at a time through Ray Tune; before it starts it says how long they take, from finished cells or
timed rounds, and which fit into a budget.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from types import MappingProxyType

from actors.commands.options import Options
from actors.commands.plan_text import Forecast, end_of, planned, status_of
from actors.commands.results import results_of
from actors.commands.study import cannot_decide
from actors.grids.estimate import START_S, estimates, fitting, head_of, probe_missing
from actors.grids.places import refuse_dashboard_elsewhere, remove_scratch, session_options
from actors.grids.search import SuggestedTries, again, asha, freeze, stopped_early, suggested_tries
from actors.launch import OnRay
from actors.runtime.session import ray_session
from actors.terminal.exit_codes import CELLS_FAILED, DISK, MIRROR_BEHIND, Result, Stopped, say
from actors.terminal.progress import display
from actors.terminal.signals import StopSignals
from relief_ray.config.experiment import assign
from relief_ray.data import open_dataset
from relief_ray.plugins.load import is_path
from relief_ray.records.cells import PLAN_FILE
from relief_ray.records.identity import addresses_in
from relief_ray.records.sync.mirror import fetch, is_uri
from relief_ray.records.sync.sender import Senders
from relief_ray.report.runs import split_name
from relief_ray.studies.copies import copied
from relief_ray.studies.loop import Loop, compute, rounds_to_do
from relief_ray.studies.plan import (
    OtherRun,
    Plan,
    State,
    await_quiet,
    load_spec,
    look_at,
    refuse_begun,
    refuse_other_settings,
    refuse_stale,
)
from relief_ray.studies.presets import PRESETS
from relief_ray.studies.progress import Callback, duration
from relief_ray.studies.spec import MODE, Spec, Values, as_typed, joined, mode_asked, runtime_of
from relief_ray.studies.spec import options as axes_of
from relief_ray.support.errors import Setting, UserError, counted
from relief_ray.support.masking import mask_text
from relief_ray.support.text import typed
from tune_configs.registry import GRIDS, cells_of, load_grid


def run_command(
    target: str, settings: Sequence[Setting], out: Path | None, options: Options, jobs: int
) -> Iterator[Result]:
    """Run `relief-ray run`."""
    options = replace(options, jobs=jobs)
    if target in GRIDS and target not in PRESETS and not Path(target).exists():
        raise UserError(f"run {target}: is a grid, expected a preset or a file; type relief-ray grid {target}")
    spec, settings = load_spec(target), _with_short(settings, options)
    if options.claims is not None:
        spec = replace(spec, claims=options.claims)
    how = placed(settings, options.jobs, spec.settings)
    if out is None and not options.rerun_stale:
        plan = _plan_in_a_folder_of_its_own(spec, how, options)
    else:
        plan = Plan.of(spec, out or Path("runs") / spec.name, how)
        refuse_begun(plan)
        refuse_other_settings(plan)
    plan.refuse_unread_address(options.jobs)
    if (mode := overruled_mode(spec, settings, options.jobs)) is not None:
        is_physical = runtime_of(spec.settings, settings).get("physical") is True
        cause = "runtime.physical=true" if is_physical else "runtime.placement=typed"
        say(f"NOTE: {cause} takes an actor for each client: runtime.mode=actors instead of {mode}")
    _check_dashboard(plan, options)
    if options.dry_run:
        yield planned(plan, options.jobs)
        return
    if options.rerun_stale:
        plan = plan.without_stale()
    plan = plan.write()
    refuse_stale(plan)  # after the plan is written: `resume --other-code` completes all of it
    yield from _run_plan(plan, options)


def _plan_in_a_folder_of_its_own(spec: Spec, settings: Sequence[Setting], options: Options) -> Plan:
    """The plan in the first of ``runs/NAME``, ``runs/NAME-2``, .. that holds the same settings and code, or nothing.

    A new one is made at once, so that two commands never share it; what was begun in it is gone on with.
    """
    first, differs = Path("runs") / spec.name, ""
    places = chain([first], (Path(f"{first}-{number}") for number in count(2)))
    while True:
        place = next(places)
        if place != first and not options.dry_run and not _is_ours(place):
            continue
        try:
            plan = Plan.of(spec, place, settings)
            refuse_other_settings(plan)
            refuse_stale(plan)
        except OtherRun as error:
            differs = differs or error.differs
            continue
        if differs:
            say(f"NOTE: {first} has other settings or code ({differs}): records in {place}")
        return plan


def _is_ours(place: Path) -> bool:
    """Whether a folder has a plan or was made here just now; else it is another command's, or none of this program's.

    Raises:
        UserError: it cannot be made.
    """
    if (place / PLAN_FILE).exists():
        return True
    try:
        place.mkdir()
    except FileExistsError:
        return False
    except OSError as error:
        raise UserError(f"{place}: cannot be made ({error.strerror}); choose a folder with --out DIR") from error
    return True


def resume_command(
    target: str, settings: Sequence[Setting], out: Path | None, options: Options, jobs: int
) -> Iterator[Result]:
    """Run `relief-ray resume`."""
    options = replace(options, jobs=jobs)
    folder, settings = local_folder(target, out, settings)
    # Begun runs keep the mode that their plan has.
    takes_other = options.other_code or options.rerun_stale
    plan = Plan.read(folder, placed(settings, options.jobs, None), other_code=takes_other)
    named = addresses_in(assign({}, settings))
    plan.refuse_foreign(named)
    if "runtime.address" in named:  # that of a record gives way to a mode that is typed now
        plan.refuse_unread_address(options.jobs)
    if options.rerun_stale:
        plan = plan.without_stale()
    elif not options.other_code:
        refuse_stale(plan, is_fixed=True)
    if options.jobs != 1 and plan.is_single:
        raise UserError(
            f"--jobs {options.jobs}: {folder} is a single run; expected the folder of several, or no --jobs"
        )
    _check_dashboard(plan, options)
    return _run_plan(plan, options)


def start_grid(target: str, settings: Sequence[Setting], out: Path | None, options: Options) -> Iterator[Result]:
    """Run `relief-ray grid MODULE`."""
    _refuse_unread(options.search, "--search optuna", {"--tries": options.tries, "--seed": options.seed})
    numbers = {"--grace-rounds": options.grace_rounds, "--reduction-factor": options.reduction_factor}
    _refuse_unread(options.scheduler, "--scheduler asha", numbers)
    grid, settings = load_grid(target), _with_short(settings, options)
    name = "-".join(filter(None, ("grid", grid.name, options.search, options.scheduler)))
    place = (out or Path("runs") / name).absolute()
    if options.search is not None:
        search = suggested_tries(target, settings, place, options.tries, options.seed or 0)
        _refuse_unsearched(grid, options)
        if options.scheduler is not None:
            search = search.with_stopping(asha(search.listed(), options.grace_rounds, options.reduction_factor))
        return _run_grid(search.ask(), options, search)
    cells = cells_of(grid, settings, skip_unknown=options.skip_unknown)
    if not cells:
        raise UserError(f"grid {grid.name}: no cell is left; expected at least one level of every axis")
    claims = options.claims or (Path(grid.claims) if grid.claims else None)
    plan = Plan(kind="grid", out=place, name=grid.name, title=_title(grid, settings), cells=cells, claims_file=claims)
    plan.check_claims()
    if options.scheduler is not None:
        plan = stopped_early(plan, asha(cells, options.grace_rounds, options.reduction_factor))
    return _run_grid(plan, options)


def _title(grid: Spec, settings: Sequence[Setting]) -> str:
    """The grid's own title; where its axes were chosen anew it would say something else than what is run."""
    changed = as_typed(setting for setting in settings if "." not in setting.path)
    return f"{grid.name} with {', '.join(changed)}" if changed else grid.title


def resume_grid(target: str, settings: Sequence[Setting], out: Path | None, options: Options) -> Iterator[Result]:
    """Run `relief-ray grid resume DIR|URI`."""
    folder, settings = local_folder(target, out, _with_short(settings, options))
    plan = Plan.read(folder.absolute(), settings, "grid", other_code=options.rerun_stale)
    plan.refuse_foreign(addresses_in(assign({}, settings)))
    search = None if plan.search is None else again(plan, settings)
    return _run_grid(plan if search is None else search.ask(), options, search)


def show_status(folder: Path) -> Result:
    """Run `relief-ray grid status DIR`."""
    return status_of(Plan.read(folder.absolute(), kind="grid"))


_TUNED_FILE = Path("results/tuned.json")


def freeze_choices(folder: Path, out: Path | None) -> Result:
    """Run `relief-ray grid freeze DIR`; as JSON: what was written, and a line about every method."""
    file = out or _TUNED_FILE
    lines = freeze(Plan.read(folder.absolute(), kind="grid"), file)
    facts = {"event": "frozen", "written": str(file), "methods": lines, **json.loads(file.read_text())}
    return Result([*lines, f"written {file}"], facts)


def _check_dashboard(plan: Plan, options: Options) -> None:
    """Check that there will be a local cluster whose dashboard can be opened, where it was asked for.

    Raises:
        UserError: the runs use no Ray, or join a cluster.
    """
    if options.dashboard:
        refuse_dashboard_elsewhere(plan.look())
        is_here = all(cell.config.runtime.mode == "inline" for cell in plan.cells)
        if not plan.is_grid and options.jobs == 1 and is_here:
            raise UserError(
                "--dashboard: these runs use no Ray (runtime.mode = 'inline'); add --jobs 2, or --set "
                "runtime.mode=packed"
            )


def _computed(
    plan: Plan, todo: Sequence[State], options: Options, stop: StopSignals, shown: Callback, notes: Iterable[str]
) -> Loop:
    """Compute these cells of the plan, show their progress and copy their records.

    Raises:
        Stopped: a signal or a full disk ended it early.
    """
    ray = OnRay(name=plan.name, dashboard=options.dashboard, on_note=shown.note, lost=stop.lost)

    def how(loop: Loop) -> None:
        """Compute; if a stop comes while copies are still being sent, say how to send the rest."""
        ray.carry_out(loop, options.jobs, other_code=options.other_code)
        if _is_over(plan, todo):
            rest = f"relief-ray sync {typed(plan.out)}"
            stop.advise(f"stopped; all runs are finished\nthe rest of their export: {rest}")

    with closing(shown):
        for note in notes:
            shown.note(note)
        with ray.session:
            loop = compute(plan, how, shown, todo, stop.requested, lambda: options.left_s() <= 0)
    if loop.disk_full:
        raise Stopped(DISK, f"the disk is full; everything before is intact\n{_how_to_resume(plan)}")
    if stop.requested() and not _is_over(plan, todo):
        raise Stopped(stop.code, _how_to_resume(plan))
    return loop


def _is_over(plan: Plan, todo: Iterable[State]) -> bool:
    """Whether nothing is left to go on with: all runs of `relief-ray run` came to their end."""
    return not plan.is_grid and all(look_at(state.cell, state.folder).is_finished for state in todo)


def _how_to_resume(plan: Plan) -> str:
    """Message for a user whose command ended early."""
    kept, how = "everything up to the last finished round is kept", "go on" if plan.is_grid else "resume"
    return f"{'' if plan.is_grid else 'stopped; '}{kept}\n{how} with: {plan.resume}"


def _run_plan(plan: Plan, options: Options) -> Iterator[Result]:
    """Run whatever of the plan is not finished, then show the results of all of it.

    Raises:
        Stopped: a signal asked for it, or runs of several failed; the message says how to go on.
    """
    states = plan.look()
    todo = [state for state in states if not state.is_finished]
    several = options.jobs != 1 and len(todo) > 1
    shown = display(options.as_json, len(states), sum(map(rounds_to_do, todo)), several=several)
    warnings = [f"NOTE: {sentence}" for sentence in cannot_decide(plan)] if todo else []
    remove_scratch(plan.out)
    with StopSignals(_how_to_resume(plan)) as stop:
        senders = _computed(plan, todo, options, stop, shown, [headline(plan, len(todo)), *warnings]).senders
    failed = [state for state in plan.look() if not state.is_finished]
    if failed:
        why = "\n".join(f"{s.name}: {s.why.splitlines()[0] if s.why else s.status}" for s in failed)
        raise Stopped(
            CELLS_FAILED,
            f"{why}\n{len(failed)} of {len(plan.cells)} runs failed; the others are not touched by that\n"
            f"go on with: {plan.resume}",
        )
    yield from results_of(plan)
    _refuse_behind(plan, senders)


def _refuse_behind(plan: Plan, senders: Senders) -> None:
    """Check that the copy of the records has everything.

    Raises:
        Stopped: it lacks something.
    """
    for name in senders.behind:
        raise Stopped(
            MIRROR_BEHIND, f"the {name} is behind; the records here are complete\nsend the rest: {plan.resume}"
        )


def headline(plan: Plan, num_todo: int) -> str:
    """Line that announces the runs."""
    number = len(plan.cells)
    done = "" if num_todo == number else f", {number - num_todo} finished already"
    data = plan.cells[0].config.data
    name = data.spec().title if is_path(data.name) else data.name
    return f"{plan.name}: {counted(number, 'run')}{done}; {name}, {split_name(data.split)}; records in {plan.out}"


def _run_grid(plan: Plan, options: Options, search: SuggestedTries | None = None) -> Iterator[Result]:
    """Run what is not done yet, of a ``search`` batch by batch, then say where the grid stands.

    Before a search its first batch alone can be shown.

    Raises:
        Stopped: a signal, the budget or a full disk ended it, or cells failed; the message says how to go on.
    """
    _check_dashboard(plan, options)
    wanted = {cell.name for cell in plan.cells}
    if options.dry_run:
        yield planned(plan, options.jobs, 1.0 if search is None else search.num_tries / search.search.tries)
        return
    with StopSignals(_how_to_resume(plan)) as stop, ExitStack() as between_batches:
        if search is not None:  # Ray stays up
            session = session_options(plan.look(), options.jobs, options.dashboard, plan.resume)
            between_batches.enter_context(ray_session(session, stop.lost))
        plan, senders = _carry_out(plan, options, stop)
        while search is not None and search.tell(plan) and not search.is_complete and options.left_s() > 0:
            plan, senders = _carry_out(search.ask(), options, stop)
            wanted |= {cell.name for cell in plan.cells}
    yield from _finish(plan, senders, wanted)


# Where Ray unpacks the working folder of a job.
_JOB_FOLDERS = "working_dir_files"


def _carry_out(plan: Plan, options: Options, stop: StopSignals) -> tuple[Plan, Senders]:
    """Run the grid's cells that are not done yet; return the plan with all cells of its folder.

    Raises:
        Stopped: a signal or a full disk ended it.
    """
    wanted = {cell.name for cell in plan.cells}
    with plan.lock():
        plan = plan.write()
        await_quiet(state for state in plan.look() if state.status != "done")
        if options.rerun_stale:
            plan = plan.without_stale()
        states = plan.look()
        # Failed ones once more; stale ones stay as they are.
        todo = [s for s in states if s.is_open or (s.status == "failed" and not options.skip_failed)]
        todo = [state for state in todo if state.name in wanted]
        for data in {state.config.data.name: state.config.data for state in todo}.values():
            open_dataset(data)
        todo = within_budget(plan, states, todo, options)
        if not todo:
            remove_scratch(plan.out)
            with copied(plan, say) as senders:
                return plan, senders
        notes = [
            f"{plan.name}: {len(plan.cells)} cells, {len(todo)} to do; records in {plan.out}",
            *(f"NOTE: {sentence}" for sentence in cannot_decide(plan)),
        ]
        if _JOB_FOLDERS in plan.out.parts:
            notes.append(
                "NOTE: that folder is the job's copy of the code, which Ray removes; name another with --out DIR"
            )
        return plan, _computed(plan, todo, options, stop, display(options.as_json, several=True), notes).senders


def _finish(plan: Plan, senders: Senders, wanted: Collection[str]) -> Iterator[Result]:
    """Say where the grid stands.

    Raises:
        Stopped: cells of this command failed or are stale, or the copy lacks something.
    """
    yield end_of(plan)
    number = Counter(state.status for state in plan.look() if state.name in wanted)
    failed = f"{number['failed']} cells failed; the others are not touched by that\n{_how_to_resume(plan)}"
    stale = (
        f"{counted(number['stale'], 'cell')} {'is' if number['stale'] == 1 else 'are'} stale: computed with other code "
        f"or weights (`there`) than today's (`here`)\ncompute again with: {plan.resume} --rerun-stale"
    )
    advice = [failed] * (number["failed"] > 0) + [stale] * (number["stale"] > 0)
    if not number["failed"]:
        _refuse_behind(plan, senders)
    if advice:
        raise Stopped(CELLS_FAILED, "\n".join(advice))


def within_budget(plan: Plan, states: Sequence[State], todo: list[State], options: Options) -> list[State]:
    """The first cells that fit into what is left of the budget; a round is timed of methods without a finished cell.

    Where none fits, the first is begun: it goes on later. Says which.
    """
    if options.budget is None or not todo:
        return todo
    told = [*(state for state in states if state.status == "done"), *todo]
    known = estimates(states, probe_missing(told, one_each=False, say=say, limit_s=max(1.0, options.left_s())))
    forecast = Forecast.of(plan, states, known, options.jobs)
    left_s = options.left_s() - START_S
    chosen = fitting(todo, known, left_s * forecast.num_places)
    begun = [] if chosen else head_of(todo, known, left_s)
    facts = {
        "event": "budget",
        "budget_s": options.budget_s,
        "left_s": max(0.0, left_s),
        "start_s": START_S,
        "cells": [e.name for e in chosen],
        "begun": begun[0].name if begun else None,
        "to_do": len(todo),
    }
    Result(forecast.text(), forecast.facts()).show(as_json=options.as_json)
    sentence = _sentence(options.budget_s, left_s, chosen, begun, len(todo))
    Result(sentence, facts).show(as_json=options.as_json)
    return chosen or begun


def _sentence(budget_s: float, left_s: float, chosen: Sequence[State], begun: Sequence[State], num_todo: int) -> str:
    what = (
        f", up to {chosen[-1].name}"
        if chosen
        else f"; {begun[0].name} is begun, a resume goes on with it"
        if begun
        else "; give it more, or fewer rounds (--set rounds=..)"
    )
    rest = f"{duration(max(0.0, left_s))} of it left after Ray's start"
    return f"budget {duration(budget_s)}, {rest}: {len(chosen)} of {num_todo} cells to do fit{what}"


def _with_short(settings: Sequence[Setting], options: Options) -> tuple[Setting, ...]:
    """The settings, including those that options are shorthand for.

    Raises:
        UserError: a list that is none, or an axis that `--set` chooses too.
    """
    runtime = {"address": options.address, "placement": options.placement, "mirror": options.mirror}
    short = [Setting(f"runtime.{key}", value) for key, value in runtime.items() if value is not None]
    axes = axes_of(options.strategies, options.seeds, options.folds, options.rounds)
    return joined(axes, [*settings, *short])


def _refuse_unread(chosen: str | None, reader: str, numbers: Mapping[str, int | None]) -> None:
    """Refuse options that only ``reader`` reads where it was not ``chosen``.

    Raises:
        UserError: one was given.
    """
    for option, number in numbers.items() if chosen is None else ():
        if number is not None:
            raise UserError(f"{option} {number}: is read by {reader} alone; name it too, or leave {option} out")


def _refuse_unsearched(grid: Spec, options: Options) -> None:
    """Refuse what a search with suggested tries has no use for.

    Raises:
        UserError: claims, the command's or the grid's, or `--skip-unknown`.
    """
    if claims := options.claims or grid.claims:
        found = f"--claims {claims}" if options.claims else f"grid {grid.name}: claims = {claims}"
        raise UserError(
            f"{found}: --search {options.search} opens no test part, on which claims are judged; expected none: leave "
            "them out, or --search"
        )
    if options.skip_unknown:
        raise UserError(
            f"--skip-unknown: is not read by --search {options.search}, which expects known methods alone; leave it "
            f"out, and choose them with {Setting('methods', ...)}"
        )


def placed(settings: Sequence[Setting], jobs: int | None, study: Values | None = MappingProxyType({})) -> list[Setting]:
    """The settings, with the mode that follows from them and a ``study``'s; None: runs were begun and keep theirs.

    A single run whose cluster is named is computed there, also where the study's mode is ``inline``.
    """
    address = runtime_of({}, settings).get("address")
    mode = mode_asked(study or {}, settings, jobs, None if address is None or study is None else "auto")
    return [*([] if mode is None else [Setting(MODE, mode)]), *settings]


def overruled_mode(spec: Spec, settings: Sequence[Setting], jobs: int | None) -> str | None:
    """The mode of the preset or file that gives way because clients are placed by type; None: none does."""
    if mode_asked(spec.settings, settings, jobs) != "actors":
        return None
    mode = runtime_of(spec.settings).get("mode")
    return str(mode) if mode in ("packed", "inline") else "a process for each run" if jobs != 1 else None


def local_folder(target: str, out: Path | None, settings: Sequence[Setting]) -> tuple[Path, Sequence[Setting]]:
    """The folder to go on with, and the settings; a copy is fetched, and kept up to date from then on.

    ``out``: where a copy is brought; by default ``runs/`` and the last part of its URI.

    Raises:
        UserError: no copy is there, ``out`` holds something already, or was named for a local folder.
    """
    if not is_uri(target):
        if out is not None:
            raise UserError(
                f"--out {out}: is for a copy at a URI, which is brought there; found the folder {target}, which is "
                "gone on with where it lies; leave --out away"
            )
        return Path(target), settings
    place = out or Path("runs") / target.rstrip("/").rpartition("/")[2]
    fetched = fetch(target, place)
    say(fetched.line(mask_text(target)))
    for note in fetched.notes:
        say(f"NOTE: {note}")
    mirror = [] if "mirror" in runtime_of({}, settings) else [Setting("runtime.mirror", target)]
    return place, [*settings, *mirror]
