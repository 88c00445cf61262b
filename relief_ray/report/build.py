"""The report: its sections in order, and its files: a page, Markdown, figures, each table as CSV and LaTeX."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from relief_ray.report.claims import Judgement, Registry, judge, last_lines, scatter, verdict_table
from relief_ray.report.comparison import Experiment, experiments
from relief_ray.report.document import Block, Document, Figure, Paragraphs, Section
from relief_ray.report.figures.devices import allocation, devices
from relief_ray.report.figures.modalities import modalities
from relief_ray.report.figures.progress import pareto, progress, rare
from relief_ray.report.figures.style import save, sheet
from relief_ray.report.figures.timeline import timeline_figure
from relief_ray.report.figures.updates import cosine, phases, traces
from relief_ray.report.formats.pages import html, markdown
from relief_ray.report.paper import Paper, read_paper
from relief_ray.report.remarks import STAND_IN, directions, rare_alone, remarks
from relief_ray.report.runs import Inventory
from relief_ray.report.tables.data import MOST_OPEN, data_tables
from relief_ray.report.tables.methods import clocks_table, main_table, paper_table, row_label
from relief_ray.report.tables.overview import footer, gaps, mixture, overview
from relief_ray.report.tables.paper import ablation_table
from relief_ray.report.tables.paper_text import text_table
from relief_ray.report.tables.physical import physical_table
from relief_ray.report.tables.sensitivity import sensitivity_tables
from relief_ray.report.tables.testbed import device_table, testbed_table
from relief_ray.report.tables.tuned import search_table, with_tuned
from relief_ray.support.errors import counted, listed
from relief_ray.support.files import disk_errors, write_atomic
from relief_ray.support.table import Table, as_csv


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
            "index.html": html(document, drawings),
            "report.md": markdown(document),
            **{f"tables/{table.slug}.csv": table.csv() for table in document.tables},
            **{f"tables/{table.slug}.tex": table.latex() for table in document.tables},
            **{f"figures/{p.slug}.csv": as_csv([list(p.columns), *p.rows]) for p in document.figures},
        }
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


_NO_CLAIMS = Registry()
# Settings up to which all stand open on the page.
_MOST_OPEN = 3


def build(inventory: Inventory, registry: Registry = _NO_CLAIMS) -> Document:
    """Whole report of an inventory; ``registry``: the claims that were named before its runs.

    Results come first: a section per setting with its verdict, table and figures. What the report rests on (cells,
    settings, programs) comes last.
    """
    paper, settings = read_paper(), experiments(inventory)
    known = tuple(e for e in settings if e.choice != "try")
    verdicts, problems = judge([e.main for e in known], registry)
    sections = list(_notices(inventory, problems))
    for number, (experiment, judgement) in enumerate(zip(known, verdicts, strict=True), 1):
        chapter = list(_experiment_sections(experiment, paper, f"e{number}", judgement, known))
        # Of many settings the first stands open; the others, which are as long, are a click away.
        sections += [replace(chapter[0], is_folded=number > 1 and len(known) > _MOST_OPEN), *chapter[1:]]
    searches = [e for e in settings if e.choice == "try"]
    for number, experiment in enumerate(searches, 1):
        table = search_table(experiment, f"search-{number}")
        sections.append(Section(title=experiment.title, slug=f"s{number}", blocks=(table,), is_folded=True))
    across = [*sensitivity_tables(known, paper), *(t for t in (text_table(known, paper),) if t is not None)]
    sections += [Section(title="Across settings", slug="across", blocks=tuple(across))] if across else []
    sections += [s for s in (gaps(inventory),) if s is not None]
    sections.append(overview(inventory, settings))
    return Document(
        title=_title(settings), lead=lead(inventory, settings), sections=tuple(sections), footer=footer(inventory.done)
    )


def _title(settings: Sequence[Experiment]) -> str:
    """``Results on DSA``, or on a user's own data by their title."""
    names = dict.fromkeys(e.data_title for e in settings if e.dataset)
    return f"Results on {listed(names)}" if names else "Results"


def _notices(inventory: Inventory, problems: tuple[str, ...]) -> Iterator[Section]:
    """Warnings that a reader needs before the first table: mixed programs, claims that cannot be judged."""
    if mixed := mixture(inventory.done):
        yield Section(title="Different programs", slug="notice", blocks=(Paragraphs(lines=(mixed,), tone="warn"),))
    if problems:
        blocks = (Paragraphs(lines=problems, tone="warn"),)
        yield Section(title="Claims that are not judged", slug="claims", blocks=blocks)


