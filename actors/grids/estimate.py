"""Estimates of a grid's time and disk space, from its finished cells, else from a round that is timed."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from time import perf_counter

from actors.terminal.signals import TimeIsUp, time_limit
from relief_ray.config.experiment import ExperimentConfig
from relief_ray.config.runtime import TrackingConfig
from relief_ray.experiment.experiment import open_cell, run_opened
from relief_ray.models.registry import backbone_name
from relief_ray.records.checkpoint import KEEP, generations
from relief_ray.records.run_folder import ROUNDS_FILE, read_rounds
from relief_ray.studies.copies import Say
from relief_ray.studies.loop import rounds_to_do
from relief_ray.studies.plan import State
from relief_ray.support.errors import UserError, counted
from relief_ray.support.process import use_threads
from relief_ray.support.table import grouped

Workload = str
Key = tuple[Workload, str]
_WARM_UP_WINDOWS = 16
# Ray, and the library in the first worker process: measured 20 s from the command to a first run's first round, on two
# cores that others used too.
START_S = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Cost of a cell: ``start_s`` and ``fixed_bytes`` once, ``round_s`` and ``round_bytes`` per round.

    ``warnings``: what the run that was timed said when it started, in its ``setting``.
    """

    start_s: float = 0.0
    round_s: float
    fixed_bytes: float
    round_bytes: float
    origin: str = ""
    setting: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Time and disk of one cell from now to its end, on one core; None where unknown, and ``origin`` says why.

    ``first_s``: until the next round is committed. ``warnings``: of the round that was timed.
    """

    seconds: float | None
    num_bytes: int | None
    origin: str
    first_s: float | None = None
    warnings: tuple[str, ...] = ()


def workload(config: ExperimentConfig) -> Workload:
    """Key of all that decides a round's cost besides the method: backbone, data, clients, batches, epochs, evaluation.

    Not the fold, the seed or the learning rate.
    """
    parts = (
        config.backbone.model_dump(mode="json"),
        config.data.model_dump(mode="json", exclude={"fold", "seed"}),
        config.training.model_dump(mode="json", exclude={"lr"}),
        config.evaluation.model_dump(mode="json"),
        config.participation,
    )
    return json.dumps([backbone_name(config.backbone), *parts], sort_keys=True)


def _key(state: State) -> Key:
    return workload(state.config), state.cell.label


def finished_rates(states: Iterable[State]) -> dict[Key, Rate]:
    """Rates of the workloads and methods of which cells are done: their means."""
    groups = grouped((_key(state), measured(state.folder)) for state in states if state.status == "done")
    return {
        key: Rate(
            round_s=fmean(rate.round_s for rate in rates),
            fixed_bytes=fmean(rate.fixed_bytes for rate in rates),
            round_bytes=fmean(rate.round_bytes for rate in rates),
            origin=counted(len(rates), "finished cell"),
        )
        for key, rates in groups.items()
    }


def measured(folder: Path) -> Rate:
    """The rate of a run, from its folder, which does not tell what its start takes."""
    rounds = read_rounds(folder)
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    ledger = sizes.pop(folder / ROUNDS_FILE)
    return Rate(
        round_s=sum(r.wall_s for r in rounds) / len(rounds),
        fixed_bytes=sum(sizes.values()),
        round_bytes=ledger / len(rounds),
    )


def probe_missing(
    states: Sequence[State], *, one_each: bool, say: Say, limit_s: float = math.inf
) -> dict[Key, Rate | UserError]:
    """Time a round of every workload and method that no finished cell tells about; of one method each if asked.

    A short round before the first one takes what a process pays once: libraries, threads, memory. What is
    not timed within ``limit_s`` in all stays unknown.
    """
    wanted = _to_time(states, one_each=one_each)
    rates: dict[Key, Rate | UserError] = {}
    began = perf_counter()
    for number, (key, state) in enumerate(wanted.items(), 1):
        place = state.cell.setting or state.config.data.name
        say(f"timing a round of {state.cell.method} on {place} ({number} of {len(wanted)})")
        try:
            with time_limit(limit_s - (perf_counter() - began)):
                if number == 1:
                    probe(shortened(state.config))
                rates[key] = replace(probe(state.config), setting=state.cell.setting)
        except UserError as error:
            rates[key] = error
        except TimeIsUp:
            rates[key] = UserError(f"not timed within {limit_s:g} s")
    return rates


def _to_time(states: Sequence[State], *, one_each: bool) -> dict[Key, State]:
    """The first open cell of every workload and method without a rate; ``one_each``: of every workload without one."""
    known = {_key(state) for state in states if state.status == "done"}
    covered = {work for work, _ in known}
    cells: dict[Key, State] = {}
    for state in states:
        key = _key(state)
        if key not in known and key not in cells and not (one_each and key[0] in covered):
            covered.add(key[0])
            cells[key] = state
    return cells


def shortened(config: ExperimentConfig) -> ExperimentConfig:
    """The same with a few windows per client and one epoch."""
    few = min(_WARM_UP_WINDOWS, config.data.max_windows_per_client or _WARM_UP_WINDOWS)
    data = config.data.model_copy(update={"max_windows_per_client": few})
    return config.model_copy(update={"data": data, "training": config.training.model_copy(update={"epochs": 1})})


def probe(config: ExperimentConfig) -> Rate:
    """Run a cell's first round in this process, evaluated, and forget it.

    Raises:
        UserError: the cell cannot run, e.g. its data are missing.
    """
    one_round = config.model_copy(update={"rounds": 1, "tracking": TrackingConfig(enabled=False)})
    use_threads(config.runtime.num_threads)
    with tempfile.TemporaryDirectory(prefix="relief-probe-") as place:
        folder, began = Path(place) / "cell", perf_counter()
        setup = open_cell(one_round, folder)
        start_s = perf_counter() - began
        run_opened(setup, folder)
        rate = measured(folder)
        # Two checkpoints are kept; a single round leaves one.
        fixed_bytes, origin = rate.fixed_bytes * KEEP / len(generations(folder)), "one timed round"
        return replace(rate, start_s=start_s, fixed_bytes=fixed_bytes, origin=origin, warnings=setup.warnings)


def estimates(states: Sequence[State], probed: Mapping[Key, Rate | UserError]) -> dict[str, Estimate]:
    """Estimates for every open cell, by its name; methods without a rate count as the first one known."""
    known = {**probed, **finished_rates(states)}
    first: dict[Workload, tuple[str, Rate | UserError]] = {}
    for (work, label), rate in known.items():
        first.setdefault(work, (label, rate))
    by_name = {}
    for state in states:
        if state.status not in ("done", "stale", "stopped"):
            work, label = key = _key(state)
            like, rate = first.get(work, (label, UserError("nothing was timed")))
            if key in known:
                like, rate = label, known[key]
            by_name[state.name] = _estimate(state, rate, "" if like == label else f"as {like}: ")
    return by_name


def _estimate(state: State, rate: Rate | UserError, like: str) -> Estimate:
    if isinstance(rate, UserError):
        return Estimate(seconds=None, num_bytes=None, origin=f"unknown: {str(rate).partition(';')[0]}")
    left = rounds_to_do(state)
    return Estimate(
        seconds=rate.start_s + left * rate.round_s,
        num_bytes=int(rate.fixed_bytes + left * rate.round_bytes),
        origin=like + rate.origin,
        first_s=rate.start_s + rate.round_s,
        warnings=() if like or rate.setting != state.cell.setting else rate.warnings,
    )


def fitting(todo: Iterable[State], known: Mapping[str, Estimate], core_s: float) -> list[State]:
    """The first cells, in order, whose seconds add up to at most ``core_s``; one of unknown length ends the list."""
    chosen: list[State] = []
    for state in todo:
        seconds = known[state.name].seconds
        if seconds is None or seconds > core_s:
            break
        core_s -= seconds
        chosen.append(state)
    return chosen


def head_of(todo: list[State], known: Mapping[str, Estimate], wall_s: float) -> list[State]:
    """The first cell, where the time is enough for a round of it: a resume goes on behind that."""
    first_s = known[todo[0].name].first_s
    return todo[:1] if first_s is not None and first_s <= wall_s else []
