"""Test the plain text that terminals and pages share: aligned tables no wider than asked, hints, rounding."""

import re
from pathlib import Path

import pytest

from relief_ray.support.errors import clipped, several, visible
from relief_ray.support.table import word_table
from relief_ray.support.text import install, percent, pip, table, tables, typed

ROOT = Path(__file__).parents[2]
HEAD = ["client", "all", "walking", "standing"]
ROWS = [["0", "120", "1", "119"], ["1", "7", "7", "0"]]


@pytest.mark.parametrize(
    ("value", "decimals", "shown"),
    [(63.2, 0, "63"), (99.4, 0, "99"), (99.6, 0, "> 99"), (100.0, 0, "100"), (99.96, 1, "> 99.9"), (100.4, 0, "100")],
)
def test_nearly_all_is_not_all(value, decimals, shown):
    assert percent(value, decimals) == shown


@pytest.mark.parametrize(
    ("path", "shown"),
    [("-dash", "./-dash"), ("--set", "./--set"), ("a-b", "a-b"), ("-my runs", "'./-my runs'"), ("/-a", "/-a")],
)
def test_a_path_is_no_option_where_it_is_typed(path, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert typed(path) == shown and typed(tmp_path / path) == (path if path[0] == "/" else shown)


def test_control_characters_are_seen():
    text = "\x1b[2J\x1b]0;a\x07\x9b31m\u202e\u2066\u061c\r\x00"
    assert visible(text) == "\\x1b[2J\\x1b]0;a\\x07\\x9b31m\\u202e\\u2066\\u061c\\r\\x00"
    assert visible("one\ttwo\n\xa0±é你👍") == "one\ttwo\n\xa0±é你👍"
    assert clipped("a\x1b\nb\u202e") == "a\\x1b\\nb\\u202e"
    made = word_table(["name", "x"], [["\x1b[31m", "\u202e"]])
    for written in (made.text(), made.markdown(), made.html(), made.csv()):
        assert "\x1b" not in written and "\u202e" not in written and "x1b" in written, written


@pytest.mark.parametrize("extra", ["server", "search", "moment"])
def test_an_extra_is_installed_by_a_mode_of_bootstrap_that_has_it(extra):
    told = install(extra)
    (mode,) = re.findall(r"sh bootstrap\.sh (\w+)", told)
    (extras,) = re.findall(rf"^  (?:\w+ \| )*{mode}\) extras=(\S+) ;;", (ROOT / "bootstrap.sh").read_text(), re.M)
    assert extra in extras.split(",") and f"pip install -e '.[{extra}]'" in told
    assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()


def test_every_pip_command_of_a_message_comes_from_one_place():
    files = [f for folder in ("relief_ray", "actors", "tune_configs") for f in (ROOT / folder).rglob("*.py")]
    having = {f.relative_to(ROOT).as_posix() for f in files if "pip install" in f.read_text(encoding="utf-8")}
    assert having == {"relief_ray/support/text.py"} and pip("torch") == "pip install torch"


def test_nothing_says_that_an_index_has_this_package():
    files = [f for folder in ("relief_ray", "actors", "tune_configs", "docs") for f in (ROOT / folder).rglob("*")]
    texts = {f: f.read_text(encoding="utf-8") for f in [*files, ROOT / "README.md"] if f.suffix in (".py", ".md")}
    assert len(texts) > 100
    assert not [f.name for f, text in texts.items() if re.search(r"pip install ['\"]?relief-ray|relief-ray\[", text)]


def test_a_table_within_the_width_stays_whole():
    (whole,) = tables(HEAD, ROWS, 80)
    assert whole == table(HEAD, ROWS)


def test_a_wider_table_becomes_several_each_with_the_first_column():
    parts = tables(HEAD, ROWS, 24)
    assert [part.split("\n")[0].split() for part in parts] == [["client", "all", "walking"], ["client", "standing"]]
    assert max(len(line) for part in parts for line in part.split("\n")) <= 24
    assert [line.split() for line in parts[1].split("\n")[2:]] == [["0", "119"], ["1", "0"]]
    assert len(tables(HEAD, ROWS, 3)) == 3, "a column is never cut"


def test_columns_on_the_left_stay_there_in_every_part():
    whole, parts = tables(HEAD, ROWS, 80, left=2), tables(HEAD, ROWS, 16, left=2)
    assert whole == [table(HEAD, ROWS, left=2)] and len(parts) == 3
    assert parts[0].split("\n")[-1] == "  1       7" and parts[1].split("\n")[-1].endswith("     7")


def test_prose_in_the_last_column_is_wrapped():
    shown = table(["name", "what"], [["a", "one two three"], ["b", ""]], left=2, width=16).split("\n")
    assert shown == ["  name  what", "  ----  -------", "  a     one two", "        three", "  b"]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([3], "fold 3"),
        ([2, 0, 1, 1], "folds 0, 1 and 2"),
        (range(410, 458), "folds 410-457"),
        ([0, 1, 2, 4, 7], "folds 0-2, 4 and 7"),
        (range(-2, 3), "folds -2, -1, 0, 1 and 2"),
    ],
)
def test_many_numbers_are_named_by_their_spans(numbers, said):
    assert several("fold", numbers) == said
