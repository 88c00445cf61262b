"""The document as one HTML file that needs nothing else: style, tables and figures are inside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files

from relief_ray.report.document import Block, Document, Entry, Line, Origin, Plot, Prose, Section, Sheet, column_origins

STYLE_FILE = "style.css"
MINUS = "\N{MINUS SIGN}"


def html(document: Document, drawings: Mapping[str, str]) -> str:
    """The page; ``drawings`` are the figures' SVG by slug (a figure without one is left out, its caption says so)."""
    style = files("relief_ray.report.formats").joinpath(STYLE_FILE).read_text(encoding="utf-8")
    body = "\n".join(_section(s, drawings) for s in document.sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(document.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(document.title)}</h1>\n<p class='lead'>{inline(document.lead)}</p></header>\n"
        f"<nav aria-label='Contents'><ol>{_contents(document.sections)}</ol></nav>\n"
        f"<main>\n{body}\n</main>\n<footer>{inline(document.footer)}</footer>\n</body>\n</html>\n"
    )


def inline(text: str) -> str:
    """Escaped text with ``code`` marked up; a hyphen before a digit becomes a minus sign."""
    safe = re.sub(r"(?<![\w.`])-(?=\d)", MINUS, escape(text))
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)


def _contents(sections: Iterable[Section]) -> str:
    return "".join(f"<li><a href='#{s.slug}'>{inline(s.title)}</a></li>" for s in sections if s.level == 2)


def _section(section: Section, drawings: Mapping[str, str]) -> str:
    tag = f"h{section.level}"
    blocks = "\n".join(_block(b, drawings) for b in section.blocks)
    return f"<section id='{section.slug}'>\n<{tag}>{inline(section.title)}</{tag}>\n{blocks}\n</section>"


def _block(block: Block, drawings: Mapping[str, str]) -> str:
    if isinstance(block, Prose):
        return _prose(block)
    return _table(block) if isinstance(block, Sheet) else _figure(block, drawings.get(block.slug))


def _prose(block: Prose) -> str:
    tag = "li" if block.is_list else "p"
    lines = "\n".join(f"<{tag}>{inline(line)}</{tag}>" for line in block.lines)
    lines = f"<ul>\n{lines}\n</ul>" if block.is_list else lines
    return f"<div class='notice {block.tone}'>{lines}</div>" if block.tone else lines


def _table(sheet: Sheet) -> str:
    origins = column_origins(sheet)
    second = f"<small>{inline(sheet.second)}</small>" if sheet.second else ""
    head = f"<th scope='col'>{inline(sheet.head[0])}{second}</th>" + "".join(
        f"<th scope='col'>{inline(name)}{_chip(origin)}</th>"
        for name, origin in zip(sheet.head[1:], origins, strict=True)
    )
    lines = "\n".join(_line(line, origins) for line in sheet.lines)
    notes = "".join(f"<p class='note'>{inline(n)}</p>" for n in sheet.notes)
    kind = " class='words'" if sheet.is_text else ""
    return (
        f"<div class='table' id='{sheet.slug}'><table{kind}>\n<caption>{inline(sheet.caption)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody></table>{notes}</div>"
    )


def _line(line: Line, origins: Iterable[Origin | None]) -> str:
    names = [name for name, given in (("rule", line.rule), ("faint", line.faint)) if given]
    kind = f" class='{' '.join(names)}'" if names else ""
    cells = "".join(_cell(e, o) for e, o in zip(line.entries, origins, strict=True))
    return f"<tr{kind}><th scope='row'>{inline(line.name)}</th>{cells}</tr>"


def _cell(entry: Entry, usual: Origin | None) -> str:
    kind = f" class='{entry.tone}'" if entry.tone else ""
    chip = _chip(entry.origin) if entry.origin != usual else ""
    below = f"<small>{inline(entry.below)}</small>" if entry.below else ""
    return f"<td{kind}>{inline(entry.text)}{chip}{below}</td>"


def _chip(origin: Origin | None) -> str:
    return f"<span class='origin {origin.lower()}'>{origin}</span>" if origin else ""


def _figure(plot: Plot, drawing: str | None) -> str:
    picture = own_ids(drawing, plot.slug) if drawing else "<p class='note'>Not drawn: matplotlib is not installed.</p>"
    label = escape(plot.caption.replace("`", ""), quote=True)
    return (
        f"<figure id='{plot.slug}' style='max-width: {plot.width_in * 1.4:.2f}in'>"
        f'<div role="img" aria-label="{label}">{picture}</div>'
        f"<figcaption>{inline(plot.caption)} <span class='file'>figures/{plot.slug}.csv</span></figcaption></figure>"
    )


def own_ids(drawing: str, slug: str) -> str:
    """The ``<svg>`` element alone, its ids made unique in the page and its size left to the page."""
    found = drawing[drawing.index("<svg") :]
    found = re.sub(r"<metadata>.*?</metadata>\s*", "", found, flags=re.DOTALL)
    opening, rest = found.split(">", 1)
    opening = re.sub(r'\s(?:width|height)="[^"]*"', "", opening)
    rest = re.sub(r'\bid="([^"]+)"', rf'id="{slug}-\1"', rest)
    rest = re.sub(r"url\(#([^)]+)\)", rf"url(#{slug}-\1)", rest)
    return f"{opening}>" + re.sub(r'href="#([^"]+)"', rf'href="#{slug}-\1"', rest)
