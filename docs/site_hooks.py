"""Hooks of the documentation's site: links out of this folder, the list of decisions, the public names of the API."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Blanks around a plus-minus sign, and behind the comma of an interval.
# What `import actors` offers beside them.
_ON_RAY = ("actors.launch.conformance",)
_INNER_BLANK = re.compile(r"(?<=\d) (?=± ?\d)|(?<=±) (?=\d)|(?<=\d,) (?=[-+−]?\d[\d.]*\])")
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: Any, **_: object) -> Any:
    """List the pages that the navigation names by a pattern (``adr/*.md``)."""
    config.nav = [_expanded(item, Path(config.docs_dir)) for item in config.nav]
    return config


def _expanded(item: Any, docs: Path) -> Any:
    if isinstance(item, dict):
        return {title: _expanded(below, docs) for title, below in item.items()}
    if isinstance(item, list):
        return [_expanded(below, docs) for below in item]
    return [str(p.relative_to(docs)) for p in sorted(docs.glob(item))] if "*" in item else item


def on_page_markdown(markdown: str, page: Any, config: Any, **_: object) -> str:
    """Name files outside of this folder by their path in the repository; list the public names on the API's page."""
    place = Path(config.docs_dir, page.file.src_path).parent
    text = _LINK.sub(lambda link: _named(link, place, Path(config.docs_dir)), markdown)
    # A bar in a table's code is escaped for GitHub; here the backslash would be shown.
    text = "\n".join(_CODE.sub(_bars, line) if line.startswith("|") else line for line in text.split("\n"))
    return f"{text}\n{_public_names()}" if page.file.src_path == "reference.md" else text


def on_page_content(html: str, **_: object) -> str:
    """Keep a figure of a table on one line: ``74.7 ± 5.2``, and an interval within its brackets."""
    return re.sub(r"<td.*?</td>", lambda cell: _INNER_BLANK.sub("&nbsp;", cell[0]), html, flags=re.DOTALL)


def _named(link: re.Match[str], place: Path, docs: Path) -> str:
    target = Path(os.path.normpath(place / link[2]))
    if re.match(r"[a-z]+:", link[2]) or target.is_relative_to(docs) or not target.exists():
        return link[0]
    path = target.relative_to(ROOT)
    return link[1] if str(path) in link[1] else f"{link[1]} (`{path}`)"


def _bars(code: re.Match[str]) -> str:
    return code[0].replace("\\|", "|")


def _public_names() -> str:
    """A directive for each class and function that ``import relief_ray`` offers, where it is defined."""
    import relief_ray

    values = {name: getattr(relief_ray, name) for name in relief_ray.__all__}
    names = [
        f"{value.__module__}.{value.__qualname__}"
        for value in values.values()
        if hasattr(value, "__qualname__") and value.__module__.startswith("relief_ray")
    ]
    return "\n\n".join(f"::: {name}" for name in (*names, *_ON_RAY))
