"""Assembles the report, sections in order, and writes its files: HTML, Markdown, LaTeX, CSV, PDF, PNG."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from relief_ray.files import disk_errors, write_atomic
from relief_ray.report.captions import clock_sentence, remarks
from relief_ray.report.claims import Judgement, judge, last_line, scatter, verdict_table
from relief_ray.report.document import Block, Document, Figure, Number, Paragraphs, Section, Table
from relief_ray.report.experiments import Experiment, experiments
from relief_ray.report.figures.devices import allocation, devices
from relief_ray.report.figures.modalities import modalities
from relief_ray.report.figures.progress import pareto, progress
from relief_ray.report.figures.style import save, sheet
from relief_ray.report.figures.timeline import timeline_figure
from relief_ray.report.figures.updates import cosine, phases, traces
from relief_ray.report.findings import directions, surprises
from relief_ray.report.formats.html import html
from relief_ray.report.formats.latex import latex
from relief_ray.report.formats.markdown import markdown
from relief_ray.report.inventory import Inventory
from relief_ray.report.paper import Paper, read_paper
from relief_ray.report.registered import Registry
from relief_ray.report.tables.ablation import ablation_table
from relief_ray.report.tables.main import labels_of, main_table
from relief_ray.report.tables.overview import footer, gaps, overview
from relief_ray.report.tables.paper_text import text_table
from relief_ray.report.tables.sensitivity import sensitivity_tables
from relief_ray.report.tables.testbed import device_table, testbed_table
from relief_ray.report.tables.tuned import search_table, with_tuned

KEYS = ("mean", "std", "n", "paper", "paper_std", "deviation", "origin")


def write(document: Document, out: Path) -> list[Path]:
    """Write all files of the report; a file that is there already is replaced.

    Raises:
        UserError: the folder cannot be written.
    """
    with disk_errors(out, "write the report"):
        for folder in (out, out / "tables", out / "figures"):
            folder.mkdir(parents=True, exist_ok=True)
        drawings = draw(document.figures, out / "figures")
        texts = {
            "index.html": html(document, drawings), "report.md": markdown(document), "report.tex": latex(document),
            **{f"tables/{s.slug}.csv": table_csv(s) for s in document.tables},
            **{f"figures/{p.slug}.csv": as_csv([list(p.columns), *p.rows]) for p in document.figures},
        }  # fmt: skip
        for name, text in texts.items():
            write_atomic(out / name, text.encode())
    return [out / name for name in texts if "/" not in name]


def draw(figures: Sequence[Figure], folder: Path) -> dict[str, str]:
    """Write every figure as PDF and PNG; return their SVG by slug, nothing where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return {}
    return {figure.slug: _draw(figure, folder) for figure in figures}


def _draw(figure: Figure, folder: Path) -> str:
    with sheet(figure.height_in, figure.width_in) as canvas:
        figure.draw(canvas)
        for suffix in (".pdf", ".png"):
            save(canvas, folder / f"{figure.slug}{suffix}")
    # Letters as outlines: the page looks the same where the font is not installed.
    with sheet(figure.height_in, figure.width_in, outlines=True) as canvas:
        figure.draw(canvas)
        return save(canvas, folder / f"{figure.slug}.svg").read_text(encoding="utf-8")


def table_csv(table: Table) -> str:
    """CSV with one line per cell and its numbers; a table of words as it is printed."""
    if table.is_text:
        return as_csv([list(table.head), *([row.name, *(c.text for c in row.cells)] for row in table.rows)])
    others = dict.fromkeys(k for row in table.rows for c in row.cells for k in c.numbers if k not in KEYS)
    keys = [*KEYS, *others]
    lines: list[list[Number]] = [["row", "column", "text", *keys]]
    for row in table.rows:
        for name, cell in zip(table.head[1:], row.cells, strict=True):
            lines.append([row.name, name, cell.text, *(cell.numbers.get(k) for k in keys)])
    return as_csv(lines)


