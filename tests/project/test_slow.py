"""The command that runs the slow tests: what it notes, what is left after a break, how it is shared out."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests import slow
from tests.project.tree import ROOT
from tests.slow import Call, Ended, left_of, longest_first, page, part_of, read_state, wall_minutes

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
CALL = Call(sources="now", commit="0123456789ab", machine="a machine, 2 cores", processes=2)


def ended(
    test: str, outcome: str = "passed", seconds: float = 1.0, sources: str = "now", at: str = "03:04:00"
) -> Ended:
    facts = asdict(CALL) | {"sources": sources, "at": f"2026-01-02T{at}+00:00"}
    return Ended(**facts, test=test, outcome=outcome, seconds=seconds)


def noted(*entries: Ended) -> str:
    return "".join(json.dumps(asdict(entry)) + "\n" for entry in entries)


def python(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.ci
def test_each_test_is_noted_as_it_ends_also_with_several_processes(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    code = (
        "import pytest\nfrom pathlib import Path\nfrom tests.slow import Call, Notes\n"
        f"call = {CALL}\n"
        "pytest.main(['-q', '-n', '2', '-p', 'no:cacheprovider', '--rootdir', '.', 'test_some.py'],"
        " plugins=[Notes(Path('state'), call)])\n"
    )
    began, done = datetime.now(timezone.utc), python(tmp_path, code)
    assert done.returncode == 0, done.stderr
    state = read_state(tmp_path / "state", "now")
    outcomes = {test.partition("::")[2]: entry.outcome for test, entry in state.items()}
    assert outcomes == {
        "test_passes": "passed", "test_fails": "failed", "test_skips": "skipped", "test_ends_badly": "failed",
    }  # fmt: skip
    assert sorted(left_of(state, state)) == ["test_some.py::test_ends_badly", "test_some.py::test_fails"]
    second = timedelta(seconds=1)
    for entry in state.values():
        assert replace(entry, test="", outcome="", seconds=0.0, at="") == Ended(
            **asdict(CALL), test="", outcome="", seconds=0.0, at=""
        )
        assert began - second <= entry.span()[0] <= entry.span()[1] <= datetime.now(timezone.utc)


@pytest.mark.ci
def test_what_pytest_prints_while_it_collects_is_seen_only_if_it_fails(tmp_path: Path) -> None:
    marked = "import warnings, pytest\nwarnings.warn('of a library')\n@pytest.mark.slow\ndef test_a(): pass\n"
    (tmp_path / "test_some.py").write_text(marked)
    places = ["--rootdir", ".", "-p", "no:cacheprovider", "test_some.py"]
    code = f"from tests.slow import collect\nprint(collect({places}))"
    done = python(tmp_path, code)
    assert done.stdout == "['test_some.py::test_a']\n" and "of a library" not in done.stderr
    (tmp_path / "test_some.py").write_text("import no_such_module")
    done = python(tmp_path, code)
    assert done.returncode == 1 and done.stdout == ""
    assert "no_such_module" in done.stderr and "could not be collected (pytest ended with 2)" in done.stderr


QUICK = [
    "tests/core/test_streams.py::test_minus_one_is_a_key_of_its_own",
    "tests/support/test_text.py::test_a_table_within_the_width_stays_whole",
    "tests/records/test_lock.py::test_one_owner_at_a_time",
    "tests/records/test_lock.py::test_an_unsigned_lock_has_an_unknown_owner",
    "tests/records/test_lock.py::test_a_lock_in_a_missing_folder_is_refused",
]
# Notes which process began which test first.
SEEN = """
class Seen(slow.Notes):
    def pytest_runtest_logreport(self, report):
        super().pytest_runtest_logreport(report)
        FIRST.setdefault(report.worker_id, report.nodeid)
