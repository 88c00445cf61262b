"""The code blocks of README and docs, and a shell that runs them as a reader types them."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_DOCS = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]
PAGES = ("README.md", "CONTRIBUTING.md", "cluster/README.md", *_DOCS)
# Pages for a shell of which nothing is known: there the text itself has to name or activate the environment.
FRONT = frozenset({"README.md", "CONTRIBUTING.md", "docs/index.md"})
_ACTIVATE = ". .venv/bin/activate"
_FILE = re.compile(r"# file: (\S+)\n")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: path of the page from the root of the checkout.
        line: number of its first line there.
        language: the word after the fence.
        text: its lines.
        before: the page's text before it.
    """

    page: str
    line: int
    language: str
    text: str
    before: str

    @property
    def file(self) -> str | None:
        """Name of the file that the block is the content of, if it says so in its first line."""
        named = _FILE.match(self.text)
        return named[1] if named else None

    @property
    def is_activated(self) -> bool:
        """Whether a reader has the environment's commands here without naming it."""
        return self.page not in FRONT or _ACTIVATE in self.before

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """The blocks of a page that a reader runs or copies: sh, python and yaml, indented ones too."""
    text = (ROOT / page).read_text(encoding="utf-8")
    fences = re.finditer(r"^( *)```(sh|python|yaml)\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE)
    return [
        Block(
            page=page,
            line=text[: fence.start(3)].count("\n") + 1,
            language=fence[2],
            text=re.sub(rf"^{fence[1]}", "", fence[3], flags=re.MULTILINE),
            before=text[: fence.start()],
        )
        for fence in fences
    ]


def commands(text: str) -> list[str]:
    """The commands of a shell block: lines, joined while quotes or a backslash leave them open."""
    found, begun = [], ""
    for line in text.splitlines(keepends=True):
        begun += line
        is_whole = subprocess.run(["sh", "-nc", begun], capture_output=True).returncode == 0
        if is_whole and not begun.rstrip("\n").endswith("\\"):
            found += [begun.strip()] if begun.strip() and not begun.strip().startswith("#") else []
            begun = ""
    assert not begun, f"not a whole command: {begun}"
    return found


def make_place(folder: Path) -> Path:
    """A folder like a reader's checkout after `sh bootstrap.sh`: `.venv`, committed results, no runs."""
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    script = f"import sys\nsys.path[0] = {str(ROOT)!r}\nfrom actors.cli.main import main\nmain()\n"
    _program(programs / "relief-ray", f"#!{sys.executable}\n{script}")
    _program(programs / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    _program(programs / "ray", f'#!/bin/sh\nexec {Path(sys.executable).parent}/ray "$@"\n')
    (programs / "activate").write_text(f"PATH={programs}:$PATH\n")
    (folder / "results").symlink_to(ROOT / "results")
    return folder


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def environment(place: Path, *, is_activated: bool) -> dict[str, str]:
    """Variables of a shell without any environment activated, or with the one of the place."""
    kept = {k: os.environ[k] for k in ("HOME", "LANG", "TMPDIR") if k in os.environ}
    path = "/usr/local/bin:/usr/bin:/bin"
    return {
        **kept,
        "PATH": f"{place / '.venv' / 'bin'}:{path}" if is_activated else path,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RELIEF_CACHE": str(place / "cache"),
    }


class Session:
    """A reader who goes through a page: one folder, one Python for all its blocks, a new shell for each block of sh."""

    def __init__(self, place: Path) -> None:
        """``place``: the folder (``make_place``)."""
        self.place = place
        self._python: subprocess.Popen[str] | None = None

    def run(self, block: Block, is_run: Callable[[str], bool]) -> None:
        """Write the block's file, or run what of it is run; the first command that fails ends it.

        Raises:
            AssertionError: something failed; the message has the page, the line and the output.
        """
        if block.file is not None:
            (self.place / block.file).write_text(block.text)
        elif block.language == "python":
            self._run_python(block)
        elif block.language == "sh" and (chosen := [c for c in commands(block.text) if is_run(c)]):
            env = environment(self.place, is_activated=block.is_activated)
            done = subprocess.run(
                ["sh", "-exc", "\n".join(chosen)], cwd=self.place, env=env, text=True, capture_output=True,
                timeout=560, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            output = done.stdout[-3000:] + done.stderr[-3000:]
            assert done.returncode == 0, f"{block}: exit code {done.returncode}\n{output}"

    def _run_python(self, block: Block) -> None:
        """Names of earlier blocks are there, as in a notebook."""
        if self._python is None:
            env = environment(self.place, is_activated=True)
            self._python = subprocess.Popen(
                [self.place / ".venv/bin/python", "-uc", _LOOP], cwd=self.place, env=env, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        assert self._python.stdin is not None and self._python.stdout is not None
        self._python.stdin.write(json.dumps([str(block), block.text]) + "\n")
        self._python.stdin.flush()
        output = ""
        for line in self._python.stdout:
            if line == _DONE:
                return
            output += line
        raise AssertionError(f"{block}: Python ended\n{output[-4000:]}")

    def close(self) -> None:
        """End Python."""
        if self._python is not None:
            self._python.communicate()


_DONE = "block done\n"
# Ends with a traceback at the first block that fails.
_LOOP = f"""
import json, sys
names = dict(__name__="__main__")
for line in sys.stdin:
    name, text = json.loads(line)
    exec(compile(text, name, "exec"), names)
    print({_DONE!r}, end="", flush=True)
"""


def copy_runs(runs: Path, place: Path) -> None:
    """Put finished runs where `sh bootstrap.sh demo` leaves them."""
    shutil.copytree(runs, place / "runs" / runs.name)


def all_blocks() -> Iterator[Block]:
    """The blocks of all pages."""
    for page in PAGES:
        yield from blocks(page)