def as_csv(rows: Sequence[Sequence[Number]]) -> str:
    """Rows as CSV; None is empty."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


_TITLE = "RELIEF: the paper's tables and figures, recomputed"
_NO_CLAIMS = Registry()


def build(inventory: Inventory, registry: Registry = _NO_CLAIMS) -> Document:
    """Whole report of an inventory; ``registry``: the claims that were named before its runs."""
    paper, settings = read_paper(), experiments(inventory)
    sections = [overview(inventory, settings)]
    known = tuple(e for e in settings if e.choice != "try")
    verdicts, problems = judge([e.main for e in known], registry)
    if problems:
        blocks = (Paragraphs(lines=problems, tone="warn"),)
        sections.append(Section(title="Claims that are not judged", slug="claims", blocks=blocks))
    for number, (experiment, judgement) in enumerate(zip(known, verdicts, strict=True), 1):
        sections += _experiment_sections(experiment, paper, f"e{number}", judgement, known)
    searches = [e for e in settings if e.choice == "try"]
    for number, experiment in enumerate(searches, 1):
        table = search_table(experiment, f"search-{number}")
        sections.append(Section(title=experiment.title, slug=f"s{number}", blocks=(table,)))
    across = [*sensitivity_tables(known, paper), *(t for t in (text_table(known, paper),) if t is not None)]
    sections += [Section(title="Across settings", slug="across", blocks=tuple(across))] if across else []
    sections += [s for s in (gaps(inventory),) if s is not None]
    return Document(
        title=_TITLE, lead=lead(inventory, settings), sections=tuple(sections), footer=footer(inventory.done)
    )


def lead(inventory: Inventory, settings: Sequence[Experiment]) -> str:
    """First sentence: number of cells and settings, SYNTHETIC data."""
    cells = len(inventory.items)
    done = inventory.count("done")
    counted = (
        "no cells" if not cells else f"{done} of {cells} cells done" if done < cells else f"{cells} cells, all done"
    )
    named = f"{'; '.join(inventory.titles)}: " if inventory.titles else ""
    fake = (
        " Some data are SYNTHETIC: nothing follows from them." if any(not e.is_real for e in settings if e.runs) else ""
    )
    empty = " There is nothing to show yet; every table below is a gap." if not done else ""
    return f"{named}{counted}, {len(settings)} setting{'' if len(settings) == 1 else 's'}.{empty}{fake}"


def _experiment_sections(
    experiment: Experiment, paper: Paper, slug: str, judgement: Judgement | None, known: Sequence[Experiment]
) -> Iterator[Section]:
    """Table, verdicts and figures of one experiment."""
    blocks: list[Block] = []
    comparison = experiment.main
    if comparison is None:
        blocks.append(Paragraphs(lines=("No cell of this setting is done.",), tone="warn"))
    elif len(comparison.rows) > 1:
        blocks.append(Paragraphs(lines=(last_line(comparison, judgement),)))
    table = main_table(experiment, paper, f"{slug}-main")
    blocks.append(with_tuned(table, labels_of(experiment), experiment, known))
    blocks += [t for t in (ablation_table(experiment, paper, f"{slug}-ablation"),) if t is not None]
    blocks += [t for t in (testbed_table(experiment, paper, f"{slug}-testbed"),) if t is not None]
    blocks += [t for t in (device_table(experiment, paper, f"{slug}-devices-used"),) if t is not None]
    if comparison is not None:
        planner = f"First sentence, claims and figures: {clock_sentence(comparison)}"
        blocks.append(Paragraphs(lines=(planner, *remarks(comparison)), is_list=True))
    yield Section(title=experiment.title, slug=slug, blocks=tuple(blocks))
    if judgement is not None:
        claims = (verdict_table(judgement, f"{slug}-verdicts"), scatter(judgement))
        yield Section(title="Claims", slug=f"{slug}-claims", blocks=claims, level=3)
    if comparison is not None and len(comparison.rows) > 1:
        if odd := [*surprises(comparison), *directions(experiment, paper)]:
            yield Section(
                title="What surprised",
                slug=f"{slug}-odd",
                blocks=(Paragraphs(lines=tuple(odd), is_list=True),),
                level=3,
            )
    if experiment.is_drawn and (drawings := tuple(figures(experiment, slug))):
        yield Section(title="Figures", slug=f"{slug}-figures", blocks=drawings, level=3)


FIGURES = {
    "convergence": progress, "pareto": pareto, "modalities": modalities, "cosine": cosine, "phases": phases,
    "divergence": traces, "allocation": allocation, "devices": devices, "round": timeline_figure,
}  # fmt: skip


def figures(experiment: Experiment, slug: str) -> Iterator[Figure]:
    """Every figure that the records of an experiment can fill; without pandas, those that need it are left out."""
    absent = () if importlib.util.find_spec("pandas") else (progress, pareto)
    for name, make in FIGURES.items():
        if make not in absent and (figure := make(experiment, f"{slug}-{name}")) is not None:
            yield figure
