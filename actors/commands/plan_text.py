"""Plans in words: `--dry-run`, a grid's end, `grid status`; and the commands to type next."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from actors.commands.study import claims_facts, claims_text, powers_of
from actors.grids.estimate import START_S, Estimate, estimates, probe_missing
from actors.grids.places import address_of
from actors.runtime.placement import cores_of
from actors.runtime.session import SessionOptions, ray_session
from actors.terminal.exit_codes import Result, say
from actors.terminal.mlflow_export import where_to_look
from relief_ray.config.experiment import ExperimentConfig
from relief_ray.records.cells import STATUS_TEXT
from relief_ray.records.identity import flat
from relief_ray.records.run_folder import read_rounds
from relief_ray.report.runs import split_name
from relief_ray.strategies import PRESETS
from relief_ray.studies.loop import f1_heading
from relief_ray.studies.plan import Plan, State
from relief_ray.studies.progress import duration, headline_f1, shortened
from relief_ray.studies.spec import Cell
from relief_ray.studies.study import load
from relief_ray.support.errors import counted, value_text
from relief_ray.support.process import num_cores
from relief_ray.support.table import grouped
from relief_ray.support.text import WIDTH, filled, table, typed, wrapped

_MAX_ROWS = 40


def counts(states: Sequence[State]) -> str:
    """``10 done, 1 failed, 1 planned``."""
    numbers = Counter(state.status for state in states)
    return ", ".join(f"{numbers[status]} {status}" for status in STATUS_TEXT if status in numbers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """Time and disk space for the unfinished part of a plan, as text or JSON."""

    plan: Plan
    states: Sequence[State]
    known: Mapping[str, Estimate]
    """By name of a cell that is to do."""
    num_places: int
    """Cores that cells share."""
    start_s: float
    """Until the first cell can begin; a part of the wall time, once."""
    share: float = 1.0
    """That of all cells which the plan has: a search suggests the others later. Sums are of all, as costly as these."""

    @classmethod
    def of(
        cls, plan: Plan, states: Sequence[State], known: Mapping[str, Estimate], jobs: int | None, share: float = 1.0
    ) -> Forecast:
        """Count the places and Ray's start, where the cells need it and join no cluster that is up."""
        modes = [state.config.runtime.mode for state in states if not state.is_finished]
        needs_ray = plan.is_grid or jobs != 1 or any(mode != "inline" for mode in modes)
        start_s = START_S if known and needs_ray and address_of(states) is None else 0.0
        places = num_places(plan, states, jobs)
        return cls(plan=plan, states=states, known=known, num_places=places, start_s=start_s, share=share)

    def totals(self) -> dict[str, float]:
        """Sums: seconds of one core and on all, bytes, and the number of cells of unknown length."""
        seconds = [k.seconds for k in self.known.values() if k.seconds is not None]
        core_s = sum(seconds) / self.share
        return {
            "core_s": core_s,
            "start_s": self.start_s,
            "wall_s": core_s / self.num_places + self.start_s,
            "bytes": round(sum(k.num_bytes or 0 for k in self.known.values()) / self.share),
            "unknown": round((len(self.known) - len(seconds)) / self.share),
        }

    def facts(self) -> dict[str, object]:
        """Every cell with the seconds and bytes that it still needs, null where unknown, and the sums."""
        unknown = Estimate(seconds=None, num_bytes=None, origin="")
        estimates = [self.known.get(state.name, unknown) for state in self.states]
        cells = [
            {**cell, "seconds": cost.seconds, "bytes": cost.num_bytes, "origin": cost.origin or None}
            for cell, cost in zip(_cell_facts(self.states), estimates, strict=True)
        ]
        plan = {"event": "plan", "grid": self.plan.name, "folder": str(self.plan.out), "cores": self.num_places}
        return {**plan, **self.totals(), "share_listed": self.share, "cells": cells}

    def text(self) -> str:
        """Table of cells by method, with time, disk, and the source of these estimates."""
        lines = self._of_grid() if self.plan.is_grid else self._of_runs()
        told = {
            f"{' '.join(filter(None, (s.cell.setting, s.cell.method)))}: {text}": None
            for s in self.states
            if s.name in self.known
            for text in self.known[s.name].warnings
        }
        doubts = (filled(f"WARNING: {text}", rest="  ") for text in (*told, *self.plan.untested()))
        return "\n".join([*lines, *doubts])

    def _of_grid(self) -> list[str]:
        """By setting too."""
        plan, number = self.plan, len(self.states)
        rows = [[states[0].cell.setting, states[0].cell.method, *costs] for states, costs in self._rows()]
        shown = table(["setting", "method", *_costs_of("cell")], rows[:_MAX_ROWS], left=2).splitlines()
        more = [f"  ... and {len(rows) - _MAX_ROWS} rows more"] if len(rows) > _MAX_ROWS else []
        data = sorted({_data(state.cell) for state in self.states})
        return [
            filled(f"{plan.name}: {plan.title}", rest="  "),
            f"{number} cells ({counts(self.states)}), seed-major; records in {plan.out}",
            *self._of_all(f"of {round(number / self.share)}: later ones are suggested once these are scored"),
            "",
            *(shown if max(map(len, shown)) <= WIDTH else _by_setting(rows[:_MAX_ROWS])),
            *more,
            *self._origins(),
            "",
            *self._sums(),
            *([] if plan.stopping is None else ["(tries that ASHA stops early take less)"]),
            f"data: {'; '.join(data)}",
        ]

    def _of_runs(self) -> list[str]:
        """With folds and seeds, and what of their settings differs from the defaults."""
        plan = self.plan
        rows = [[states[0].cell.method, *_axes_of(states), *costs] for states, costs in self._rows()]
        settings = [f"  {key} = {value}" for key, value in differing(plan).items()]
        return [
            f"{plan.name}: {counted(len(self.states), 'run')} ({counts(self.states)}); records in {plan.out}",
            f"data: {_data(plan.cells[0])}",
            "",
            table(["method", "folds", "seeds", *_costs_of("run")], rows, left=3),
            *self._origins(),
            "",
            "settings that differ from their defaults" + ("" if settings else ": none"),
            *settings,
            "",
            *self._sums(),
        ]

    def _rows(self) -> Iterator[tuple[list[State], list[str]]]:
        """Cells of each setting and method, with: those to do of all, time of one and of all of these, and disk."""
        for states in grouped(((state.cell.setting, state.cell.method), state) for state in self.states).values():
            costs = [self.known[state.name] for state in states if state.name in self.known]
            seconds = [cost.seconds for cost in costs if cost.seconds is not None]
            is_known = len(seconds) == len(costs)
            figures = ["" if is_known else "?"] * 3
            if seconds and is_known:
                disk = mib(sum(cost.num_bytes or 0 for cost in costs))
                figures = [duration(fmean(seconds)), duration(sum(seconds)), disk]
            yield states, [f"{len(costs)}/{len(states)}", *figures]

    def _origins(self) -> list[str]:
        """Lines on the source of the estimates: a source, and the methods that it is of."""
        known = self.known
        methods = grouped((known[s.name].origin, s.cell.method) for s in self.states if s.name in known)
        return [
            line
            for origin, labels in methods.items()
            for line in wrapped(f"{', '.join(dict.fromkeys(labels))}: {origin}", "  ", "    ")
        ]

    def _of_all(self, line: str) -> list[str]:
        """The line where the plan has a share of all cells only."""
        return [line] if self.share < 1.0 else []

    def _sums(self) -> list[str]:
        """Time and disk of everything that is to do, and what the time includes."""
        facts, known = self.totals(), self.known
        if known and all(k.seconds is None for k in known.values()):
            return wrapped(f"time and disk are unknown: no round of the {round(facts['unknown'])} cells could be timed")
        unknown = f"; {facts['unknown']:.0f} cells of unknown length" if facts["unknown"] else ""
        with_start = " with Ray's start" if self.start_s else ""
        start = f"; Ray's start: {duration(self.start_s)}" if self.start_s else ""
        takes = f"on {counted(self.num_places, 'core')} it takes {duration(facts['wall_s'])}{with_start}{unknown}"
        return [
            *wrapped(f"in all {duration(facts['core_s'])} of work, {mib(int(facts['bytes']))} of disk; {takes}"),
            *self._of_all(f"(all {round(len(known) / self.share)} cells, as costly on average as these {len(known)})"),
            f"(work: set-up, rounds and tests of every run{start})",
        ]


