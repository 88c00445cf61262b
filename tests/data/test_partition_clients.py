"""Shards of any number: consecutive, balanced, complete."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.data.partition import _assign, clients_of, thin
from relief_ray.support.errors import UserError


@given(st.integers(1, 12), st.integers(0, 120))
def test_shares_differ_by_one_and_the_first_get_more(num_subjects: int, extra: int) -> None:
    pieces = list(map(len, clients_of(num_subjects, num_subjects + extra)))
    assert sum(pieces) == num_subjects + extra
    assert max(pieces) - min(pieces) <= 1
    assert pieces == sorted(pieces, reverse=True)


def test_too_few_clients() -> None:
    with pytest.raises(UserError, match=r"data\.num_clients=3.*at least 8"):
        clients_of(8, 3)


@given(st.integers(0, 200), st.integers(1, 20))
def test_pieces_are_consecutive_and_complete(num_windows: int, num_pieces: int) -> None:
    table = np.arange(3 * num_windows).reshape(num_windows, 3)
    pieces = _assign([table], [range(num_pieces)], num_pieces)
    np.testing.assert_array_equal(np.concatenate(pieces), table)
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1


def test_clients_are_numbered_subject_by_subject() -> None:
    assert clients_of(2, 5) == [[0, 1, 2], [3, 4]]


@given(st.integers(0, 500), st.one_of(st.none(), st.integers(1, 50)))
def test_thinning_is_even(num_windows: int, limit: int | None) -> None:
    kept = thin(num_windows, limit)
    assert len(kept) == min(num_windows, limit or num_windows)
    assert len(np.unique(kept)) == len(kept)
    if limit and 1 < limit < num_windows:
        assert (kept[0], kept[-1]) == (0, num_windows - 1)
        assert np.diff(kept).max() - np.diff(kept).min() <= 1
