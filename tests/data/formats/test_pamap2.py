"""PAMAP2: columns, gaps, heart rate, bouts on their own, and damage named."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relief_ray.data.formats import pamap2
from relief_ray.data.loader import Members, Recording
from relief_ray.data.registry import get_spec
from relief_ray.support.errors import UserError

SPEC = get_spec("pamap2")
NAME = "PAMAP2_Dataset/Protocol/subject101.dat"
Write = Callable[[np.ndarray, str], bytes]
Pack = Callable[[dict[str, bytes]], Members]


def raw(rows: int = 600) -> np.ndarray:
    """Column c holds the constant c; activity 1, then null, then 24."""
    table = np.tile(np.arange(54.0), (rows, 1))
    table[:, 0] = 10 + np.arange(rows) / 100
    table[:, 1] = np.where(np.arange(rows) < 250, 1, np.where(np.arange(rows) < 350, 0, 24))
    table[:, 2] = 80.0
    return table


@pytest.fixture
def parse(members_of: Pack, as_text: Write) -> Callable[[np.ndarray], Recording]:
    return lambda table: pamap2.parse(SPEC, members_of({NAME: as_text(table, " ")}), Path("here"), 101)


def test_columns_and_bouts(parse: Callable[[np.ndarray], Recording]) -> None:
    recording = parse(raw())
    acc = [4, 5, 6, 21, 22, 23, 38, 39, 40]
    gyro, mag = [c + 6 for c in acc], [c + 9 for c in acc]
    np.testing.assert_allclose(recording.signal, np.tile([*acc, *gyro, *mag, 80], (250, 1)), rtol=1e-5)
    assert recording.bouts.tolist() == [[0, 125], [125, 250]]
    assert recording.labels.tolist() == [1] * 125 + [24] * 125
    assert recording.facts["missing_labels"] == [2, 3, 4, 5, 6, 7, 12, 13, 16, 17]


def test_nothing_mixes_over_an_activity_border(parse: Callable[[np.ndarray], Recording]) -> None:
    table = raw()
    table[250:, 4] = 1000.0  # everything after the first activity
    recording = parse(table)
    np.testing.assert_allclose(recording.signal[:125, 0], 4.0, rtol=1e-5)
    np.testing.assert_allclose(recording.signal[125:, 0], 1000.0, rtol=1e-5)


def test_gaps_are_interpolated(parse: Callable[[np.ndarray], Recording]) -> None:
    table = raw()
    table[100:140, 4:13] = np.nan
    recording = parse(table)
    np.testing.assert_allclose(recording.signal[:, 0], 4.0, rtol=1e-5)
    assert np.flatnonzero(recording.filled[:, 0]).tolist() == list(range(50, 70))


def test_heart_rate_is_filled_forward_and_rows_before_it_dropped(parse: Callable[[np.ndarray], Recording]) -> None:
    table = raw()
    table[:, 2] = np.nan
    table[50, 2], table[400, 2] = 90.0, 120.0
    recording = parse(table)
    assert recording.bouts.tolist() == [[0, 100], [100, 225]]
    assert recording.facts["labelled_rows_before_first_hr"] == 50
    np.testing.assert_array_equal(recording.signal[:, -1], [90.0] * 125 + [120.0] * 100)
    # A reading is held for a second, which is 50 rows, before it is missing.
    assert np.flatnonzero(recording.filled[:, -1]).tolist() == [*range(51, 125), *range(125 + 51, 225)]


def test_a_pause_in_the_clock_ends_a_bout(parse: Callable[[np.ndarray], Recording]) -> None:
    table = raw()
    table[100:, 0] += 3.0
    assert parse(table).bouts.tolist() == [[0, 50], [50, 125], [125, 250]]


@pytest.mark.parametrize("began_s", [0.0, 4475.63, 123456.78, 1234567.89])
def test_a_clock_keeps_its_hundredths_however_long_it_has_run(
    members_of: Pack, parse: Callable[[np.ndarray], Recording], began_s: float
) -> None:
    """As float32, a clock of eight digits stands still or goes backwards, and hides a row that is missing."""
    table = raw()
    at_once = parse(table)
    table[:, 0] += began_s
    text = "\n".join(" ".join([f"{row[0]:.2f}", *(f"{x:.6g}" for x in row[1:])]) for row in table.tolist())
    rows = text.split("\n")
    recording = pamap2.parse(SPEC, members_of({NAME: text.encode()}), Path("here"), 101)
    np.testing.assert_array_equal(recording.signal, at_once.signal)
    assert recording.bouts.tolist() == [[0, 125], [125, 250]]
    without_one = "\n".join([*rows[:100], *rows[101:]]).encode()
    recording = pamap2.parse(SPEC, members_of({NAME: without_one}), Path("here"), 101)
    assert recording.bouts.tolist() == [[0, 50], [50, 125], [125, 250]]


def wrong_columns(table: np.ndarray) -> np.ndarray:
    return table[:, :53]


def wrong_label(table: np.ndarray) -> np.ndarray:
    table[321, 1] = 99
    return table


def dead_channel(table: np.ndarray) -> np.ndarray:
    table[:, 21] = np.nan
    return table


def no_heart_rate(table: np.ndarray) -> np.ndarray:
    table[:, 2] = np.nan
    return table


def backwards(table: np.ndarray) -> np.ndarray:
    table[200, 0] = 1.0
    return table


def only_null(table: np.ndarray) -> np.ndarray:
    table[:, 1] = 0
    return table


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (wrong_columns, "line 1: found 53 columns, expected 54"),
        (wrong_label, "line 322: label 99, expected 0 or one of 1, 2"),
        (dead_channel, "column 22: all 600 rows are NaN"),
        (no_heart_rate, "column 3: all 600 rows are NaN"),
        (backwards, "line 201, column 1: time does not increase"),
        (only_null, "every row has label 0"),
    ],
)
def test_damage_is_named(
    parse: Callable[[np.ndarray], Recording], damage: Callable[[np.ndarray], np.ndarray], said: str
) -> None:
    with pytest.raises(UserError, match=rf"subject101\.dat.*{said}"):
        parse(damage(raw()))