def _costs_of(noun: str) -> list[str]:
    return ["to do", f"a {noun}", "all", "disk"]


def _data(cell: Cell) -> str:
    return f"{cell.config.data.name}, {split_name(cell.config.data.split)}"


def _by_setting(rows: Sequence[Sequence[str]]) -> list[str]:
    """The same table with every setting on a line of its own, for long names."""
    head, rule, *cells = table(["method", *_costs_of("cell")], [row[1:] for row in rows]).splitlines()
    by_setting = grouped((row[0], line) for row, line in zip(rows, cells, strict=True))
    return [head, rule, *(line for setting, below in by_setting.items() for line in (setting, *below))]


def mib(num_bytes: int) -> str:
    """``12 MiB``."""
    return f"{num_bytes / 2**20:.{0 if num_bytes > 10 * 2**20 else 1}f} MiB"


def end_of(plan: Plan) -> Result:
    """End of a grid: cells by status, scores of finished cells, verdicts on claims, and the next commands."""
    states = plan.look()
    is_judged = plan.claims is not None and plan.is_tested and all(state.status == "done" for state in states)
    verdicts = load(plan.out).verdicts().sentences if is_judged else ()
    lines = [f"\n{plan.name}: {counts(states)} of {len(states)} cells; records in {plan.out}"]
    rows = _score_rows(states)
    if rows:
        lines.append(table(["setting", "method", f1_heading(states), "cells"], rows, left=2))
    for state in states:
        if state.status in ("failed", "stale"):
            lines.append(f"{state.status}: {state.name}: {''.join(state.why.splitlines()[:1])}")
    if any(state.is_open for state in states):
        lines.append(f"\nGo on with  relief-ray grid resume {typed(plan.out)}")
    if rows:
        lines += [line for sentence in verdicts for line in ("", filled(sentence))]
        lines += ["", _next_step(plan), *where_to_look(plan.cells[0].config.tracking, plan.out)]
    facts = _grid_facts(plan, states) | ({"verdicts": verdicts} if is_judged else {})
    return Result([*lines, "", *next_steps(plan)], facts)


