"""Runs the tests marked `slow`, which neither the default suite nor the check runs; resumable, its result is kept.

    python -m tests.slow [--jobs N] [--shard I/N] [--all] [--list] [--write] [PYTEST OPTION..]

Every test that ends is noted at once in ``.slow_tests.jsonl``, with the state of the sources that it saw. Stopped or
killed, the next call runs what is left and what failed; other sources begin anew. ``--shard 2/3`` takes the second of
three parts, by file, for several machines. ``--write`` puts the outcome into tests/slow_results.md: commit it.
Exit status: that of pytest; 0 where nothing is left to run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STATE, RESULTS = ROOT / ".slow_tests.jsonl", ROOT / "tests" / "slow_results.md"
# An accelerator, root, a quiet machine: none is everywhere. What is marked `ci` alone runs with every check.
MARKS = "slow and not gpu and not lab and not lab_long"
NUM_SLOWEST = 20
# Files that take less are not listed on the page.
LISTED_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A test that ended: how (``passed``, ``failed``, ``skipped``), after how long, and on which sources."""

    test: str
    outcome: str
    seconds: float
    sources: str


class Notes:
    """A pytest plugin: appends each test to the state file as it ends; with several processes it sits in the first."""

    def __init__(self, file: Path, sources: str) -> None:
        """``sources``: digest of what is tested."""
        self._file, self._sources = file, sources
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._outcome: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test; after its last one, note the test."""
        test = report.nodeid
        self._seconds[test] += report.duration
        if report.when == "call" or report.outcome != "passed":
            self._outcome[test] = max(self._outcome.get(test, ""), report.outcome, key=RANK.index)
        if report.when == "teardown":
            seconds, outcome = round(self._seconds.pop(test), 2), self._outcome.pop(test, "passed")
            ended = Ended(test=test, outcome=outcome, seconds=seconds, sources=self._sources)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(ended)) + "\n")


RANK = ("", "passed", "skipped", "failed")


def digest_of_sources(root: Path = ROOT) -> str:
    """Digest of everything under version control here, as it is on disk, but for the results themselves."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
    digest = hashlib.sha256()
    for name in sorted(listed.decode().split("\0")):
        path = root / name
        if name and path.is_file() and path.suffix != ".md" and not name.startswith(("results/", "notebooks/")):
            digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def read_state(file: Path, sources: str) -> dict[str, Ended]:
    """Each test's last end on these sources; a line that a kill has cut counts as none."""
    ended: dict[str, Ended] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            entry = Ended(**json.loads(line))
        except (ValueError, TypeError):
            continue
        if entry.sources == sources:
            ended[entry.test] = entry
    return ended


def left_of(tests: Iterable[str], ended: Mapping[str, Ended]) -> list[str]:
    """Tests that did not end yet, or failed."""
    return [test for test in tests if test not in ended or ended[test].outcome == "failed"]


def part_of(tests: Sequence[str], shard: str) -> list[str]:
    """Picks the part ``I/N`` of the tests; a file's are in one part."""
    index, number = (int(word) for word in shard.split("/"))
    if not 1 <= index <= number:
        raise ValueError(f"--shard {shard}: expected I/N with 1 <= I <= N")
    files = {name: i for i, name in enumerate(sorted({test.partition("::")[0] for test in tests}))}
    return [test for test in tests if files[test.partition("::")[0]] % number == index - 1]


def longest_first(tests: Iterable[str], text: str) -> list[str]:
    """Orders the tests by how long their files took on the page ``text``, so that no process ends long after others.

    The order within a file stays; files that the page does not list come last.
    """
    seconds = {name: float(number) for number, name in re.findall(r"^\| ([\d.]+) \| `([^`:]+)` \|$", text, re.M)}
    return sorted(tests, key=lambda test: -seconds.get(test.partition("::")[0], 0.0))


