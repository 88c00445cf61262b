"""Document as GitHub Markdown; figures are linked, not drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from relief_ray.report.document import Block, Cell, Document, Figure, Paragraphs, Section, Table, column_origins


def markdown(document: Document, figures: str = "figures") -> str:
    """The page; ``figures``: the folder that links point to."""
    parts = [f"# {document.title}", document.lead]
    for section in document.sections:
        parts += _section(section, figures, document.numbers)
    parts.append(f"<sub>{document.footer}</sub>")
    return "\n\n".join(p.strip("\n") for p in parts if p) + "\n"


def _markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: bool = True) -> str:
    """Table of texts; where it is ``numeric``, all columns but the first stand to the right."""
    dashes = ["---", *("---:" if numeric else "---" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, dashes, *rows)) + "\n"


def table_markdown(table: Table, number: str = "") -> str:
    """Caption after its ``number`` (``Table 1``), rows and notes."""
    origins = column_origins(table)
    pairs = zip(table.head[1:], origins, strict=True)
    first = f"{table.head[0]}<br><sub>{table.second}</sub>" if table.second else table.head[0]
    head = [first, *(name if origin is None else f"{name} ({origin})" for name, origin in pairs)]
    rows = [
        [row.name, *(_cell(c, c.origin if c.origin != o else None) for c, o in zip(row.cells, origins, strict=True))]
        for row in table.rows
    ]
    body = f"{_markdown_table(head, rows, numeric=not table.is_text)}\n" + "\n\n".join(table.notes)
    caption = f"{number}. {table.caption}" if number else table.caption
    return f"**{caption}**\n\n{body}" if caption else body


def _section(section: Section, figures: str, numbers: Mapping[str, str]) -> Iterable[str]:
    yield f"{'#' * section.level} {section.title}"
    yield from (_block(b, figures, numbers) for b in section.blocks)


def _block(block: Block, figures: str, numbers: Mapping[str, str]) -> str:
    if isinstance(block, Table):
        return table_markdown(block, numbers.get(block.slug, ""))
    if isinstance(block, Figure):
        caption = f"{numbers[block.slug]}. {block.caption}"
        return f"![{caption}]({figures}/{block.slug}.png)\n\n{caption}"
    return _paragraphs(block)


def _paragraphs(block: Paragraphs) -> str:
    mark = "> " if block.tone else "- " if block.is_list else ""
    # Without a line between them, those of a quotation would flow together.
    return ("\n>\n" if block.tone else "\n" if block.is_list else "\n\n").join(f"{mark}{line}" for line in block.lines)


def _cell(cell: Cell, origin: str | None) -> str:
    first = " ".join(p for p in (cell.text, origin) if p)
    second = f"<sub>{cell.below}</sub>" if cell.below else ""
    return "<br>".join(p for p in (first, second) if p).replace("|", "\\|")
