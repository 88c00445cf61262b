"""The report: its sections in order, and its files: a page, Markdown, figures, each table as CSV and LaTeX."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from relief_ray.report.claims import ClaimResults, Registry, in_words, judge, scatter, verdict_table
from relief_ray.report.comparison import Comparison, by_setting, programs
from relief_ray.report.document import Block, Document, Figure, Paragraphs, Section
from relief_ray.report.figures.devices import allocation, cosine, devices, phases, traces
from relief_ray.report.figures.progress import modalities, pareto, progress, rare
from relief_ray.report.figures.style import save, sheet
from relief_ray.report.figures.timeline import Explain, timeline_figure
from relief_ray.report.formats.pages import html, markdown
from relief_ray.report.paper import read_paper
from relief_ray.report.remarks import STAND_IN, directions, rare_alone, remarks
from relief_ray.report.runs import Inventory
from relief_ray.report.tables.methods import clocks_table, further_table, main_table, search_table
from relief_ray.report.tables.overview import data_tables, footer, gaps, overview, physical_table
from relief_ray.report.tables.paper import (
    ablation_table,
    device_table,
    paper_table,
    sensitivity_tables,
    testbed_table,
    text_table,
)
from relief_ray.support.errors import counted, listed, visible
from relief_ray.support.files import disk_errors, refuse_links, write_atomic
from relief_ray.support.table import Table, Tone, as_csv
from relief_ray.support.text import first_few, typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MplFigure

OUT = "report"
_MOST_NAMES = 3  # of folders in the name of one
# Pages of other commands that a report leads to where they lie in its folder.
_BESIDE = {"data.html": "The data, by person and sensor"}


def write(document: Document, out: Path) -> list[Path]:
    """Write all files of the report; a file that is there already is replaced.

    Raises:
        UserError: the folder cannot be written, or is a link.
    """
    folders = (out, out / "tables", out / "figures")
    refuse_links(folders)
    with disk_errors(out, "write the report"):
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        document = replace(document, beside={file: words for file, words in _BESIDE.items() if (out / file).is_file()})
        drawings = draw(document.figures, out / "figures")
        texts = {
            "index.html": html(document, drawings),
            "report.md": markdown(document),
            **{f"tables/{table.slug}.csv": table.csv() for table in document.tables},
            **{f"tables/{table.slug}.tex": table.latex() for table in document.tables},
            **{f"figures/{p.slug}.csv": as_csv([list(p.columns), *p.rows]) for p in document.figures},
        }
        for name, text in texts.items():
            write_atomic(out / name, visible(text).encode())
    return [out / name for name in texts if "/" not in name]


def default_place(folders: Sequence[Path], *, is_committed: bool = False) -> Path:
    """Where a report goes by default: ``report`` in the one folder that it is of, for committed results here.

    Of several folders none is changed: the report goes here, under their names, ``report-a-b``.
    """
    if len(folders) == 1:
        return Path(OUT) if is_committed else folders[0] / OUT
    names = [folder.resolve().stem for folder in folders]
    return Path("-".join([OUT, *first_few(names, _MOST_NAMES, "and-{}-more")]))


def command_of(folders: Sequence[Path]) -> str:
    """What one types for a report of these folders."""
    return " ".join(["relief-ray report", *map(typed, folders)])


def draw(figures: Sequence[Figure], folder: Path) -> dict[str, str]:
    """Write every figure as PDF and PNG; return their SVG by slug, nothing where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return {}
    return {
        figure.view(word): _draw(draw, figure.height_in, folder / figure.view(word))
        for figure in figures
        for word, draw in (figure.views or {"": figure.draw}).items()
    }


def _draw(draw: Callable[[MplFigure], None], height_in: float, file: Path) -> str:
    with sheet(height_in) as canvas:
        draw(canvas)
        for suffix in (".pdf", ".png", ".svg"):
            save(canvas, file.with_suffix(suffix))
    return file.with_suffix(".svg").read_text(encoding="utf-8")


Named = TypeVar("Named", Table, Figure)
_NO_CLAIMS = Registry()
# Settings up to which all stand open on the page, and rows of a table.
_MOST_OPEN, _MOST_ROWS = 3, 12
# Figures of a setting; those that stand right below its main table.
FIGURES = {
    "convergence": progress,
    "rare": rare,
    "pareto": pareto,
    "round": timeline_figure,
    "modalities": modalities,
    "devices": devices,
    "allocation": allocation,
    "divergence": traces,
    "phases": phases,
    "cosine": cosine,
}
_FIRST = ("convergence", "pareto", "round")
# Tables of a setting below everything else.
_TABLES = {
    "all": further_table,
    "ablation": ablation_table,
    "paper": paper_table,
    "testbed": testbed_table,
    "devices-used": device_table,
    "measured": physical_table,
    "clocks": clocks_table,
}


