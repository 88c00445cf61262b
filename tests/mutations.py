"""Tries the fast tests on broken copies of the program: each mutation in ``mutations.txt`` must make a test fail.

    python tests/mutations.py [--list] [--only NAME,..] [--json FILE]

A mutation is one exact piece of code, in whichever one file of the packages holds it. The tree is copied once; a
mutation is written into the copy, its tests run there, the file is put back. Exit status: 0 where all were killed, 1
where one survived or could not be judged, 2 where nothing was tried: a text is not in exactly one place, a test file is
missing, or the tests fail without any mutation.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Status = Literal["killed", "SURVIVED", "error"]
ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("relief_ray", "actors", "tune_configs")
NOT_COPIED = (".git", ".venv", "venv", "runs", "mlruns", "mlartifacts", "datasets", "build", "dist", ".*_cache")
LIMIT_S = 600.0
# Hypothesis' own profile: the same examples every time, and no deadline, which a busy machine misses without mutations.
# The marks: what `.ci/run` runs, in either of its two steps.
STEADY = ("--hypothesis-profile=ci", "-m", "not slow and not gpu")
# Its format stands at its top.
TABLE = Path(__file__).with_suffix(".txt")


class Refused(Exception):
    """Why nothing can be tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutation:
    """A piece of code, what stands there instead, what that breaks, and the test files that must notice."""

    name: str
    code: str
    instead: str
    breaks: str
    tests: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome of a mutation in ``file``; ``by``: the test that failed, or what went wrong."""

    name: str
    file: str
    status: Status
    by: str
    seconds: float


@cache
def sources() -> dict[Path, str]:
    """Texts of all modules of the packages, by their paths from the root."""
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in files}


def mutations() -> Iterator[Mutation]:
    """Reads the table."""
    lines = [line for line in TABLE.read_text(encoding="utf-8").split("\n") if not line.startswith("#")]
    for entry in re.split(r"\n{2,}", "\n".join(lines).strip()):
        head, *pair = entry.split("\n")
        name, tests, breaks = head.split(" | ")
        code, instead = (line.replace("\\n", "\n") for line in pair)
        assert code.startswith("- ") and instead.startswith("+ "), f"{name}: expected a line '- ..' and a line '+ ..'"
        yield Mutation(name=name, code=code[2:], instead=instead[2:], breaks=breaks, tests=tuple(tests.split()))


def chosen(names: str | None) -> list[Mutation]:
    """Picks the named ones, all by default."""
    known = {m.name: m for m in mutations()}
    wanted = [name.strip() for name in names.split(",")] if names else list(known)
    if unknown := [name for name in wanted if name not in known]:
        raise Refused(f"no mutation is called {', '.join(unknown)}; see --list")
    return [known[name] for name in wanted]


def home_of(mutation: Mutation) -> Path:
    """Finds the one file that holds the code, exactly once; its path from the root."""
    counts = {path: text.count(mutation.code) for path, text in sources().items()}
    places = {str(path): number for path, number in counts.items() if number}
    if sum(places.values()) != 1:
        where = ", ".join(f"{path} ({number})" for path, number in places.items()) or "nowhere"
        raise Refused(f"{mutation.name}: expected once, found {where}: {mutation.code!r}")
    return Path(*places)


def test_files(mutation: Mutation) -> list[str]:
    """Finds its test files by their names below ``tests``, wherever they are and whatever was added to the names."""
    everything = sorted((ROOT / "tests").rglob("test_*.py"))
    chosen_files: list[str] = []
    for selector in mutation.tests:
        stems = [Path(name).stem for name in selector.split("/")]
        found_by = ([p for p in everything if p.stem == s] or longer(s, everything) for s in stems)
        paths = next((paths for paths in found_by if paths), None)
        if paths is None:
            raise Refused(f"{mutation.name}: no test file is called {selector}, nor has its name with more around it")
        chosen_files += [p.relative_to(ROOT).as_posix() for p in paths]
    return list(dict.fromkeys(chosen_files))


def longer(stem: str, everything: Sequence[Path]) -> list[Path]:
    """Picks the files whose names hold ``stem`` and more: ``test_relief_budget.py`` for ``test_budget``."""
    return [p for p in everything if stem.removeprefix("test_") in p.stem.removeprefix("test_")]


def run_tests(tree: Path, files: Sequence[str], limit_s: float | None) -> tuple[int | None, str]:
    """Runs pytest in ``tree`` up to the first failure; its exit status (None: out of time) and what it said."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *STEADY, *files]
    surroundings = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, cwd=tree, env=surroundings, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None, f"no end after {limit_s} s"
    return done.returncode, done.stdout + done.stderr


def attempt(tree: Path, mutation: Mutation, file: Path, files: Sequence[str]) -> Outcome:
    """Tries one mutation in the copy and puts the file back, its time included: compiled files stay right."""
    began, text = time.monotonic(), (ROOT / file).read_text(encoding="utf-8")
    try:
        (tree / file).write_text(text.replace(mutation.code, mutation.instead), encoding="utf-8")
        code, said = run_tests(tree, files, LIMIT_S)
    finally:
        shutil.copy2(ROOT / file, tree / file)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, flags=re.M)
    status: Status = "killed" if code == 1 else "SURVIVED" if code == 0 else "error"
    by = failed[1] if status == "killed" and failed else "" if status == "SURVIVED" else last_words(code, said)
    return Outcome(name=mutation.name, file=str(file), status=status, by=by, seconds=time.monotonic() - began)


def last_words(code: int | None, said: str) -> str:
    """Sums up what a run without a verdict said."""
    return f"pytest ended with {code}: {' / '.join(said.strip().splitlines()[-3:])}"


def tried(wanted: Sequence[Mutation]) -> Iterator[Outcome]:
    """Yields the outcomes, one after the other, once the tests are green without any mutation."""
    homes, tests = [home_of(m) for m in wanted], [test_files(m) for m in wanted]
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        tree, began = Path(folder).resolve() / "tree", time.monotonic()
        shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        files = list(dict.fromkeys(file for some in tests for file in some))
        code, said = run_tests(tree, files, limit_s=None)
        if code != 0:
            raise Refused(f"the tests are not green without any mutation\n{said[-3000:]}")
        print(f"{len(files)} test files are green without any mutation, {time.monotonic() - began:.1f} s", flush=True)
        for mutation, file, some in zip(wanted, homes, tests, strict=True):
            yield attempt(tree, mutation, file, some)


def main() -> int:
    """Does what the command line asks for; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print the mutations and try none")
    parser.add_argument("--only", metavar="NAME,..", help="try these alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes there too")
    arguments = parser.parse_args()
    try:
        wanted, outcomes = chosen(arguments.only), list[Outcome]()
        if arguments.list:
            for m in wanted:
                print(f"{m.name:20} {home_of(m)}, {' '.join(test_files(m))}: {m.breaks}")
            return 0
        for o in tried(wanted):
            print(f"{o.status:8} {o.name:20} {o.seconds:6.1f} s  {o.by or o.file}", flush=True)
            outcomes.append(o)
    except Refused as why:
        print(f"refused: {why}", file=sys.stderr)
        return 2
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n", encoding="utf-8")
    killed, seconds = sum(o.status == "killed" for o in outcomes), sum(o.seconds for o in outcomes)
    print(f"{killed} of {len(outcomes)} killed, {seconds:.1f} s")
    return int(killed < len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
