"""Number tables: right values, and errors that name line, column, finding and expectation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.data.formats.common import read_table, require_finite, require_not_empty
from relief_ray.support.errors import UserError

GOOD = [b"1,2,3", b"4,-5.5,6e-2", b"7,NaN,9"]


def test_values() -> None:
    table = read_table(b"\n".join(GOOD), name="f", columns=3, delimiter=",")
    np.testing.assert_array_equal(table, np.array([[1, 2, 3], [4, -5.5, 0.06], [7, np.nan, 9]]))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"1,2", r"f, line 2: found 2 columns, expected 3"),
        (b"1,2,3,4", r"f, line 2: found 4 columns, expected 3"),
        (b"1,x1,3", r"f, line 2, column 2: found 'x1', expected a number"),
        (b"1,2_0,3", r"f, line 2, column 2: found '2_0', expected a number"),
        (b"1,,3", r"f, line 2, column 2: found '', expected a number"),
        (b"1,\xff\xfe,3", r"f, line 2, column 2"),
    ],
)
def test_a_bad_line_is_named(line: bytes, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_table(b"\n".join([GOOD[0], line, GOOD[2]]), name="f", columns=3, delimiter=",")


def test_a_uniformly_different_file_is_named() -> None:
    with pytest.raises(UserError, match="line 1: found 3 columns, expected 54"):
        read_table(b"\n".join(GOOD), name="f", columns=54, delimiter=",")


@pytest.mark.parametrize("data", [b"", b"\n \n"])
def test_empty(data: bytes) -> None:
    with pytest.raises(UserError, match="empty"):
        read_table(data, name="f", columns=3)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_table_or_a_user_error(data: bytes) -> None:
    try:
        table = read_table(data, name="f", columns=2)
    except UserError as error:
        assert "f" in str(error)
    else:
        assert table.shape[1] == 2


def test_non_finite_is_named() -> None:
    table = np.zeros((4, 3), np.float32)
    require_finite(table, "f")
    table[2, 1] = np.inf
    with pytest.raises(UserError, match="f, line 3, column 2: found inf"):
        require_finite(table, "f")


def test_a_dead_channel_is_named() -> None:
    table = np.zeros((4, 3), np.float32)
    table[:3, 1] = np.nan
    require_not_empty(table, (0, 1, 2), "f")
    table[:, 1] = np.nan
    with pytest.raises(UserError, match="f, column 2: all 4 rows are NaN"):
        require_not_empty(table, (0, 1, 2), "f")


@pytest.mark.parametrize(("text", "found"), [("inf", "inf"), ("-inf", "-inf"), ("1e39", r"1e\+39")])
def test_infinity_is_no_reading(text: str, found: str) -> None:
    with pytest.raises(UserError, match=rf"f, row 2, column 3: found {found}, expected a finite number"):
        read_table(b"1 nan 3\n4 5 " + text.encode(), name="f", columns=3)
