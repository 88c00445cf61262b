"""Everything that `report` and `compare` write about a fixture, without what differs from day to day."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path

from tests.report.golden.fixtures import FIXTURES, NARROW, Fixture, place, relief_ray
from tests.report.golden.numbers import BETWEEN, numbers

OUT, COMPARED = "out", "compared"
# Heading of the column with the seconds that a run took here.
WALL = "wall, s"
# Other views of a comparison than that of a wide terminal.
VIEWS: Mapping[str, Sequence[str]] = {"compare-narrow.txt": (), "compare-wide.txt": ("--wide",)}


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Texts by name, and every number in lines."""

    texts: Mapping[str, str]
    numbers: Sequence[str]


def outputs(name: str, folder: Path) -> Outputs:
    """Make a fixture in an empty folder and report it."""
    fixture = FIXTURES[name]
    with place(folder):
        return written(fixture.make(), fixture)


def written(results: Sequence[str], fixture: Fixture) -> Outputs:
    """Report results below the current folder, compare them or others, and read all that was written."""
    compared = results if fixture.compared is None else fixture.compared
    texts = {"report.txt": relief_ray("report", *results, f"--out={OUT}")}
    texts |= {name: (Path(OUT) / name).read_text() for name in ("report.md",)}
    texts["index.txt"] = _text((Path(OUT) / "index.html").read_text())
    if "report.json" in fixture.pages:
        texts["report.json"] = _in_lines(relief_ray("report", *results, f"--out={OUT}", "--json"))
    if compared:
        # `--out` writes what `--json` prints.
        texts["compare.txt"] = relief_ray("compare", *compared, f"--out={COMPARED}")
        texts["comparison.md"] = _joined(sorted(Path(COMPARED).rglob("comparison.md")))
    for name, options in VIEWS.items():
        if name in fixture.pages:
            texts[name] = relief_ray("compare", *compared, *options, columns=NARROW)
    lines = numbers(Path(OUT), Path(COMPARED), fixture.digits)
    kept = {name: normalised(text) for name, text in texts.items() if name in fixture.pages}
    if fixture.is_computed:
        kept = {name: without_wall(text) for name, text in kept.items()}
        lines = [line for line in lines if not {WALL, "wall_s"} & set(line.split(BETWEEN))]
    return Outputs(texts=kept, numbers=[normalised(line) for line in lines])


def _joined(files: Sequence[Path]) -> str:
    """Files one after another, each below its path."""
    return "".join(f"==> {path}\n{path.read_text()}\n" for path in files)


def _in_lines(text: str) -> str:
    """Lines of JSON, each value on a line of its own."""
    return "\n".join(json.dumps(json.loads(line), indent=1) for line in text.splitlines()) + "\n"


def _text(page: str) -> str:
    """The words of an HTML page in the order of its source, a line for each element."""
    body = re.sub(r"<style>.*?</style>|<script>.*?</script>|<svg.*?</svg>", "", page, flags=re.DOTALL)
    body = re.sub(r"</t[hd]>\s*<t[hd][^>]*>", " | ", body)
    body = re.sub(r"<(/?(?:code|b|span|small|a))\b[^>]*>", " ", body)
    lines = (re.sub(r"[ \t]+", " ", unescape(line)).strip() for line in re.sub(r"<[^>]+>", "\n", body).splitlines())
    return "\n".join(line for line in lines if line) + "\n"


# What depends on the day, the machine, the folder or the sources, and what stands for it.
CHANGING = (
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z| UTC|[+-]\d\d:\d\d)?"), "TIME"),
    (re.compile(r"\bsources [0-9a-f]{12}\b"), "sources SOURCES"),
    (re.compile(r", commit [\w.+-]+"), ""),
    (re.compile(r"\b\d+(\.\d+)? (ms|s|min|h) of process time"), "WALL of process time"),
    (re.compile(r"[^|&;<>\n]+, \d+ cores?, \d+ threads?"), " CPU"),
    (re.compile(r"relief-ray \d[\w.]* \("), "relief-ray VERSION ("),
    (re.compile(r"\b(Python|torch|numpy) \d[\w.]*(\+\w+)?"), r"\1 VERSION"),
    (re.compile(r"\bengine( \|)? (gemm|fused)\b"), r"engine\1 FAST"),
)


def normalised(text: str) -> str:
    """The text with constant words for times of day, seconds of this machine, versions, commits and folders."""
    text = text.replace(str(Path.cwd()), "FOLDER")
    for pattern, word in CHANGING:
        text = pattern.sub(word, text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n" if "\n" in text else text


def without_wall(text: str) -> str:
    """The text whose tables, aligned or of Markdown, have no seconds of this machine."""
    lines: list[str] = []
    start = end = 0
    for line in text.splitlines():
        if WALL in line:
            start, end = line[: line.index(WALL)].count("|"), line.index(WALL) + len(WALL)
        elif not line:
            end = 0
        elif end and 0 < start < len(line.split("|")) and ":" not in line.split("|")[start]:
            cells = line.split("|")
            line = "|".join([*cells[:start], " WALL ", *cells[start + 1 :]])
        elif end and (number := re.search(r"[\d.]+$", line[:end])):
            line = line[: number.start()] + "WALL".rjust(len(number[0])) + line[end:]
        lines.append(line)
    return "\n".join(lines) + "\n"