def build(
    inventory: Inventory, registry: Registry = _NO_CLAIMS, *, explain: Explain | None = None, command: str = ""
) -> Document:
    """Whole report of an inventory; ``registry``: the claims that were named before its runs.

    Warnings come first, then results: a section per setting with what it says in words, its claims, table and figures.
    Everything else is folded. What the report rests on (cells, settings, programs) comes last.

    Args:
        inventory: what was planned and computed.
        registry: the claims.
        explain: gives the reasons of a run's clients, for the timeline.
        command: what one types for this report.
    """
    settings = by_setting(inventory)
    known = [e for e in settings if e.choice != "try"]
    verdicts, problems = judge(known, registry)
    sections = [
        _section("Different programs", "notice", [_notice(_mixture(inventory))]),
        _section("Claims that are not judged", "claims", [_notice(problems)]),
    ]
    for number, (comparison, judgement) in enumerate(zip(known, verdicts, strict=True), 1):
        # Of many settings the first stands open; the others, which are as long, are a click away.
        is_folded = number > 1 and len(known) > _MOST_OPEN
        sections += _setting(comparison, f"e{number}", judgement, known, is_folded, bool(registry.files), explain)
    absent = gaps(inventory)
    sections += [
        *(
            _section(e.title, f"s{number}", [_called(f"search-{number}", search_table(e))], is_folded=True)
            for number, e in enumerate((e for e in settings if e.choice == "try"), 1)
        ),
        _section("Across settings", "across", [*sensitivity_tables(known), text_table(known)]),
        _section("Gaps", "gaps", [absent], is_folded=absent is not None and len(absent.rows) > _MOST_ROWS),
        _section("What this rests on", "overview", overview(inventory, settings), is_folded=True),
    ]
    names = dict.fromkeys(e.data_title for e in settings if e.dataset)
    return Document(
        title=f"Results on {listed(names)}" if names else "Results",
        lead=lead(inventory, settings),
        sections=tuple(section for section in sections if section.blocks),
        footer=footer(inventory.done),
        command=command,
    )


def _called(slug: str, block: Named | None) -> Named | None:
    """The table or figure under the name of its files and anchor."""
    return None if block is None else replace(block, slug=slug)


def _section(
    title: str, slug: str, blocks: Iterable[Block | None], *, level: int = 2, is_folded: bool = False
) -> Section:
    """The section with the blocks that there are; one without any is left out in the end."""
    shown = tuple(block for block in blocks if block is not None)
    return Section(title=title, slug=slug, blocks=shown, level=level, is_folded=is_folded)


def _notice(lines: Sequence[str], tone: Tone = "warn") -> Paragraphs | None:
    return Paragraphs(lines=tuple(lines), tone=tone) if lines else None


def _sentences(lines: Iterable[str]) -> Paragraphs | None:
    ended = tuple(line if line.endswith((".", "!")) else f"{line}." for line in lines)
    return Paragraphs(lines=ended, is_list=True) if ended else None


def _mixture(inventory: Inventory) -> list[str]:
    """Warning where cells were computed by different programs."""
    number = len(programs(inventory.done))
    warning = (
        f"Cells of {number} different programs stand in this report. Rows that mix them say so (`by other code`); "
        "a difference between methods may then be one between programs. Compute the old cells again "
        "(`--rerun-stale`) before you rely on it."
    )
    return [warning] if number > 1 else []


def lead(inventory: Inventory, settings: Sequence[Comparison]) -> str:
    """First sentence: number of cells and settings, SYNTHETIC data."""
    cells, done = len(inventory.items), inventory.count("done")
    cell_text = "no cells" if not cells else counted(cells, "cell")
    if cells:
        cell_text = f"{done} of {cell_text} done" if done < cells else f"{cell_text}, {'all ' if cells > 1 else ''}done"
    named = f"{'; '.join(inventory.titles)}: " if inventory.titles else ""
    is_fake = any(not e.is_real for e in settings if e.runs)
    fake = " Some data are SYNTHETIC: nothing follows from them." if is_fake else ""
    empty = " There is nothing to show yet; every table below is a gap." if not done else ""
    return f"{named}{cell_text}, {counted(len(settings), 'setting')}.{empty}{fake}"


def _setting(
    comparison: Comparison,
    slug: str,
    judgement: ClaimResults | None,
    known: Sequence[Comparison],
    is_folded: bool,
    is_named: bool,
    explain: Explain | None,
) -> list[Section]:
    """What a setting says, its claims, table and figures, then what explains them; all that has something to show."""
    is_several = len(comparison.rows) > 1
    verdict = _notice(["No cell of this setting is done."])
    if comparison.runs:
        verdict = _notice(in_words(comparison, judgement, is_named=is_named) if is_several else (), "info")
    # A setting with another fleet is drawn where no setting with the usual one is there.
    is_drawn = comparison.runs and (comparison.is_drawn or not any(e.is_drawn for e in known))
    makers: Mapping[str, Callable[[Comparison], Figure | None]]
    makers = {**FIGURES, "round": partial(timeline_figure, explain=explain)}
    drawings = {
        name: _called(f"{slug}-{name}", make(comparison)) if is_drawn else None for name, make in makers.items()
    }
    claims = None if judgement is None else _called(f"{slug}-verdicts", verdict_table(judgement))
    surprises = [*rare_alone(comparison), *directions(comparison, read_paper())] if is_several else []
    # What marks rows is explained below their table.
    told = [line for line in (remarks(comparison) if comparison.runs else ()) if not line.startswith(STAND_IN)]
    folded: list[tuple[str, str, Iterable[Block | None]]] = [
        ("What surprised", "odd", [_sentences(surprises)]),
        ("Scatter of the claims' pairs", "claims", [scatter(judgement)] if judgement is not None else []),
        ("Remarks", "remarks", [_sentences(told)]),
        ("Data and clients", "data", data_tables(comparison, slug)),
        ("More figures", "figures", [figure for name, figure in drawings.items() if name not in _FIRST]),
        ("More tables", "tables", [_called(f"{slug}-{name}", make(comparison)) for name, make in _TABLES.items()]),
    ]
    table = _called(f"{slug}-main", main_table(comparison, known))
    first: list[Block | None] = [verdict, claims, table, *(drawings[name] for name in _FIRST)]
    return [
        _section(comparison.title, slug, first, is_folded=is_folded),
        *(_section(title, f"{slug}-{name}", blocks, level=3, is_folded=True) for title, name, blocks in folded),
    ]
