"""Statistics equal those over the copied windows; owners matter."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.data.federated_data import standardisation
from relief_ray.data.window_set import row_counts
from relief_ray.support.errors import UserError

COLUMNS = (("acc", 0, 2), ("mag", 2, 3))


def gathered(signal: np.ndarray, starts: np.ndarray, window: int, columns: slice) -> np.ndarray:
    return np.concatenate([signal[start : start + window, columns] for start in starts]).astype(np.float64)


@given(st.lists(st.integers(0, 80), min_size=1, max_size=20), st.integers(1, 20))
def test_row_counts(starts: list[int], window: int) -> None:
    counts = np.zeros(101, int)
    for start in starts:
        counts[start : start + window] += 1
    np.testing.assert_array_equal(row_counts(np.array(starts), window, 101), counts)


@given(st.integers(0, 10**6))
def test_pooled_over_the_owners_windows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    signal = (rng.normal(size=(300, 3)) * [1, 50, 0.1] + [3, -1000, 0]).astype(np.float32)
    clients = [rng.integers(0, 280, 7), rng.integers(0, 280, 9)]
    mean, std = standardisation(signal, COLUMNS, 20, clients, [{"acc", "mag"}, {"acc"}])
    acc = gathered(signal, np.concatenate(clients), 20, slice(0, 2))
    mag = gathered(signal, clients[0], 20, slice(2, 3))
    np.testing.assert_allclose(mean, [*acc.mean(0), *mag.mean(0)], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(std, [*acc.std(0), *mag.std(0)], rtol=1e-5)


def test_a_still_channel_is_not_blown_up() -> None:
    _, std = standardisation(np.full((50, 3), 4.0, np.float32), COLUMNS, 10, [np.array([0, 5])], [{"acc", "mag"}])
    np.testing.assert_array_equal(std, 1.0)


def test_modality_without_owner() -> None:
    with pytest.raises(UserError, match="'mag' is a modality without owner"):
        standardisation(np.ones((50, 3), np.float32), COLUMNS, 10, [np.array([0])], [{"acc"}])


def standardised(signal: np.ndarray) -> np.ndarray:
    """The rows as a client's windows hold them."""
    everything = [np.arange(0, len(signal) - 20, 5)]
    mean, std = standardisation(signal, COLUMNS, 20, everything, [{"acc", "mag"}])
    return (signal - mean) / std


# A channel around zero, one far from it, and one that moves by a thousandth of what it stands at.
SIGNAL = (np.random.default_rng(7).normal(size=(400, 3)) * [1, 50, 1e-3] + [0, -1000, 1]).astype(np.float32)


@pytest.mark.parametrize("power", range(-23, 24))
def test_data_in_a_unit_of_a_power_of_two_give_the_same_bits(power: int) -> None:
    np.testing.assert_array_equal(standardised(SIGNAL * np.float32(2.0**power)), standardised(SIGNAL))


@pytest.mark.parametrize("power", range(-9, 10))
def test_data_in_another_unit_give_the_same_windows(power: int) -> None:
    """Up to the rounding of the readings themselves: a channel that moves by 0.1 % of its level has fewer digits."""
    for channel, tolerance in ((0, 1e-5), (1, 1e-4), (2, 1e-3)):
        scaled, plain = (standardised(SIGNAL * np.float32(s))[:, channel] for s in (10.0**power, 1.0))
        np.testing.assert_allclose(scaled, plain, atol=tolerance, rtol=1e-5)
        assert abs(scaled.std() - 1.0) < 0.1, "no channel is taken for one that stands still"
