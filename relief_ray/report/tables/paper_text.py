"""Figures that the paper prints in its running text, beside ours where the runs have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relief_ray.report.comparison import Comparison, Experiment, Stat
from relief_ray.report.paper import V0, V1, Paper, PaperRow
from relief_ray.report.remarks import mean_cosine
from relief_ray.report.tables.columns import Column
from relief_ray.report.tables.rows import figure_cell, is_comparable, origin_of, stat_of
from relief_ray.strategies import REFERENCE
from relief_ray.support.table import Cell, Row, Table

ACC = "fusion.A.acc"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wanted:
    """Our figure for a printed one.

    Attributes:
        backbone: of the runs to look at.
        dataset: of the runs to look at.
        label: the method.
        figure: its key in ``MethodResult.stats``.
        minus: another method whose figure is subtracted.
        kinds: two device types; then the figure is the mean cosine of their updates.
        decimals: digits after the point.
    """

    backbone: str
    dataset: str
    label: str = V0
    figure: str = ""
    minus: str = ""
    kinds: tuple[str, str] | None = None
    decimals: int = 1


def _modality(backbone: str, dataset: str, modality: str, label: str = V0, minus: str = "") -> _Wanted:
    return _Wanted(backbone=backbone, dataset=dataset, label=label, figure=f"f1_{modality}_percent", minus=minus)


# Same order as the rows of ``paper["text"]``.
_WANTED = (
    _Wanted(backbone="cnn", dataset="pamap2", label=V1, figure="energy_j", decimals=0),
    *(_modality("cnn", "pamap2", m, minus=REFERENCE) for m in ("mag", "hr", "acc")),
    *(_modality("moment_lora", "mhealth", m, label) for m in ("mag", "ecg") for label in (REFERENCE, V0)),
    *(_Wanted(backbone="moment_lora", dataset="pamap2", kinds=k, decimals=2) for k in (("A", "A"), ("A", "C"))),
)


def text_table(experiments: Sequence[Experiment], paper: Paper) -> Table | None:
    """One row per printed figure; None where no run is of the kind that any of them speaks of."""
    pairs = zip(paper["text"].rows, _WANTED, strict=True)
    rows = tuple(row for printed, wanted in pairs if (row := _row(experiments, printed, wanted)) is not None)
    if not rows:
        return None
    return Table(
        slug="text",
        caption="Figures of the paper's running text.",
        head=("figure", "section", "ours", "setting"),
        rows=rows,
        second="second line: paper",
    )


def _row(experiments: Sequence[Experiment], printed: PaperRow, wanted: _Wanted) -> Row | None:
    for experiment in experiments:
        comparison = experiment.shown
        if (experiment.backbone, experiment.dataset) == (wanted.backbone, wanted.dataset) and comparison is not None:
            ours = figure_cell(
                _ours(comparison, wanted),
                Column(label="", figure=wanted.figure, decimals=wanted.decimals),
                origin=origin_of(experiment, comparison, wanted.label, wanted.figure),
                paper=printed.cells["value"],
                comparable=is_comparable(experiment),
            )
            place = Cell(text=printed.cells["section"].text)
            return Row(name=printed.name, cells=(place, ours, Cell(text=experiment.title)))
    return None


def _ours(comparison: Comparison, wanted: _Wanted) -> Stat | None:
    if wanted.kinds is not None:
        value = mean_cosine(comparison.runs_of(REFERENCE), ACC, wanted.kinds)
        return None if value is None else Stat(mean=value, std=None, num=1)
    first = stat_of(comparison, wanted.label, wanted.figure)
    if not wanted.minus or first is None:
        return first
    second = stat_of(comparison, wanted.minus, wanted.figure)
    return None if second is None else Stat(mean=first.mean - second.mean, std=None, num=min(first.num, second.num))
