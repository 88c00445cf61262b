"""Counter of the product's code by room: tokens, lines, files, and bytes of what is not Python.

``python -m tests.guards.code_tokens [ROOT] [--also FOLDER ...]`` prints the table for a checkout; ``--write`` puts it
into ``docs/architecture.md``, where a test holds it as a ceiling. ``--also`` counts further folders, such as those that
were moved out of the product.

A token is one of Python's ``tokenize`` that is code: no comment, no line break or indentation, and no string that
stands by itself (docstrings of modules, classes, functions and fields). An f-string is one token, with whatever is in
it: Python has counted its parts since 3.12 only. C is counted in the same way, without comments.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import reduce
from operator import add
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PRODUCT = ("relief_ray", "actors", "tune_configs", "cluster")
TOTAL = "**all**"
# A room may be so much larger than the table says before the table has to be written anew, in a commit of its own.
SLACK = 0.03
BEGIN, END = "<!-- code tokens: begin -->", "<!-- code tokens: end -->"
_HEAD = ("room", "code tokens", "other bytes", "lines", "files")
_C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_C_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\w+(?:\.\w+)?|->|<<|>>|&&|\|\||[-+*/%&|^<>=!]=|\+\+|--|[^\s\w\\]')
_LAYOUT = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    | {tokenize.ENCODING, tokenize.ENDMARKER}
)
# Of f-strings (since Python 3.12) and t-strings (since 3.14).
_STARTS = {getattr(tokenize, name, None) for name in ("FSTRING_START", "TSTRING_START")} - {None}
_ENDS = {getattr(tokenize, name, None) for name in ("FSTRING_END", "TSTRING_END")} - {None}


@dataclass(frozen=True, slots=True)
class Size:
    """Size of some files: tokens, lines and number of code; ``other_bytes`` of scripts, styles, templates, data."""

    tokens: int = 0
    other_bytes: int = 0
    lines: int = 0
    files: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(*map(add, astuple(self), astuple(other)))


def code_tokens(text: str) -> int:
    """Number of tokens of Python source that are code."""
    alone = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    of_docstrings = {line for first, last in alone for line in range(first, last + 1)}
    number = depth = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        depth -= token.type in _ENDS
        is_docstring = token.type == tokenize.STRING and token.start[0] in of_docstrings
        number += depth == 0 and token.type not in _LAYOUT | _ENDS and not is_docstring
        depth += token.type in _STARTS
    return number


def c_tokens(text: str) -> int:
    """Number of tokens of C source that are code: names, numbers, texts and operators."""
    return len(_C_TOKEN.findall(_C_COMMENT.sub(" ", text)))


def size_of(path: Path) -> Size:
    """Size of a file."""
    count = {".py": code_tokens, ".c": c_tokens}.get(path.suffix)
    if count is None:
        return Size(other_bytes=path.stat().st_size)
    text = path.read_text(encoding="utf-8")
    return Size(tokens=count(text), lines=len(text.splitlines()), files=1)


def room_of(path: Path) -> str:
    """Room of a file, by its path in a checkout: the folder below the package; the package for a file in its root."""
    return "/".join(path.parts[: min(2, len(path.parts) - 1)])


def sizes(root: Path = ROOT, also: tuple[str, ...] = ()) -> dict[str, Size]:
    """Size of every room, in the order of names, then that of all."""
    rooms: dict[str, Size] = {}
    for path in _files(root, (*PRODUCT, *also)):
        room = room_of(path.relative_to(root))
        rooms[room] = rooms.get(room, Size()) + size_of(path)
    return dict(sorted(rooms.items())) | {TOTAL: reduce(add, rooms.values(), Size())}


def _files(root: Path, folders: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        for path in (root / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
                yield path


def table(rooms: Mapping[str, Size]) -> str:
    """The sizes as a Markdown table."""
    rows = [f"| {name} | " + " | ".join(f"{n:,}" for n in astuple(size)) + " |" for name, size in rooms.items()]
    return "\n".join([f"| {' | '.join(_HEAD)} |", "|---|---:|---:|---:|---:|", *rows])


def read_table(page: str) -> dict[str, Size]:
    """Sizes in the page's table, by room."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in _inside(page).splitlines()[2:]]
    return {name: Size(*(int(n.replace(",", "")) for n in numbers)) for name, *numbers in rows}


def with_table(page: str, rooms: Mapping[str, Size]) -> str:
    """The page with these sizes in its table."""
    return page.replace(_inside(page), table(rooms))


def _inside(page: str) -> str:
    return page.partition(f"{BEGIN}\n")[2].partition(f"\n{END}")[0]


def above(ceiling: Mapping[str, Size], rooms: Mapping[str, Size]) -> list[str]:
    """Say of each room, and of all, what is above the ceiling by more than the slack: tokens, or other bytes."""
    said = []
    for name, size in rooms.items():
        known = ceiling.get(name, Size())
        for what, now, most in (
            ("code tokens", size.tokens, known.tokens),
            ("other bytes", size.other_bytes, known.other_bytes),
        ):
            if now > most * (1 + SLACK):
                said.append(f"{name}: {now:,} {what}, the table in {PAGE.name} allows {most:,} and {SLACK:.0%} more")
    return said


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="a checkout; default: this one")
    parser.add_argument("--also", nargs="+", default=(), metavar="FOLDER", help="folders to count besides")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name} of this checkout")
    words = parser.parse_args()
    rooms = sizes(words.root, tuple(words.also))
    if words.write:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), rooms), encoding="utf-8")
    print(table(rooms))


if __name__ == "__main__":
    main()
