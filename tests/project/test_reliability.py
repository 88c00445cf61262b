"""The page on reliability names tests that exist, a promise and a test in every row, and each test with its mark."""

import re
from subprocess import CompletedProcess

import pytest

from tests.reliability import PAGE, main, marked, marks_of, named_in


def test_marks_are_read_from_functions_and_files(tmp_path):
    path = tmp_path / "test_a.py"
    cases = "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.slow)])\n"
    path.write_text(
        f"@pytest.mark.slow\ndef test_a(): ...\n{cases}def test_b(x):\n    def test_c(): ...\ndef helper(): ...\n"
        "@pytest.mark.ci\n@pytest.mark.ray\ndef test_d(): ...\n"
    )
    assert marks_of(path) == {"test_a": "slow", "test_b": "", "test_d": "ci"}
    for number, marks in enumerate(("pytest.mark.slow", "[pytest.mark.ray, pytest.mark.slow]")):
        other = tmp_path / f"test_{number}.py"
        other.write_text(f"pytestmark = {marks}\ndef test_a(): ...\n@pytest.mark.ci\ndef test_b(): ...\n")
        assert marks_of(other) == {"test_a": "slow", "test_b": "slow"}


def test_the_page_is_as_the_tests_are():
    text = PAGE.read_text(encoding="utf-8")
    assert marked(text) == text, "python -m tests.reliability --write"
    assert len(named_in(text)) > 110 and text.count("`tests/") >= len(named_in(text))


def test_a_wrong_mark_is_mended_and_a_test_that_is_gone_is_refused():
    mine = "tests/project/test_reliability.py"
    right = f"`{mine}::test_the_page_is_as_the_tests_are`; `{mine}`"
    assert marked(right.replace("are`", "are` (slow)")) == right and named_in(right) == [right.split("`")[1], mine]
    for gone in (f"`{mine}::test_nothing`", "`tests/test_nothing.py`"):
        with pytest.raises(SystemExit, match="no such test; name one that is there"):
            marked(gone)


def test_every_row_has_a_case_a_promise_and_a_test():
    tables = re.split(r"^\| case \| what is promised \| test \|$", PAGE.read_text(encoding="utf-8"), flags=re.M)
    rows = [line for table in tables[1:] for line in table.split("\n\n")[0].splitlines()[2:]]
    assert len(rows) > 90
    for row in rows:
        # A bar within code would be a column of its own.
        case, promise, test = (
            cell.strip() for cell in re.sub(r"`[^`]*`", lambda m: m[0].replace("|", " "), row)[1:-1].split("|")
        )
        assert case and promise and named_in(test), row


def test_a_plain_call_looks_at_the_page_and_runs_nothing(monkeypatch, tmp_path, capsys):
    ran = []
    monkeypatch.setattr("subprocess.run", lambda words, **_: ran.append(words[3:]) or CompletedProcess(words, 0))
    assert main([]) == 0 and "tests with their marks" in capsys.readouterr().out
    page = tmp_path / "page.md"
    page.write_text("`tests/project/test_reliability.py` (slow)", encoding="utf-8")
    monkeypatch.setattr("tests.reliability.PAGE", page)
    with pytest.raises(SystemExit, match="a mark is not its test's; write them"):
        main([])
    with pytest.raises(SystemExit, match="-m ci: unknown; expected --write, or --run"):
        main(["-m", "ci"])
    assert main(["--write"]) == main([]) == 0 and not ran
    assert main(["--run", "-x"]) == main(["--run", "-m", "ci"]) == 0
    assert ran == [["-m", "", "-x", page.read_text().strip("`")], ["-m", "ci", page.read_text().strip("`")]]