def lead(inventory: Inventory, settings: Sequence[Experiment]) -> str:
    """First sentence: number of cells and settings, SYNTHETIC data."""
    cells = len(inventory.items)
    done = inventory.count("done")
    cell_text = "no cells" if not cells else counted(cells, "cell")
    if cells:
        cell_text = f"{done} of {cell_text} done" if done < cells else f"{cell_text}, {'all ' if cells > 1 else ''}done"
    named = f"{'; '.join(inventory.titles)}: " if inventory.titles else ""
    fake = (
        " Some data are SYNTHETIC: nothing follows from them." if any(not e.is_real for e in settings if e.runs) else ""
    )
    empty = " There is nothing to show yet; every table below is a gap." if not done else ""
    return f"{named}{cell_text}, {counted(len(settings), 'setting')}.{empty}{fake}"


def _experiment_sections(
    experiment: Experiment, paper: Paper, slug: str, judgement: Judgement | None, known: Sequence[Experiment]
) -> Iterator[Section]:
    """Verdict, table and figures of one experiment, then what explains them."""
    comparison, drawings = experiment.main, _drawings(experiment, slug, known)
    blocks: list[Block] = []
    if comparison is None:
        blocks.append(Paragraphs(lines=("No cell of this setting is done.",), tone="warn"))
    elif len(comparison.rows) > 1:
        blocks.append(Paragraphs(lines=last_lines(comparison, judgement), tone="info"))
    table = main_table(experiment, f"{slug}-main")
    labels = [row_label(row) for row in table.rows]
    blocks += [with_tuned(table, labels, experiment, known), *(drawings.pop(n) for n in FIRST if n in drawings)]
    yield Section(title=experiment.title, slug=slug, blocks=tuple(blocks))
    if judgement is not None:
        claims = (verdict_table(judgement, f"{slug}-verdicts"), scatter(judgement))
        yield Section(title="Claims", slug=f"{slug}-claims", blocks=claims, level=3)
    yield from _explanations(experiment, paper, slug)
    if basis := data_tables(experiment, slug):
        is_long = any(len(table.rows) > MOST_OPEN for table in basis)
        yield Section(title="Data and clients", slug=f"{slug}-data", blocks=basis, level=3, is_folded=is_long)
    if drawings:
        more = tuple(drawings.values())
        yield Section(title="More figures", slug=f"{slug}-figures", blocks=more, level=3, is_folded=True)
    tables = (*_paper_tables(experiment, paper, slug), clocks_table(experiment, f"{slug}-clocks"))
    if shown := tuple(t for t in tables if t is not None):
        yield Section(title="More tables", slug=f"{slug}-tables", blocks=shown, level=3, is_folded=True)


def _explanations(experiment: Experiment, paper: Paper, slug: str) -> Iterator[Section]:
    """Sentences on what surprised, and remarks on the runs."""
    comparison = experiment.main
    if comparison is None:
        return
    odd = [*rare_alone(comparison), *directions(experiment, paper)] if len(comparison.rows) > 1 else []
    # What marks rows is explained below their table.
    told = [line for line in remarks(comparison) if not line.startswith(STAND_IN)]
    for title, name, lines in (("What surprised", "odd", odd), ("Remarks", "remarks", told)):
        if lines:
            sentences = tuple(line if line.endswith((".", "!")) else f"{line}." for line in lines)
            blocks = (Paragraphs(lines=sentences, is_list=True),)
            yield Section(title=title, slug=f"{slug}-{name}", blocks=blocks, level=3, is_folded=name == "remarks")


def _paper_tables(experiment: Experiment, paper: Paper, slug: str) -> Iterator[Table | None]:
    """Tables in the paper's form: for a built-in data set, where a method of the paper was run or planned."""
    yield ablation_table(experiment, paper, f"{slug}-ablation")
    if not experiment.is_own_data and (table := paper_table(experiment, paper, f"{slug}-paper")).rows:
        yield table
    yield testbed_table(experiment, paper, f"{slug}-testbed")
    yield device_table(experiment, paper, f"{slug}-devices-used")
    yield physical_table(experiment, f"{slug}-measured")


def _drawings(experiment: Experiment, slug: str, known: Sequence[Experiment]) -> dict[str, Figure]:
    """Figures by name; a setting with another fleet is drawn where no setting with the usual one is there."""
    is_drawn = experiment.is_drawn or not any(e.is_drawn for e in known)
    return dict(figures(experiment, slug)) if is_drawn else {}


# Figures that stand right below the main table.
FIRST = ("convergence", "rare", "pareto", "round")
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


def figures(experiment: Experiment, slug: str) -> Iterator[tuple[str, Figure]]:
    """Every figure that the records of an experiment can fill."""
    for name, make in FIGURES.items():
        if (figure := make(experiment, f"{slug}-{name}")) is not None:
            yield name, figure
