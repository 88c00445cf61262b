"""The outputs that are kept, and how others differ from them."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from tests.report.golden.numbers import folded, unfolded
from tests.report.golden.outputs import Outputs

KEPT, NUMBERS = Path(__file__).parent / "kept", "numbers.txt"
# A Markdown page that is kept is no page of the project: its figures are not there.
SUFFIX = ".txt"
# Lines of a difference that are shown of each file, and letters of a line.
MOST_LINES, MOST_LETTERS = 20, 300


def keep(name: str, outputs: Outputs) -> None:
    """Write the outputs in place of those before."""
    shutil.rmtree(KEPT / name, ignore_errors=True)
    (KEPT / name).mkdir(parents=True)
    for page, text in outputs.texts.items():
        (KEPT / name / (page + SUFFIX)).write_text(text)
    (KEPT / name / NUMBERS).write_text(folded(outputs.numbers))


def differences(name: str, outputs: Outputs) -> list[str]:
    """Short differences of pages and numbers; empty where all are equal."""
    return [*page_differences(name, outputs), *number_differences(name, outputs)]


def page_differences(name: str, outputs: Outputs) -> list[str]:
    """The same of pages alone."""
    files = (path for path in (KEPT / name).glob("*") if path.name != NUMBERS)
    kept = {path.name.removesuffix(SUFFIX): path.read_text() for path in files}
    pages = sorted(kept.keys() | outputs.texts.keys())
    return [
        line
        for page in pages
        for line in _short(f"{name}/{page}", *(t.get(page, "").splitlines() for t in (kept, outputs.texts)))
    ]


def number_differences(name: str, outputs: Outputs) -> list[str]:
    """The same of numbers alone."""
    path = KEPT / name / NUMBERS
    return list(_short(f"{name}/{NUMBERS}", unfolded(path.read_text()) if path.exists() else [], outputs.numbers))


def _short(title: str, before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    changed = difflib.unified_diff(before, after, f"kept/{title}", f"written today: {title}", n=0, lineterm="")
    yield from (_cut(line) for line in islice(changed, MOST_LINES))
    if more := sum(1 for _ in changed):
        yield f"  and {more} more lines"


def _cut(line: str) -> str:
    return line if len(line) <= MOST_LETTERS else f"{line[:MOST_LETTERS]} .."
