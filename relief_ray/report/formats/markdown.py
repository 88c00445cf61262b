"""The document as GitHub Markdown; figures are linked, not drawn."""

from __future__ import annotations

from collections.abc import Iterable

from relief_ray.report.document import Block, Document, Entry, Plot, Prose, Section, Sheet, column_origins
from relief_ray.report.formats.text import markdown_table


def markdown(document: Document, figures: str = "figures") -> str:
    """The page; ``figures``: the folder that links point to."""
    parts = [f"# {document.title}", document.lead]
    for section in document.sections:
        parts += _section(section, figures)
    parts.append(f"<sub>{document.footer}</sub>")
    return "\n\n".join(p.strip("\n") for p in parts if p) + "\n"


def _section(section: Section, figures: str) -> Iterable[str]:
    yield f"{'#' * section.level} {section.title}"
    yield from (_block(b, figures) for b in section.blocks)


def _block(block: Block, figures: str) -> str:
    if isinstance(block, Sheet):
        return _table(block)
    if isinstance(block, Plot):
        return f"![{block.caption}]({figures}/{block.slug}.png)\n\n{block.caption}"
    return _prose(block)


def _prose(block: Prose) -> str:
    mark = "> " if block.tone else "- " if block.is_list else ""
    return ("\n" if block.is_list or block.tone else "\n\n").join(f"{mark}{line}" for line in block.lines)


def _table(sheet: Sheet) -> str:
    origins = column_origins(sheet)
    pairs = zip(sheet.head[1:], origins, strict=True)
    first = f"{sheet.head[0]}<br><sub>{sheet.second}</sub>" if sheet.second else sheet.head[0]
    head = [first, *(name if origin is None else f"{name} ({origin})" for name, origin in pairs)]
    rows = [
        [
            line.name,
            *(_cell(e, e.origin if e.origin != o else None) for e, o in zip(line.entries, origins, strict=True)),
        ]
        for line in sheet.lines
    ]
    notes = "\n\n".join(sheet.notes)
    return f"**{sheet.caption}**\n\n{markdown_table(head, rows, numeric=not sheet.is_text)}\n{notes}"


def _cell(entry: Entry, origin: str | None) -> str:
    first = " ".join(p for p in (entry.text, origin) if p)
    second = f"<sub>{entry.below}</sub>" if entry.below else ""
    return "<br>".join(p for p in (first, second) if p).replace("|", "\\|")
