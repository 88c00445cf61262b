"""The product's code stays below the table in ``docs/architecture.md``, and is counted as the page says."""

import pytest

from tests.guards.code_tokens import (
    PAGE,
    TOTAL,
    Size,
    above,
    c_tokens,
    code_tokens,
    read_table,
    sizes,
    table,
    with_table,
)


@pytest.mark.ci
def test_no_room_is_larger_than_the_table_allows():
    """What the table has beyond them, such as a room that was removed, is only out of date."""
    assert not above(read_table(PAGE.read_text(encoding="utf-8")), sizes())


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 0),
        ("# nothing\n\n", 0),
        ('"""Docstring."""\nx = 1  # why\n', 3),
        ('def f():\n    """Docstring\n\n    of lines.\n    """\n    return "text"\n', 7),
        ('class A:\n    """Docstring."""\n\n    x: int = 1\n    """Docstring of a field."""\n', 8),
        ("x = (\n    1,\n    2,\n)\n", 8),
        ('x = f"{a} and {b:{width}}" + "c"\n', 5),
        ("x = f'{f(1)}'\n", 3),
        ('f("one"\n  "two")\n', 5),
    ],
)
def test_tokens_that_are_code_are_counted(text, number):
    assert code_tokens(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("/* nothing\n * at all */ // no\n", 0),
        ("x += y->z[0] << 2;", 11),
        ("#define A(i) \\\n  f(i, 1.5f)\n", 12),
        ('call("a \\" b", --n);', 8),
    ],
)
def test_tokens_of_c_are_counted(text, number):
    assert c_tokens(text) == number


def test_rooms_files_and_other_bytes_are_counted(tmp_path):
    files = {
        "relief_ray/a.py": "x = 1\n",
        "relief_ray/room/b.py": "x = 1\ny = 2\n",
        "relief_ray/room/inner/c.py": "x\n",
        "relief_ray/room/inner/style.css": "12345",
        "relief_ray/room/__pycache__/b.pyc": "1",
        "tests/room/d.py": "x\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    rooms = {"relief_ray": Size(3, 0, 1, 1), "relief_ray/room": Size(7, 5, 3, 2)}
    assert sizes(tmp_path) == rooms | {TOTAL: Size(10, 5, 4, 3)}
    moved = sizes(tmp_path, ("tests/room",))
    assert moved == rooms | {"tests/room": Size(1, 0, 1, 1), TOTAL: Size(11, 5, 5, 4)}


def test_the_ceiling_is_the_table():
    page = PAGE.read_text(encoding="utf-8")
    rooms = {"a": Size(100, 0, 9, 1), TOTAL: Size(1_000, 50, 9, 1)}
    written = with_table(page, rooms)
    assert read_table(written) == rooms and table(rooms) in written and len(written) < len(page)
    assert not above(rooms, {"a": Size(103, 0, 99, 9), TOTAL: Size(1_030, 51, 99, 9)})
    assert above(rooms, {"a": Size(104), "b": Size(1), TOTAL: Size(1_031, 52)}) == [
        "a: 104 code tokens, the table in architecture.md allows 100 and 3% more",
        "b: 1 code tokens, the table in architecture.md allows 0 and 3% more",
        "**all**: 1,031 code tokens, the table in architecture.md allows 1,000 and 3% more",
        "**all**: 52 other bytes, the table in architecture.md allows 50 and 3% more",
    ]
