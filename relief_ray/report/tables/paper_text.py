"""Figures that the paper prints in its running text, beside ours where the runs have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relief_ray.report.comparison import Stat
from relief_ray.report.document import Entry, Line, Sheet
from relief_ray.report.experiments import Experiment
from relief_ray.report.findings import runs_of
from relief_ray.report.paper import Paper, PaperRow
from relief_ray.report.tables.cells import Column, entry, is_comparable, origin_of, stat_of
from relief_ray.report.tables.testbed import mean_cosine

ACC = "fusion.A.acc"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wanted:
    """Where our figure of a row is found: a method's, or its difference to another's; ``kinds``: a cosine instead."""

    backbone: str
    dataset: str
    label: str = "relief"
    figure: str = ""
    minus: str = ""
    kinds: tuple[str, str] | None = None
    decimals: int = 1


def _modality(backbone: str, dataset: str, modality: str, label: str = "relief", minus: str = "") -> _Wanted:
    return _Wanted(backbone=backbone, dataset=dataset, label=label, figure=f"f1_{modality}_percent", minus=minus)


# In the order of the rows of ``paper["text"]``.
WANTED = (
    _Wanted(backbone="cnn", dataset="pamap2", label="v1", figure="energy_j", decimals=0),
    *(_modality("cnn", "pamap2", m, minus="fedavg") for m in ("mag", "hr", "acc")),
    *(_modality("moment_lora", "mhealth", m, label) for m in ("mag", "ecg") for label in ("fedavg", "relief")),
    *(_Wanted(backbone="moment_lora", dataset="pamap2", kinds=k, decimals=2) for k in (("A", "A"), ("A", "C"))),
)


def text_table(found: Sequence[Experiment], paper: Paper) -> Sheet | None:
    """One line per printed figure; none where no run is of the kind that any of them speaks of."""
    pairs = list(zip(paper["text"].rows, WANTED, strict=True))
    lines = [line for row, wanted in pairs if (line := _line(found, row, wanted)) is not None]
    if not lines:
        return None
    head = ("figure", "section", "ours", "setting")
    return Sheet(
        slug="text",
        caption="Figures of the paper's running text.",
        head=head,
        lines=tuple(lines),
        second="second line: paper",
    )


def _line(found: Sequence[Experiment], row: PaperRow, wanted: _Wanted) -> Line | None:
    for experiment in found:
        if (experiment.backbone, experiment.dataset) == (wanted.backbone, wanted.dataset) and experiment.runs:
            column = Column(head="", figure=wanted.figure, decimals=wanted.decimals)
            comparison = experiment.shown
            assert comparison is not None
            origin = origin_of(experiment, comparison, wanted.label, wanted.figure)
            ours = entry(
                _ours(experiment, wanted), column, origin=origin, paper=row.cells["value"],
                comparable=is_comparable(experiment),
            )  # fmt: skip
            place = Entry(text=row.cells["section"].text)
            return Line(name=row.name, entries=(place, ours, Entry(text=experiment.title)))
    return None


def _ours(experiment: Experiment, wanted: _Wanted) -> Stat | None:
    comparison = experiment.shown
    assert comparison is not None
    if wanted.kinds is not None:
        value = mean_cosine(runs_of(comparison, "fedavg"), ACC, wanted.kinds)
        return None if value is None else Stat(mean=value, std=None, num=1)
    first = stat_of(comparison, wanted.label, wanted.figure)
    if not wanted.minus or first is None:
        return first
    second = stat_of(comparison, wanted.minus, wanted.figure)
    return None if second is None else Stat(mean=first.mean - second.mean, std=None, num=min(first.num, second.num))
