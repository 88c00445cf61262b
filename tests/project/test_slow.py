"""The command that runs the slow tests: what it notes, what is left after a break, how it is shared out."""

import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests import slow
from tests.project.tree import ROOT
from tests.slow import Ended, left_of, longest_first, page, part_of, read_state

TESTS = """
import pytest

@pytest.fixture
def broken():
    yield
    raise OSError("cleaning up fails")

def test_passes(): pass
def test_fails(): assert 0
def test_skips(): pytest.skip("no GPU")
def test_ends_badly(broken): pass
"""


def ended(test: str, outcome: str = "passed", seconds: float = 1.0, sources: str = "now") -> Ended:
    return Ended(test=test, outcome=outcome, seconds=seconds, sources=sources)


@pytest.mark.ci
def test_each_test_is_noted_as_it_ends_also_with_several_processes(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    code = (
        "import sys, pytest\nfrom pathlib import Path\nfrom tests.slow import Notes\n"
        "pytest.main(['-q', '-n', '2', '-p', 'no:cacheprovider', '--rootdir', '.', 'test_some.py'],"
        " plugins=[Notes(Path('state'), 'now')])\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    state = read_state(tmp_path / "state", "now")
    outcomes = {test.partition("::")[2]: entry.outcome for test, entry in state.items()}
    assert outcomes == {
        "test_passes": "passed", "test_fails": "failed", "test_skips": "skipped", "test_ends_badly": "failed",
    }  # fmt: skip
    assert sorted(left_of(state, state)) == ["test_some.py::test_ends_badly", "test_some.py::test_fails"]


def test_what_is_left_is_what_did_not_end_or_failed_on_these_sources(tmp_path: Path) -> None:
    file = tmp_path / "state"
    lines = [ended("a"), ended("b", "failed"), ended("b"), ended("c", sources="before"), ended("d", "failed")]
    text = "".join(json.dumps({k: getattr(e, k) for k in Ended.__slots__}) + "\n" for e in lines)
    file.write_text(text + '{"test": "e", "outc')
    assert left_of("abcde", read_state(file, "now")) == ["c", "d", "e"]
    assert read_state(tmp_path / "none", "now") == {}


def test_parts_are_by_file_and_make_the_whole() -> None:
    tests = [f"{name}.py::test_{i}" for name in "cab" for i in range(3)]
    parts = [part_of(tests, f"{i}/2") for i in (1, 2)]
    assert sorted(parts[0] + parts[1]) == sorted(tests)
    assert not {t[0] for t in parts[0]} & {t[0] for t in parts[1]}
    with pytest.raises(ValueError, match="expected I/N"):
        part_of(tests, "3/2")


def test_other_sources_begin_anew_and_pages_do_not_count(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@x", *words], cwd=tmp_path, check=True)

    git("init", "-q")
    for name in ("a.py", "page.md"):
        (tmp_path / name).write_text("one")
    git("add", ".")
    before = slow.digest_of_sources(tmp_path)
    (tmp_path / "page.md").write_text("two")
    assert slow.digest_of_sources(tmp_path) == before
    (tmp_path / "a.py").write_text("two")
    assert slow.digest_of_sources(tmp_path) != before


def test_the_page_says_when_on_what_and_how_it_went() -> None:
    known = {e.test: e for e in (ended("a"), ended("b", "failed", 90.0), ended("c", "skipped"))}
    text = page([*"abcd"], known, "0123456789ab", datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc), "a machine, 2 cores")
    assert "| date | 2026-01-02 03:04 UTC |" in text and "| commit | 0123456789ab |" in text
    assert [f"| {name} | 1 |" in text for name in ("passed", "failed", "skipped", "not run")] == [True] * 4
    assert "| minutes, sum over the tests | 1.5 |" in text and "* `b`" in text
    assert text.index("| 90.0 | `b` |") < text.index("| 1.0 | `a` |")


def test_files_that_took_longest_on_the_last_page_are_begun_first() -> None:
    tests = ["new.py::t", "a.py::t", "b.py::t[2]", "b.py::t[1]", "c.py::t"]
    known = [ended("a.py::t", seconds=20.0), ended("b.py::t[1]", seconds=15.0), ended("b.py::t[2]", seconds=15.0)]
    short = ended("c.py::t", seconds=4.9)
    now = datetime(2026, 1, 2, tzinfo=timezone.utc)
    text = page(tests, {e.test: e for e in (*known, short)}, "0123", now, "a machine")
    assert "| 30.0 | `b.py` |" in text and "`c.py` |" not in text
    assert longest_first(tests, text) == ["b.py::t[2]", "b.py::t[1]", "a.py::t", "new.py::t", "c.py::t"]
    assert longest_first(tests, "") == tests
