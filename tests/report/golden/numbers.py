"""Every number that the tables of a report and a comparison hold, a line each: stricter than a page, blind to words.

    e1-main | F1 % | fedavg | 54.6 ± 5.5 | 54.5898 std=5.45032 n=4

The table, the column, the row, the figure as it is shown, and unrounded where the table's CSV file tells. Figures have
a line for each column of their CSV file. Lines are sorted. Files keep them folded: a line begins with a stroke for each
part that it has in common with the line before.
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from html.parser import HTMLParser
from itertools import takewhile
from pathlib import Path

Grid = list[list[str]]
BETWEEN, SAME = " | ", "| "
SHOWN = ("row", "column", "text")
# Below this a figure is what rounding leaves of nothing.
NOTHING = 1e-9


def numbers(report: Path, comparison: Path, digits: int) -> list[str]:
    """The lines of a written report and of what `compare --out` wrote, in one folder or one for each setting."""
    found = [*_tables(report, digits), *_figures(report, digits)]
    for page in sorted(comparison.rglob("*.md")):
        place = "-".join(("compare", *page.parent.relative_to(comparison).parts))
        found += _shown(place, page.read_text())
        found += _methods(place, page.with_suffix(".json").read_text(), digits)
    return sorted(BETWEEN.join(part or "-" for part in line) for line in found)


def folded(lines: Iterable[str]) -> str:
    """Text without the parts that a line has in common with the one before it."""
    before: list[str] = []
    shown = []
    for line in lines:
        parts = line.split(BETWEEN)
        same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(before, parts[:-1], strict=False))))
        shown.append(SAME * same + BETWEEN.join(parts[same:]) + "\n")
        before = parts
    return "".join(shown)


def unfolded(text: str) -> list[str]:
    """The lines of a folded text."""
    lines: list[str] = []
    for line in text.splitlines():
        rest = line
        while rest.startswith(SAME):
            rest = rest.removeprefix(SAME)
        same = (len(line) - len(rest)) // len(SAME)
        lines.append(BETWEEN.join([*(lines[-1].split(BETWEEN)[:same] if same else []), rest]))
    return lines


def _tables(report: Path, digits: int) -> Iterator[Sequence[str]]:
    page = _Tables()
    page.feed((report / "index.html").read_text())
    for name, (head, *rows) in page.tables.items():
        exact = _exact(report / "tables" / f"{name}.csv", digits)
        for label, *cells in rows:
            for column, cell in zip(head[1:], cells, strict=True):
                unrounded = exact[label, column].pop(0) if exact[label, column] else ""
                if _has_digit(cell + unrounded):
                    yield name, column, label, cell, *([unrounded] if unrounded not in ("", f"n={cell}") else [])


def _exact(path: Path, digits: int) -> dict[tuple[str, str], list[str]]:
    """The numbers behind each cell by row and column; none of a table of words."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    with path.open(newline="") as file:
        table = csv.DictReader(file)
        if tuple(table.fieldnames or ())[: len(SHOWN)] != SHOWN:
            return found
        for line in table:
            known = {key: value for key, value in line.items() if value and key not in (*SHOWN, "origin")}
            found[line["row"], line["column"]].append(_named(known, "mean", digits))
    return found


def _named(values: dict[str, str], first: str, digits: int) -> str:
    """``54.5898 std=5.45032 n=4``."""
    return " ".join(f"{'' if k == first else f'{k}='}{_rounded(v, digits)}" for k, v in values.items())


def _figures(report: Path, digits: int) -> Iterator[Sequence[str]]:
    """Of each column of a drawing's figures: how many, the first and last, and the sum of those that are numbers."""
    for path in sorted((report / "figures").glob("*.csv")):
        with path.open(newline="") as file:
            head, *rows = csv.reader(file)
        for name, values in zip(head, zip(*rows, strict=True), strict=False):
            there = [value for value in values if value]
            known = [float(value) for value in there if _is_number(value)]
            ends = " .. ".join(_rounded(value, digits) for value in (there[:1] + there[-1:]))
            yield f"{path.stem}.csv", name, f"n={len(there)} sum={_rounded(sum(known), digits)}, {ends}"


def _shown(place: str, page: str) -> Iterator[Sequence[str]]:
    """The cells of a page's Markdown tables, which have no names: they are counted."""
    for number, (head, *rows) in enumerate(_markdown_tables(page), 1):
        for label, *cells in rows:
            for column, cell in zip(head[1:], cells, strict=True):
                if _has_digit(cell):
                    yield f"{place}-{number}", column, label, cell


def _markdown_tables(page: str) -> Iterator[Grid]:
    for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.splitlines()]
        yield [rows[0], *rows[2:]]


def _methods(place: str, text: str, digits: int) -> Iterator[Sequence[str]]:
    """Every unrounded figure of every method, with its spread and number beside it."""
    for method in json.loads(text)["methods"]:
        spread = {name: [f"{name}_std", f"{name}_num"] for name in method if f"{name}_num" in method}
        beside = {other for others in spread.values() for other in others}
        for name in (key for key in method if key != "method" and key not in beside):
            values = {key.removeprefix(f"{name}_"): method[key] for key in (name, *spread.get(name, ()))}
            known = {key: str(value) for key, value in values.items() if value is not None}
            if _has_digit(line := _named(known, name, digits)):
                yield f"{place}.json", name, method["method"], line


def _rounded(value: object, digits: int) -> str:
    if not _is_number(value):
        return str(value)
    number = float(str(value))
    return f"{number:.{digits}g}" if abs(number) > NOTHING else "0"


def _is_number(value: object) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?(e[-+]?\d+)?", str(value)) is not None


def _has_digit(text: str) -> bool:
    return re.search(r"\d", text) is not None


class _Tables(HTMLParser):
    """Tables of a page by their ids, the headings first; a cell's second line stands in brackets."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, Grid] = {}
        self._name = ""
        self._is_cell = self._is_origin = False

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "div" and values.get("class") == "table":
            self._name = str(values["id"])
            self.tables[self._name] = []
        elif tag == "tr":
            self.tables[self._name].append([])
        elif tag in ("th", "td"):
            self.tables[self._name][-1].append("")
            self._is_cell = True
        self._is_origin = tag == "span"
        self.handle_data({"small": " (", "code": "`"}.get(tag, ""))

    def handle_endtag(self, tag: str) -> None:
        self._is_origin = False
        self.handle_data({"small": ")", "code": "`"}.get(tag, ""))
        self._is_cell = self._is_cell and tag not in ("th", "td")

    def handle_data(self, data: str) -> None:
        if self._is_cell and not self._is_origin:
            self.tables[self._name][-1][-1] += data.replace("\N{MINUS SIGN}", "-").replace("\N{NO-BREAK SPACE}", " ")