def _next_step(plan: Plan) -> str:
    """The next command for the cells that are done."""
    if any(c.config.choice is not None and c.config.choice.kind == "try" for c in plan.cells):
        return f"Best tries  relief-ray grid freeze {typed(plan.out)}"
    # A comparison is of one setting; a report has a section for each.
    command = "compare" if len({c.setting for c in plan.cells}) == 1 else "report"
    return f"Side by side  relief-ray {command} {typed(plan.out)}"


def _score_rows(states: Sequence[State]) -> list[tuple[str, str, str, str]]:
    """Mean and sample standard deviation of the last F1 over folds and seeds, by setting and method."""
    scored = [(state.cell, headline_f1(state.last_tested())) for state in states if state.status == "done"]
    groups = grouped(((cell.setting, cell.method), 100 * f1) for cell, f1 in scored if f1 is not None)
    return [
        (setting, label, f"{fmean(v):.1f}" + (f"±{stdev(v):.1f}" if len(v) > 1 else ""), str(len(v)))
        for (setting, label), v in groups.items()
    ]


def status_of(plan: Plan) -> Result:
    """Every cell with its status."""
    states = plan.look()
    lines = [f"{plan.name}: {counts(states)} of {len(states)} cells; {plan.out}"]
    for state in states:
        facts = (f"{state.num_rounds}/{state.config.rounds} rounds", state.why.split("\n")[0])
        tail = "".join(f"  {fact}" for fact in facts if fact)
        lines.append(shortened(f"{state.status:<12}", state.name, tail))
    return Result(lines, _grid_facts(plan, states))


def _grid_facts(plan: Plan, states: Sequence[State]) -> dict[str, object]:
    return {"event": "grid", "grid": plan.name, "folder": str(plan.out), "cells": _cell_facts(states)}


def _cell_facts(states: Sequence[State]) -> list[dict[str, object]]:
    """Every cell with its status, as JSON."""
    return [
        {
            "cell": e.name,
            "strategy": e.cell.label,
            "setting": e.cell.setting,
            "status": e.status,
            "rounds": e.num_rounds,
            "planned": e.config.rounds,
            "why": e.why or None,
        }
        for e in states
    ]


# How long the plan waits for timed rounds in all.
_PLAN_S = 60.0
# What tells the runs of a plan apart, or only names them.
_AXES = frozenset({"schema", "strategy.name", "data.fold", "seed", "fleet.rotation", "backbone.name", "data.name"})