class _Collected:
    """A pytest plugin that remembers what was collected."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.tests = [item.nodeid for item in session.items]


def collect(marks: str = MARKS) -> list[str]:
    """Lists the slow tests."""
    collected = _Collected()
    code = pytest.main(["--collect-only", "-qqq", "-m", marks], plugins=[collected])
    if code != 0:
        raise SystemExit(f"the tests could not be collected (pytest ended with {code})")
    return collected.tests


def run(tests: Sequence[str], jobs: int, sources: str, more: Sequence[str]) -> int:
    """Runs these tests; the exit status of pytest."""
    # Else pytest-xdist would begin with the files of most tests, which are not those that take longest.
    several = ["-n", str(jobs), "--dist", "loadfile", "--no-loadscope-reorder"] if jobs > 1 else []
    words = ["-q", "-m", MARKS, "-p", "no:cacheprovider", *several, *more, *tests]
    return int(pytest.main(words, plugins=[Notes(STATE, sources)]))


def machine() -> str:
    """Describes this machine and what the tests run on, in a line."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "ray"))
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, {packages}"


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []


def page(tests: Sequence[str], ended: Mapping[str, Ended], commit: str, now: datetime, where: str) -> str:
    """Writes the results as Markdown."""
    known = [ended[test] for test in tests if test in ended]
    counts = Counter(entry.outcome for entry in known)
    slowest = sorted(known, key=lambda entry: -entry.seconds)[:NUM_SLOWEST]
    by_file: defaultdict[str, float] = defaultdict(float)
    for entry in known:
        by_file[entry.test.partition("::")[0]] += entry.seconds
    files = sorted(((name, s) for name, s in by_file.items() if s >= LISTED_S), key=lambda pair: -pair[1])
    facts = {
        "date": f"{now:%Y-%m-%d %H:%M} UTC",
        "commit": commit,
        "machine": where,
        "passed": str(counts["passed"]),
        "failed": str(counts["failed"]),
        "skipped": str(counts["skipped"]),
        "not run": str(len(tests) - len(known)),
        "minutes, sum over the tests": f"{sum(entry.seconds for entry in known) / 60:.1f}",
    }
    failed = [f"* `{entry.test}`" for entry in known if entry.outcome == "failed"]
    return "\n".join(
        [
            "# The slow tests: last result",
            "",
            "Written by `python -m tests.slow --write`; `sh bootstrap.sh slow` runs them.",
            "",
            "| | |\n|---|---|",
            *(f"| {name} | {value} |" for name, value in facts.items()),
            "",
            *(["## Failed", "", *failed, ""] if failed else []),
            f"## The slowest {len(slowest)}",
            "",
            "| seconds | test |\n|---|---|",
            *(f"| {entry.seconds:.1f} | `{entry.test}` |" for entry in slowest),
            "",
            f"## Files of {LISTED_S:g} s and more",
            "",
            "The longest are begun first.",
            "",
            "| seconds | file |\n|---|---|",
            *(f"| {seconds:.1f} | `{name}` |" for name, seconds in files),
            "",
        ]
    )


def commit_of(root: Path = ROOT) -> str:
    """Names the commit, and whether files differ from it."""
    words = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    return subprocess.run(words, cwd=root, capture_output=True, text=True, check=True).stdout.strip()


def main(words: Sequence[str] | None = None) -> int:
    """Does what the command line asks for; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="the I-th of N parts, by file")
    parser.add_argument("--all", action="store_true", help="run those too that have passed on these sources")
    parser.add_argument("--list", action="store_true", help="list what is left and run nothing")
    parser.add_argument("--write", action="store_true", help="write tests/slow_results.md at the end")
    arguments, more = parser.parse_known_args(words)
    os.chdir(ROOT)
    tests, sources = collect(), digest_of_sources()
    mine = part_of(tests, arguments.shard)
    left = mine if arguments.all else left_of(mine, read_state(STATE, sources))
    print(f"{len(left)} of {len(mine)} slow tests are left to run on the sources {sources}", flush=True)
    if arguments.list:
        print(*left, sep="\n")
        return 0
    began = time.monotonic()
    last_page = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    code = run(longest_first(left, last_page), arguments.jobs, sources, more) if left else 0
    ended = read_state(STATE, sources)
    seconds = sum(ended[test].seconds for test in mine if test in ended)
    print(
        f"{len(left_of(mine, ended))} left or failed; {time.monotonic() - began:.0f} s, {seconds:.0f} s of tests so far"
    )
    if arguments.write:
        RESULTS.write_text(page(tests, ended, commit_of(), datetime.now(timezone.utc), machine()), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
