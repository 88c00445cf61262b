"""What the runs of a report have in common, and where they differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from relief_ray.report.facts import listed
from relief_ray.report.labels import split_name
from relief_ray.report.load import Loaded, text, whole


def settings_rows(runs: Sequence[Loaded]) -> list[list[str]]:
    """What was run, where, with which versions: rows of words."""
    machines = _distinct(
        f"{r.run.machine.cpu}, {r.run.machine.num_cores} cores, {r.run.machine.num_threads} thread(s) per run"
        for r in runs
    )
    versions = _distinct(
        f"relief-ray {r.run.code_version} (sources {r.run.source_digest[:12]}), Python {r.run.machine.python}, "
        f"torch {r.run.machine.torch}, numpy {r.run.machine.numpy}"
        for r in runs
    )
    hours = sum(record.wall_s for r in runs for record in r.rounds) / 3600
    return [
        ["data", _distinct(f"{text(r.run, 'data.name')} ({r.run.data_origin})" for r in runs)],
        ["splits", _distinct(split_name(text(r.run, "data.split")) for r in runs)],
        ["folds", _distinct(r.replicate[0] for r in runs)],
        ["seeds", _distinct(r.replicate[2] for r in runs)],
        ["methods", _distinct(f"`{r.label}`" for r in runs)],
        ["rounds R", _distinct(r.planned for r in runs)],
        ["local epochs E", _distinct(whole(r.run, "training.epochs") for r in runs)],
        ["window stride", _distinct(f"{text(r.run, 'data.stride_s')} s" for r in runs)],
        ["missing modality", _distinct(text(r.run, "training.missing") for r in runs)],
        ["rounds between evaluations", _distinct(text(r.run, "evaluation.every") for r in runs)],
        ["engine", _distinct(f"{r.run.engine}, planned by `{r.run.planning_model}`" for r in runs)],
        ["machine", machines],
        ["versions", versions],
        ["computed", f"{len(runs)} runs, {sum(len(r.rounds) for r in runs)} rounds, {hours:.1f} process hours"],
    ]


def _distinct(values: Iterable[object]) -> str:
    return listed(dict.fromkeys(str(v) for v in values))