def planned(plan: Plan, jobs: int | None, share: float = 1.0) -> Result:
    """The plan for `--dry-run`: a round of every workload is timed, a minute at most in all; nothing is written.

    ``share``: that of all cells which the plan already has.
    """
    powers = powers_of(plan)  # wrong claims are told before anything is timed
    states = plan.look()
    known = estimates(states, probe_missing(states, one_each=True, say=say, limit_s=_PLAN_S))
    forecast = Forecast.of(plan, states, known, jobs, share)
    further = {} if plan.is_grid else {"settings": differing(plan)}
    return Result(
        forecast.text() + claims_text(powers), {**forecast.facts(), **further, "claims": claims_facts(powers)}
    )


def num_places(plan: Plan, states: Sequence[State], jobs: int | None) -> int:
    """Number of cores that cells will share: of the cluster that a grid joins, else of this process; at most ``jobs``.

    Raises:
        UserError: the cluster cannot be joined.
    """
    cores = num_cores()
    if plan.is_grid and (address := address_of(states)) is not None:
        with ray_session(SessionOptions(address=address)):
            import ray

            cores = cores_of(ray.cluster_resources())
    return min(cores, jobs or cores)


def _axes_of(states: Sequence[State]) -> tuple[str, str]:
    """Folds and seeds (or replicates) of these runs, in words."""
    folds = sorted({e.config.data.fold for e in states if e.config.data.has_folds})
    draws = dict.fromkeys(e.config.draw_name for e in states)
    return _ranges(folds) or "-", _ranges([int(d[1:]) for d in draws if d[0] == "s"]) or _ranges(
        [int(d[1:]) for d in draws if d[0] == "r"], "r"
    )


def _ranges(numbers: list[int], head: str = "") -> str:
    """``0-3``, ``1, 5``; each with ``head`` before it."""
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{head}{numbers[0]}-{head}{numbers[-1]}"
    return ", ".join(f"{head}{n}" for n in numbers)


def differing(plan: Plan) -> dict[str, str]:
    """Settings that differ from their defaults, dotted; where runs differ in one, all its values."""
    own = [_differing(cell.config) for cell in plan.cells]
    usual = [flat(cell.config.model_dump(mode="json", exclude={"strategy"})) for cell in plan.cells]
    texts = [{key: value_text(v) for key, v in u.items()} | each for u, each in zip(usual, own, strict=True)]
    keys = dict.fromkeys(key for each in own for key in each)
    return {key: ", ".join(dict.fromkeys(each[key] for each in texts if key in each)) for key in keys}


def _differing(config: ExperimentConfig) -> dict[str, str]:
    preset = PRESETS.get(config.label())  # a method's name stands for all of its preset's values
    usual = ExperimentConfig().model_copy(update={"strategy": preset or config.strategy})
    texts, defaults = (
        flat({key: getattr(each, key).model_dump(mode="json") for key in ("runtime", "tracking", "strategy")})
        for each in (config, usual)
    )
    deciding = {k: v for k, v in flat(config.identity()).items() if preset is None or not k.startswith("strategy.")}
    differ = {k: v for k, v in texts.items() if defaults.get(k) != v}
    return {key: value_text(value) for key, value in {**deciding, **differ}.items() if key not in _AXES}


def next_steps(plan: Plan) -> list[str]:
    """Lines with the next commands, and first how to activate the environment where `relief-ray` is no command."""
    commands = [*activation(), f"relief-ray report {typed(plan.out)}", *_explain(plan.look())]
    return [f"{'Next' if i == 0 else '':<8}{command}" for i, command in enumerate(commands)]


def activation() -> list[str]:
    """The line that makes this environment's commands known to the shell; empty where they are, or outside of one."""
    script = Path(sys.prefix) / "bin" / "activate"
    here = shutil.which("relief-ray")
    is_known = here is not None and Path(here).parent == script.parent
    return [] if is_known or sys.prefix == sys.base_prefix or not script.exists() else [f". {typed(script)}"]


def _explain(cells: Iterable[State]) -> list[str]:
    """A command that explains the client that was left out most, of the first finished run that can be explained."""
    for cell in cells:
        if cell.is_finished and cell.config.strategy.explains:
            last = read_rounds(cell.folder)[-1]
            if last.clients:
                client = min(last.clients, key=lambda c: len(c.trained)).client
                return [f"relief-ray explain {typed(cell.folder)} --round {last.round} --client {client}"]
    return []
