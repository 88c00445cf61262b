"""Basis of the report: cells by status, settings, machine and programs."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from relief_ray.records.cells import STATUS_TEXT
from relief_ray.records.identity import source_digest
from relief_ray.records.schema import Status
from relief_ray.report.comparison import Experiment, data_title, distinct
from relief_ray.report.document import ORIGINS, Paragraphs, Section
from relief_ray.report.runs import (
    STATUSES,
    GridItem,
    Inventory,
    Loaded,
    choice_kind,
    config_int,
    config_text,
    has_folds,
    run_value,
    split_name,
)
from relief_ray.support.errors import counted, listed
from relief_ray.support.table import Cell, Row, Table, Tone, word_table

# Rows up to which a list of gaps stands open on the page.
_MOST_ROWS = 12


def overview(inventory: Inventory, experiments: Sequence[Experiment]) -> Section:
    """Counts, settings and the meaning of origins."""
    blocks: list[Table | Paragraphs] = [counts(inventory, experiments)]
    if inventory.done:
        blocks.append(
            word_table(
                ["setting", "value"], _settings_rows(inventory.done), "settings", "Settings of the runs that count."
            )
        )
    blocks += programs(inventory.done)
    blocks.append(word_table(["origin", "meaning"], ORIGINS.items(), "origins", "Where figures come from."))
    return Section(title="What this rests on", slug="overview", blocks=tuple(blocks), is_folded=len(experiments) > 3)


def counts(inventory: Inventory, experiments: Sequence[Experiment]) -> Table:
    """A row per experiment: its cells by status."""
    groups = [(e.title, e.items) for e in experiments]
    lost = tuple(s for s in inventory.items if not s.config)
    groups += [("cells whose record cannot be read", lost)] if lost else []
    groups += [("all", inventory.items)] if len(groups) != 1 else []
    # Searches alone stop runs early: elsewhere the column would say nothing.
    statuses = tuple(s for s in STATUSES if s != "stopped" or inventory.count(s))
    return Table(
        slug="cells",
        caption="Cells by status. Only `done` cells enter means; the others are listed under Gaps.",
        head=("experiment", "planned or found", *statuses),
        rows=tuple(Row(name=name, cells=tuple(_counts(items, statuses)), rule=name == "all") for name, items in groups),
    )


def _counts(items: Sequence[GridItem], statuses: Sequence[Status]) -> Iterable[Cell]:
    number = Counter(s.status for s in items)
    yield Cell(text=str(len(items)), numbers={"n": len(items)})
    for status in statuses:
        tone: Tone = "gap" if number[status] and status != "done" else ""
        yield Cell(text=str(number[status]), tone=tone, numbers={"n": number[status]})


def programs(runs: Sequence[Loaded]) -> list[Table]:
    """A table of programs where cells were computed by different ones."""
    kinds = _kinds(runs)
    if len(kinds) < 2:
        return []
    here = source_digest()[:12]
    rows = [
        [f"{digest}{' (this program)' if digest == here else ''}", torch, machine, str(number)]
        for (digest, torch, machine), number in kinds.most_common()
    ]
    return [word_table(["sources", "torch", "architecture", "cells"], rows, "programs", "Programs.")]


def mixture(runs: Sequence[Loaded]) -> str:
    """Notice where cells were computed by different programs; empty where one computed all."""
    kinds = _kinds(runs)
    if len(kinds) < 2:
        return ""
    return (
        f"Cells of {len(kinds)} different programs stand in this report. Rows that mix them say so (`by other code`); "
        "a difference between methods may then be one between programs. Compute the old cells again "
        "(`--rerun-stale`) before you rely on it."
    )


def _kinds(runs: Sequence[Loaded]) -> Counter[tuple[str, str, str]]:
    """Programs by sources, torch and processor architecture."""
    return Counter((r.run.source_digest[:12], r.run.machine.torch, r.run.machine.architecture) for r in runs)


def gaps(inventory: Inventory) -> Section | None:
    """Every cell that is not done, and why."""
    rows = [
        [s.name, s.title if s.config else s.label, s.status, s.why or STATUS_TEXT[s.status]]
        for s in inventory.items
        if s.status != "done" and not (s.status == "untested" and choice_kind(s.config) == "try")
    ]
    if not rows:
        return None
    caption = f"{counted(len(rows), 'cell')} in no mean."
    sheet = word_table(["cell", "run", "status", "why"], rows, "gaps", caption)
    return Section(title="Gaps", slug="gaps", blocks=(sheet,), is_folded=len(rows) > _MOST_ROWS)


def footer(runs: Sequence[Loaded]) -> str:
    """Machine, cores, threads, torch build, engine, data origin, sources; their commit where it is this program's."""
    if not runs:
        return "No run counts: nothing was measured."
    machines = distinct(
        f"{m.cpu}, {counted(m.num_cores, 'core')}, {counted(m.num_threads, 'thread')}"
        for m in (r.run.machine for r in runs)
    )
    torch = distinct(f"torch {r.run.machine.torch}" for r in runs)
    engine = distinct(f"engine {r.run.engine}" for r in runs)
    data = distinct(f"{r.run.data_origin} data" for r in runs)
    digests = list(dict.fromkeys(r.run.source_digest for r in runs))
    code = "sources " + listed(d[:12] for d in digests)
    known = commit() if digests == [source_digest()] else None
    return "; ".join([machines, torch, engine, data, code + (f", commit {known}" if known else "")])


