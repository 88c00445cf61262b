"""Runs the tests marked `slow`, which neither the default suite nor the check runs; resumable, its result is kept.

    python -m tests.slow [--jobs N] [--shard I/N] [--all] [--list] [--write] [PYTEST OPTION..]

Every test that ends is noted at once in ``.slow_tests.jsonl``, with the state of the sources that it saw. Stopped or
killed, the next call runs what is left and what failed; other sources begin anew. ``--shard 2/3`` takes the second of
three parts, by file, for several machines. ``--write`` puts the outcome of the whole set into tests/slow_results.md:
commit it. Before it, concatenate the machines' ``.slow_tests.jsonl`` to one: of each test the last line counts.
Exit status: that of pytest; 0 where nothing is left to run; 2 where ``--write`` finds tests that did not end yet.
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
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from importlib.metadata import version
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STATE, RESULTS = ROOT / ".slow_tests.jsonl", ROOT / "tests" / "slow_results.md"
# An accelerator, root, a quiet machine: none is everywhere. What is marked `ci` alone runs with every check.
MARKS = "slow and not gpu and not lab and not lab_long"
NUM_SLOWEST = 20
# Files that take less are not listed on the page.
LISTED_S = 5.0
# A run that was stopped for longer has no duration of its own.
LONGEST_PAUSE = timedelta(minutes=5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What the tests of one call run on: a digest of the sources, their commit, the machine, so many processes."""

    sources: str
    commit: str
    machine: str
    processes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended(Call):
    """A test that ended: how (``passed``, ``failed``, ``skipped``), after how long, and when (UTC, ISO 8601)."""

    test: str
    outcome: str
    seconds: float
    at: str

    def span(self) -> tuple[datetime, datetime]:
        """When it began and when it ended."""
        end = datetime.fromisoformat(self.at)
        return end - timedelta(seconds=self.seconds), end


class Notes:
    """A pytest plugin: appends each test to the state file as it ends; with several processes it sits in the first."""

    def __init__(self, file: Path, call: Call) -> None:
        self._file, self._call = file, call
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
            at = datetime.now(timezone.utc).isoformat(timespec="seconds")
            ended = Ended(**asdict(self._call), test=test, outcome=outcome, seconds=seconds, at=at)
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


def collect(places: Sequence[str] = (), marks: str = MARKS) -> list[str]:
    """Lists the slow tests in these files and folders; all of them by default. Prints nothing."""
    collected, printed = _Collected(), StringIO()
    with redirect_stdout(printed):
        code = pytest.main(["--collect-only", "-qqq", "-m", marks, *places], plugins=[collected])
    if code != 0:
        raise SystemExit(f"{printed.getvalue()}\nthe tests could not be collected (pytest ended with {int(code)})")
    return collected.tests


def run(tests: Sequence[str], call: Call, more: Sequence[str]) -> int:
    """Runs these tests, begun in this order (tests/conftest.py keeps it); the exit status of pytest."""
    several = ["-n", str(call.processes), "--dist", "loadfile"] if call.processes > 1 else []
    words = ["-q", "-m", MARKS, "-p", "no:cacheprovider", *several, *more, *tests]
    return int(pytest.main(words, plugins=[Notes(STATE, call)]))


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


def wall_minutes(ended: Iterable[Ended]) -> float | None:
    """Minutes from the first begin to the last end; None: there was a pause of more than five minutes."""
    spans = sorted(entry.span() for entry in ended)
    first, until = spans[0]
    for began, end in spans:
        if began - until > LONGEST_PAUSE:
            return None
        until = max(until, end)
    return (until - first).total_seconds() / 60


def facts_of(known: Sequence[Ended]) -> dict[str, str]:
    """What these tests ran on, when, and how they ended."""
    in_time = sorted(known, key=lambda entry: entry.span())
    counts = Counter(entry.outcome for entry in known)
    minutes = wall_minutes(known)
    return {
        "commit": ", ".join(dict.fromkeys(entry.commit for entry in in_time)),
        "first test began": f"{in_time[0].span()[0]:%Y-%m-%d %H:%M} UTC",
        "last test ended": f"{max(entry.span()[1] for entry in known):%Y-%m-%d %H:%M} UTC",
        "machine": "; ".join(dict.fromkeys(entry.machine for entry in in_time)),
        "processes on a machine": ", ".join(dict.fromkeys(str(entry.processes) for entry in in_time)),
        "passed": str(counts["passed"]),
        "failed": str(counts["failed"]),
        "skipped": str(counts["skipped"]),
        "minutes, first begin to last end": "n/a: not in one stretch" if minutes is None else f"{minutes:.1f}",
        "minutes, sum over the tests": f"{sum(entry.seconds for entry in known) / 60:.1f}",
    }


def page(known: Sequence[Ended]) -> str:
    """Writes the results as Markdown."""
    slowest = sorted(known, key=lambda entry: -entry.seconds)[:NUM_SLOWEST]
    by_file: defaultdict[str, float] = defaultdict(float)
    for entry in known:
        by_file[entry.test.partition("::")[0]] += entry.seconds
    files = sorted(((name, s) for name, s in by_file.items() if s >= LISTED_S), key=lambda pair: -pair[1])
    failed = [f"* `{entry.test}`" for entry in known if entry.outcome == "failed"]
    return "\n".join(
        [
            "# The slow tests: last result",
            "",
            "Written by `python -m tests.slow --write`; `sh bootstrap.sh slow` runs them.",
            "",
            "| | |\n|---|---|",
            *(f"| {name} | {value} |" for name, value in facts_of(known).items()),
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


def write(tests: Sequence[str], ended: Mapping[str, Ended]) -> int:
    """Writes the page if every test has ended; the exit status."""
    missing = [test for test in tests if test not in ended]
    if missing:
        print(
            f"{RESULTS.name} stays as it is: {len(missing)} of {len(tests)} slow tests did not end yet on these "
            f"sources ({missing[0]}, ..); expected all; run them, or put all machines' {STATE.name} into one first",
            file=sys.stderr,
        )
        return 2
    RESULTS.write_text(page([ended[test] for test in tests]), encoding="utf-8")
    return 0


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
    call = Call(sources=sources, commit=commit_of(), machine=machine(), processes=arguments.jobs)
    mine = part_of(tests, arguments.shard)
    left = mine if arguments.all else left_of(mine, read_state(STATE, sources))
    print(f"{len(left)} of {len(mine)} slow tests are left to run on the sources {sources}", flush=True)
    if arguments.list:
        print(*left, sep="\n")
        return 0
    began = time.monotonic()
    last_page = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    code = run(longest_first(left, last_page), call, more) if left else 0
    ended = read_state(STATE, sources)
    seconds = sum(ended[test].seconds for test in mine if test in ended)
    print(
        f"{len(left_of(mine, ended))} left or failed; {time.monotonic() - began:.0f} s, {seconds:.0f} s of tests so far"
    )
    refused = write(tests, ended) if arguments.write else 0
    return refused or code


if __name__ == "__main__":
    sys.exit(main())
