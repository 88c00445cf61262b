"""`relief-ray run --dry-run`: the runs, the settings that differ from their defaults, time and disk; writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from actors.commands.plan_text import counts, estimate_notes, estimate_rows, plan_facts, sum_lines, tell
from actors.commands.study import claims_facts, claims_text
from actors.grids.estimate import START_S, Estimate, estimates, probe_missing
from actors.grids.side_by_side import address_of
from actors.terminal.exit_codes import say
from relief_ray.config.experiment import ExperimentConfig
from relief_ray.records.cells import CellState
from relief_ray.records.sync_state import flat_params
from relief_ray.report.runs import split_name
from relief_ray.strategies import PRESETS
from relief_ray.studies.plan import Plan
from relief_ray.studies.spec import Cell
from relief_ray.support.errors import counted
from relief_ray.support.process import num_cores
from relief_ray.support.text import table

# How long the plan waits for timed rounds in all.
_PLAN_S = 60.0
# What tells the runs of a plan apart, or only names them.
_AXES = frozenset({"schema", "strategy.name", "data.fold", "seed", "fleet.rotation", "backbone.name", "data.name"})


def show_plan(plan: Plan, jobs: int, as_json: bool) -> None:
    """Print the plan; a round of every workload is timed in this process, a minute at most in all."""
    entries = plan.look()
    known = estimates(entries, probe_missing(entries, one_each=True, say=say, limit_s=_PLAN_S))
    places, start_s = min(jobs, num_cores()), _ray_start_s(entries, jobs)
    if as_json:
        facts = plan_facts(plan, entries, known, places, start_s)
        tell({**facts, "settings": differing(plan), "claims": claims_facts(plan)})
    else:
        print(_run_plan_text(plan, entries, known, places, start_s) + claims_text(plan))


def _ray_start_s(entries: Sequence[CellState[Cell]], jobs: int) -> float:
    """Seconds until the first run can begin: Ray's, where the runs need it and join no cluster that is up."""
    configs = [entry.cell.config.runtime for entry in entries if not entry.is_finished]
    needs_ray = jobs > 1 or any(config.mode != "inline" for config in configs)
    return START_S if needs_ray and address_of(entries) is None else 0.0


def _run_plan_text(
    plan: Plan, entries: Sequence[CellState[Cell]], known: Mapping[str, Estimate], places: int, start_s: float
) -> str:
    """The runs by method, what of their settings differs from the defaults, and how long they take."""
    data = plan.cells[0].config.data
    rows = [
        [method, *_axes_of([e for e in entries if e.cell.method == method]), *rest]
        for (_, method), rest in estimate_rows(entries, known).items()
    ]
    settings = [f"  {key} = {value}" for key, value in differing(plan).items()]
    parts = [
        f"{plan.name}: {counted(len(entries), 'run')} ({counts(entries)}); records in {plan.out}",
        f"data: {data.name}, {split_name(data.split)}",
        "",
        table(["method", "folds", "seeds", "to do", "a run", "all", "disk"], rows, left=3),
        *estimate_notes(entries, known),
        "",
        "settings that differ from their defaults" + ("" if settings else ": none"),
        *settings,
        "",
        *sum_lines(known, places, start_s),
    ]
    return "\n".join(parts)


def _axes_of(entries: Sequence[CellState[Cell]]) -> tuple[str, str]:
    """Folds and seeds (or replicates) of these runs, in words."""
    folds = sorted({e.cell.config.data.fold for e in entries if e.cell.config.data.split == "held_out_subject"})
    draws = dict.fromkeys(e.cell.config.draw_name for e in entries)
    return _ranges(folds) or "-", _ranges([int(d[1:]) for d in draws if d[0] == "s"]) or _ranges(
        [int(d[1:]) for d in draws if d[0] == "r"], "r"
    )


def _ranges(numbers: Sequence[int], head: str = "") -> str:
    """``0-3``, ``1, 5``; each with ``head`` before it."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{head}{numbers[0]}-{head}{numbers[-1]}"
    return ", ".join(f"{head}{n}" for n in numbers)


def differing(plan: Plan) -> dict[str, str]:
    """Settings that differ from their defaults, dotted; where runs differ in one, all its values."""
    values: dict[str, dict[str, None]] = {}
    for cell in plan.cells:
        for key, value in _differing(cell.config).items():
            values.setdefault(key, {})[value] = None
    return {key: ", ".join(texts) for key, texts in values.items()}


def _differing(config: ExperimentConfig) -> dict[str, str]:
    usual = ExperimentConfig()
    sections = {"runtime": config.runtime, "tracking": config.tracking}
    defaults = {"runtime": usual.runtime, "tracking": usual.tracking}
    preset = PRESETS.get(config.label())
    if preset is not None:  # a method's name stands for all of its preset's values
        sections, defaults = {**sections, "strategy": config.strategy}, {**defaults, "strategy": preset}
    texts = _flat(sections)
    deciding = {
        k: v for k, v in flat_params(config.identity()).items() if preset is None or not k.startswith("strategy.")
    }
    differ = {k: v for k, v in texts.items() if _flat(defaults).get(k) != v}
    return {key: value for key, value in {**deciding, **differ}.items() if key not in _AXES}


def _flat(sections: Mapping[str, BaseModel]) -> dict[str, str]:
    return flat_params({key: section.model_dump(mode="json") for key, section in sections.items()})
