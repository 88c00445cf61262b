"""Document as one HTML file that needs nothing else: style, tables and figures are inside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files

from relief_ray.report.document import (
    TEXT_WIDTH_IN,
    Block,
    Cell,
    Document,
    Figure,
    Origin,
    Paragraphs,
    Row,
    Section,
    Table,
    column_origins,
)

_STYLE_FILE = "style.css"
# Width of a figure as wide as the text of the LaTeX page.
_FULL_REM = 68
MINUS = "\N{MINUS SIGN}"


def html(document: Document, drawings: Mapping[str, str]) -> str:
    """The page; ``drawings`` are the figures' SVG by slug (a figure without one is left out, its caption says so)."""
    style = files("relief_ray.report.formats").joinpath(_STYLE_FILE).read_text(encoding="utf-8")
    numbers = document.numbers
    body = "\n".join(_chapter(c, drawings, numbers) for c in _chapters(document.sections))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(document.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(document.title)}</h1>\n<p class='lead'>{inline(document.lead)}</p></header>\n"
        f"<nav aria-label='Contents'><ol>{_contents(document.sections)}</ol></nav>\n"
        f"<main>\n{body}\n</main>\n<footer>{inline(document.footer)}</footer>\n</body>\n</html>\n"
    )


def inline(text: str) -> str:
    """Escaped text with ``code`` marked up; minus signs before digits; ``%`` stays with its number."""
    safe = re.sub(r"(?<![\w.`])-(?=\d)", MINUS, escape(text))
    safe = re.sub(r"(?<=\d) (?=%)", "&nbsp;", safe)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)


def _contents(sections: Iterable[Section]) -> str:
    return "".join(f"<li><a href='#{s.slug}'>{inline(s.title)}</a></li>" for s in sections if s.level == 2)


def _chapters(sections: Iterable[Section]) -> list[list[Section]]:
    """Each section of level 2 with those inside it."""
    chapters: list[list[Section]] = []
    for section in sections:
        if section.level == 2 or not chapters:
            chapters.append([])
        chapters[-1].append(section)
    return chapters


def _chapter(sections: Sequence[Section], drawings: Mapping[str, str], numbers: Mapping[str, str]) -> str:
    first, *others = sections
    inside = [_section(s, drawings, numbers) for s in others]
    return _section(first, drawings, numbers, "\n".join(inside) if first.is_folded else "") + (
        "" if first.is_folded else "".join(f"\n{text}" for text in inside)
    )


def _section(section: Section, drawings: Mapping[str, str], numbers: Mapping[str, str], inside: str = "") -> str:
    tag = f"h{section.level}"
    heading = f"<{tag}>{inline(section.title)}</{tag}>"
    blocks = "\n".join(_block(b, drawings, numbers) for b in section.blocks) + (f"\n{inside}" if inside else "")
    if section.is_folded:
        return f"<section id='{section.slug}'>\n<details><summary>{heading}</summary>\n{blocks}\n</details>\n</section>"
    return f"<section id='{section.slug}'>\n{heading}\n{blocks}\n</section>"


def _block(block: Block, drawings: Mapping[str, str], numbers: Mapping[str, str]) -> str:
    if isinstance(block, Paragraphs):
        return _paragraphs(block)
    number = f"<b>{numbers[block.slug]}.</b> " if block.slug in numbers else ""
    return _table(block, number) if isinstance(block, Table) else _figure(block, number, drawings.get(block.slug))


def _paragraphs(block: Paragraphs) -> str:
    tag = "li" if block.is_list else "p"
    lines = "\n".join(f"<{tag}>{inline(line)}</{tag}>" for line in block.lines)
    lines = f"<ul>\n{lines}\n</ul>" if block.is_list else lines
    return f"<div class='notice {block.tone}'>{lines}</div>" if block.tone else lines


def _table(table: Table, number: str) -> str:
    origins = column_origins(table)
    second = f"<small>{inline(table.second)}</small>" if table.second else ""
    head = f"<th scope='col'>{inline(table.head[0])}{second}</th>" + "".join(
        f"<th scope='col'>{inline(name)}{_chip(origin)}</th>"
        for name, origin in zip(table.head[1:], origins, strict=True)
    )
    lines = "\n".join(_row(row, origins) for row in table.rows)
    notes = "".join(f"<p class='note'>{inline(n)}</p>" for n in table.notes)
    kind = " class='words'" if table.is_text else ""
    return (
        f"<div class='table' id='{table.slug}'><table{kind}>\n<caption>{number}{inline(table.caption)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody></table>{notes}</div>"
    )


def _row(row: Row, origins: Iterable[Origin | None]) -> str:
    names = [name for name, is_so in (("rule", row.rule), ("faint", row.faint)) if is_so]
    kind = f" class='{' '.join(names)}'" if names else ""
    cells = "".join(_cell(e, o) for e, o in zip(row.cells, origins, strict=True))
    return f"<tr{kind}><th scope='row'>{inline(row.name)}</th>{cells}</tr>"


def _cell(cell: Cell, usual: Origin | None) -> str:
    kind = f" class='{cell.tone}'" if cell.tone else ""
    chip = _chip(cell.origin) if cell.origin != usual else ""
    below = f"<small>{inline(cell.below)}</small>" if cell.below else ""
    return f"<td{kind}>{inline(cell.text)}{chip}{below}</td>"


def _chip(origin: Origin | None) -> str:
    return f"<span class='origin {origin.lower()}'>{origin}</span>" if origin else ""


def _figure(figure: Figure, number: str, drawing: str | None) -> str:
    picture = (
        own_ids(drawing, figure.slug) if drawing else "<p class='note'>Not drawn: matplotlib is not installed.</p>"
    )
    label = escape(figure.caption.replace("`", ""), quote=True)
    return (
        f"<figure id='{figure.slug}' style='max-width: {_FULL_REM * figure.width_in / TEXT_WIDTH_IN:.0f}rem'>"
        f'<div role="img" aria-label="{label}">{picture}</div>'
        f"<figcaption>{number}{inline(figure.caption)} <span class='file'>figures/{figure.slug}.csv</span></figcaption>"
        "</figure>"
    )


def own_ids(drawing: str, slug: str) -> str:
    """The ``<svg>`` element alone, its ids made unique in the page and its size left to the page."""
    svg = drawing[drawing.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    opening, rest = svg.split(">", 1)
    opening = re.sub(r'\s(?:width|height)="[^"]*"', "", opening)
    rest = re.sub(r'\bid="([^"]+)"', rf'id="{slug}-\1"', rest)
    rest = re.sub(r"url\(#([^)]+)\)", rf"url(#{slug}-\1)", rest)
    return f"{opening}>" + re.sub(r'href="#([^"]+)"', rf'href="#{slug}-\1"', rest)
