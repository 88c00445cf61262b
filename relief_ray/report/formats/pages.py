"""Document as one HTML file that needs nothing else (style, script and figures are inside), and as GitHub Markdown.

The script draws nothing and computes no figure: it hides methods, sorts and filters rows, and opens what belongs to a
part of a drawing. Without it the page shows the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from importlib.resources import files

from relief_ray.report.document import Block, Document, Figure, Paragraphs, Section
from relief_ray.support.table import Table, inline, marked

# Width of a figure, which is as wide as the text of a page of LaTeX.
_WIDTH_REM = 68


def markdown(document: Document) -> str:
    """The page; figures are linked, not drawn, from the folder ``figures``."""
    numbers, parts = document.numbers, [f"# {marked(document.title)}", marked(document.lead)]
    for section in document.sections:
        parts.append(f"{'#' * section.level} {marked(section.title)}")
        for block in section.blocks:
            if isinstance(block, Table):
                parts.append(block.markdown(numbers.get(block.slug, "")))
            elif isinstance(block, Figure):
                caption = marked(f"{numbers[block.slug]}. {block.caption}")
                parts.append(f"![{caption}](figures/{block.slug}.png)\n\n{caption}")
            else:
                mark = "> " if block.tone else "- " if block.is_list else ""
                # Without a line between them, those of a quotation would flow together.
                between = "\n>\n" if block.tone else "\n" if block.is_list else "\n\n"
                parts.append(between.join(f"{mark}{marked(line)}" for line in block.lines))
    parts += [f"[{marked(words)}]({file})" for file, words in document.beside.items()]
    parts += [f"Made by `{document.command}`"] if document.command else []
    parts.append(f"<sub>{marked(document.footer)}</sub>")
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def html(document: Document, drawings: Mapping[str, str]) -> str:
    """The page; ``drawings`` are the figures' SVG by slug (a figure without one is left out, its caption says so)."""
    here = files("relief_ray.report.formats")
    style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "page.js"))
    chapters: list[list[Section]] = []
    for section in document.sections:
        if section.level == 2 or not chapters:
            chapters.append([])
        chapters[-1].append(section)
    contents = "".join(f"<li><a href='#{c[0].slug}'>{inline(c[0].title)}</a></li>" for c in chapters)
    contents += "".join(f"<li><a href='{file}'>{escape(words)}</a></li>" for file, words in document.beside.items())
    show = partial(_block, drawings=drawings, numbers=document.numbers)
    body = "\n".join(_chapter(chapter, show) for chapter in chapters)
    made = f"<p class='note'>Made by <code>{escape(document.command)}</code></p>" if document.command else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(document.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(document.title)}</h1>\n<p class='lead'>{inline(document.lead)}</p>{made}</header>\n"
        f"<nav aria-label='Contents'><ol>{contents}</ol></nav>\n"
        f"<main>\n{body}\n</main>\n<footer>{inline(document.footer)}</footer>\n<script>\n{script}</script>\n"
        "</body>\n</html>\n"
    )


def _chapter(sections: Sequence[Section], show: Callable[[Block], str]) -> str:
    """A section of level 2, and those inside it: in its fold where it is folded, else below it."""
    first, *others = sections
    inside = [_section(section, show) for section in others]
    return _section(first, show, inside) if first.is_folded else "\n".join([_section(first, show), *inside])


def _section(section: Section, show: Callable[[Block], str], inside: Sequence[str] = ()) -> str:
    anchor = f"<a class='anchor' href='#{section.slug}' aria-label='Address of this section'>#</a>"
    heading = f"<h{section.level}>{inline(section.title)} {anchor}</h{section.level}>"
    blocks = "\n".join([*map(show, section.blocks), *inside])
    folded = f"<details><summary>{heading}</summary>\n{blocks}\n</details>"
    return (
        f"<section id='{section.slug}'>\n{folded if section.is_folded else f'{heading}{chr(10)}{blocks}'}\n</section>"
    )


def _block(block: Block, drawings: Mapping[str, str], numbers: Mapping[str, str]) -> str:
    if isinstance(block, Paragraphs):
        tag = "li" if block.is_list else "p"
        lines = "\n".join(f"<{tag}>{inline(line)}</{tag}>" for line in block.lines)
        lines = f"<ul>\n{lines}\n</ul>" if block.is_list else lines
        return f"<div class='notice {block.tone}'>{lines}</div>" if block.tone else lines
    if isinstance(block, Table):
        return block.html(numbers.get(block.slug, ""))
    file = f"figures/{block.slug}.csv"
    table = f" <a class='file' href='{file}'>{file}</a>" if block.columns else ""
    answers = "".join(
        f"<details class='answer' id='{block.slug}-answer-{part}'><summary>Why? {inline(head)}</summary>"
        f"<pre>{escape(text)}</pre></details>"
        for part, (head, text) in block.answers.items()
    )
    return (
        f"<figure id='{block.slug}' style='max-width: {_WIDTH_REM}rem'>{_pictures(block, drawings)}"
        f"<figcaption><b>{numbers[block.slug]}.</b> {inline(block.caption)}{table}</figcaption>{answers}</figure>"
    )


def _pictures(figure: Figure, drawings: Mapping[str, str]) -> str:
    """The drawing, or one for each word of the figure's switch, of which the style shows the chosen one."""
    label = escape(figure.caption.replace("`", ""), quote=True)

    def picture(slug: str) -> str:
        drawing = drawings.get(slug)
        inside = own_ids(drawing, slug) if drawing else "<p class='note'>Not drawn: matplotlib is not installed.</p>"
        return f'<div class="view" role="group" aria-label="{label}">{inside}</div>'

    if not figure.views:
        return picture(figure.slug)
    buttons = "".join(
        f"<input type='radio' name='{figure.slug}' id='{figure.view(word)}-on'{' checked' * (i == 0)}>"
        f"<label for='{figure.view(word)}-on'>{escape(word)}</label>"
        for i, word in enumerate(figure.views)
    )
    return f"{buttons}{''.join(picture(figure.view(word)) for word in figure.views)}"


def own_ids(drawing: str, slug: str) -> str:
    """The ``<svg>`` element alone, its ids made unique in the page and its size left to the page."""
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", drawing[drawing.index("<svg") :], flags=re.DOTALL)
    opening, rest = svg.split(">", 1)
    opening = re.sub(r'\s(?:width|height)="[^"]*"', "", opening)
    # A hundredth of a point, and no line breaks: a third of the bytes.
    rest = re.sub(r"\s*\n\s*", " ", re.sub(r"(\d\.\d\d)\d+", r"\1", rest))
    # Two equal images have one id, which nothing refers to.
    rest = re.sub(r'(<image\b[^>]*?)\sid="[^"]+"', r"\1", rest)
    rest = re.sub(r'\bid="([^"]+)"', rf'id="{slug}-\1"', rest)
    rest = re.sub(r"url\(#([^)]+)\)", rf"url(#{slug}-\1)", rest)
    return f"{opening}>" + re.sub(r'href="#([^"]+)"', rf'href="#{slug}-\1"', rest)
