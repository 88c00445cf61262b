"""Tables for terminals: aligned, and no wider than asked."""

from relief_ray.text import table, tables

HEAD = ["client", "all", "walking", "standing"]
ROWS = [["0", "120", "1", "119"], ["1", "7", "7", "0"]]


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