def commit() -> str | None:
    """Commit of these sources, marked where they were changed since; None outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _settings_rows(runs: Sequence[Loaded]) -> list[list[str]]:
    """Settings, machine and versions of the runs: rows of words."""
    machines = distinct(
        f"{r.run.machine.cpu}, {counted(r.run.machine.num_cores, 'core')}, "
        f"{counted(r.run.machine.num_threads, 'thread')} per run"
        for r in runs
    )
    versions = distinct(
        f"relief-ray {r.run.code_version} (sources {r.run.source_digest[:12]}), Python {r.run.machine.python}, "
        f"torch {r.run.machine.torch}, numpy {r.run.machine.numpy}"
        for r in runs
    )
    numbers = [n for r in runs if (n := run_value(r.run, "replicate")) is not None]
    with_folds = any(has_folds(r.run.config) for r in runs)
    fleets = [len(clients) for r in runs if isinstance(clients := r.run.coverage.get("clients"), list)]
    return [
        ["data", distinct(f"{data_title(r.run)} ({r.run.data_origin})" for r in runs)],
        ["splits", distinct(split_name(config_text(r.run, "data.split")) for r in runs)],
        *([["folds", distinct(r.replicate[0] for r in runs if has_folds(r.run.config))]] if with_folds else []),
        *([["replicates", distinct(numbers)]] if numbers else []),
        ["seeds", distinct(r.replicate[2] for r in runs)],
        ["methods", distinct(f"`{r.label}`" for r in runs)],
        ["rounds R", distinct(r.planned for r in runs)],
        ["local epochs E", distinct(config_int(r.run, "training.epochs") for r in runs)],
        ["optimizer", distinct(map(_optimizer, runs))],
        *([["clients", distinct(fleets)]] if fleets else []),
        ["window stride", distinct(f"{config_text(r.run, 'data.stride_s')} s" for r in runs)],
        ["missing modality", distinct(config_text(r.run, "training.missing") for r in runs)],
        ["rounds between evaluations", distinct(config_text(r.run, "evaluation.every") for r in runs)],
        ["engine", distinct(f"{r.run.engine}, planned by `{r.run.planning_model}`" for r in runs)],
        ["machine", machines],
        ["versions", versions],
        ["computed", _computed(runs)],
    ]


def _optimizer(loaded: Loaded) -> str:
    """``adam, learning rate 0.001, batch 32``."""
    parts = (("", "optimizer"), ("learning rate ", "lr"), ("batch ", "batch_size"))
    known = ((name, config_text(loaded.run, f"training.{key}")) for name, key in parts)
    return ", ".join(name + value for name, value in known if value)


def _computed(runs: Sequence[Loaded]) -> str:
    """``36 runs, 132 rounds, 2.9 h of process time``."""
    seconds = sum(record.wall_s for r in runs for record in r.rounds)
    rounds = counted(sum(len(r.rounds) for r in runs), "round")
    return f"{counted(len(runs), 'run')}, {rounds}, {_duration(seconds)} of process time"


def _duration(seconds: float) -> str:
    """A time in its usual unit: ``4.2 s``, ``3.5 min``, ``2.9 h``."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