FIRST, slow.Notes = {}, Seen
"""


@pytest.mark.ci
def test_several_processes_begin_with_the_files_that_are_named_first(tmp_path: Path) -> None:
    """The third file has most tests, and the suite's own order has it first: neither brings it forward."""
    code = (
        f"import json\nfrom pathlib import Path\nfrom tests import slow\nfrom tests.slow import Call\n{SEEN}\n"
        f"slow.STATE = Path({str(tmp_path / 'state')!r})\n"
        f"assert slow.run({QUICK}, {CALL}, ['-m', 'not slow']) == 0\n"
        f"Path({str(tmp_path / 'first')!r}).write_text(json.dumps(FIRST))\n"
    )
    done = python(ROOT, code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(json.loads((tmp_path / "first").read_text()).values()) == QUICK[:2]
    assert sorted(read_state(tmp_path / "state", "now")) == sorted(QUICK)


def test_what_is_left_is_what_did_not_end_or_failed_on_these_sources(tmp_path: Path) -> None:
    file = tmp_path / "state"
    lines = [ended("a"), ended("b", "failed"), ended("b"), ended("c", sources="before"), ended("d", "failed")]
    file.write_text(noted(*lines) + '{"test": "e", "outc')
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
    """What it says is noted with the tests: it may be written later, elsewhere, and from another commit."""
    known = [
        ended("a", at="03:04:00"),
        ended("b", "failed", 90.0, at="03:05:30"),
        replace(ended("c", "skipped", at="03:05:31"), commit="aaaa", machine="another", processes=3),
    ]
    text = page(known)
    assert "| first test began | 2026-01-02 03:03 UTC |\n| last test ended | 2026-01-02 03:05 UTC |" in text
    assert "| commit | 0123456789ab, aaaa |" in text and "| machine | a machine, 2 cores; another |" in text
    assert "| processes on a machine | 2, 3 |" in text
    assert [f"| {name} | 1 |" in text for name in ("passed", "failed", "skipped")] == [True] * 3
    assert "| minutes, sum over the tests | 1.5 |" in text and "* `b`" in text
    assert text.index("| 90.0 | `b` |") < text.index("| 1.0 | `a` |")
    assert "| minutes, first begin to last end | 1.5 |" in text
    assert "| n/a: not in one stretch |" in page([*known, ended("d", at="05:00:00")])


def test_a_stretch_has_no_pause_of_more_than_five_minutes_without_a_test() -> None:
    long, short = ended("a", seconds=600.0, at="03:20:00"), ended("b", seconds=60.0, at="03:12:00")
    assert wall_minutes([short, long]) == 10.0
    assert wall_minutes([long, short, ended("c", seconds=60.0, at="03:26:00")]) == 16.0
    assert wall_minutes([long, short, ended("c", seconds=59.0, at="03:26:00")]) is None


def test_only_a_whole_result_replaces_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results, state, sources = tmp_path / "results.md", tmp_path / "state", slow.digest_of_sources()
    one, other = ended("a.py::t", sources=sources), ended("b.py::t", sources=sources)
    monkeypatch.chdir(ROOT)
    for name, value in (("STATE", state), ("RESULTS", results), ("collect", lambda: ["a.py::t", "b.py::t"])):
        monkeypatch.setattr(slow, name, value)
    results.write_text("the last one")
    state.write_text(noted(one))
    assert slow.main(["--shard", "1/2", "--write"]) == 2, "nothing of this part is left, all of the other"
    assert results.read_text() == "the last one"
    assert "1 of 2 slow tests did not end yet on these sources (b.py::t, ..)" in capsys.readouterr().err
    state.write_text(noted(one, other))
    assert slow.main(["--shard", "1/2", "--write"]) == 0
    assert "| passed | 2 |" in results.read_text()
    assert slow.write(["a.py::t"], {"a.py::t": replace(one, outcome="failed")}) == 0, "a failure is a result"
    assert "| failed | 1 |" in results.read_text()


def test_files_that_took_longest_on_the_last_page_are_begun_first() -> None:
    tests = ["new.py::t", "a.py::t", "b.py::t[2]", "b.py::t[1]", "c.py::t"]
    known = [ended("a.py::t", seconds=20.0), ended("b.py::t[1]", seconds=15.0), ended("b.py::t[2]", seconds=15.0)]
    text = page([*known, ended("c.py::t", seconds=4.9)])
    assert "| 30.0 | `b.py` |" in text and "`c.py` |" not in text
    assert longest_first(tests, text) == ["b.py::t[2]", "b.py::t[1]", "a.py::t", "new.py::t", "c.py::t"]
    assert longest_first(tests, "") == tests
