"""Window sets: small to send, and loading gives exactly the standardised slices."""

import pickle

import numpy as np
import pytest

from relief_ray.data import DataConfig, Dataset, federate, num_clients, pool
from relief_ray.data.window_set import WindowSet
from relief_ray.support.errors import UserError


@pytest.fixture(scope="module")
def windows(mini: Dataset) -> WindowSet:
    config = DataConfig()
    return federate(mini, config, [mini.spec.names] * num_clients(mini, config)).clients[2]


def test_loading_is_slicing_and_standardising(windows: WindowSet, mini: Dataset) -> None:
    loaded = windows.load()
    signal = mini.signal()
    assert list(loaded) == ["acc", "gyro", "mag"]
    for name, first, stop in windows.columns:
        block = loaded[name]
        assert (block.dtype, block.shape) == (np.float32, (len(windows), 3, 128))
        assert block.flags.c_contiguous
        for n in (0, 7, len(windows) - 1):
            raw = signal[windows.starts[n] : windows.starts[n] + 128, first:stop].T
            expected = (raw - windows.mean[first:stop, None]) / windows.std[first:stop, None]
            np.testing.assert_array_equal(block[n], expected)


def test_only_what_is_asked_for(windows: WindowSet) -> None:
    assert list(windows.load({"mag"})) == ["mag"]
    assert windows.load(()) == {}
    with pytest.raises(UserError, match=r"\['hr'\] unknown"):
        windows.load({"hr"})


def test_small_and_picklable(windows: WindowSet) -> None:
    sent = pickle.dumps(windows)
    assert len(sent) < 24 * len(windows) + 2000
    np.testing.assert_array_equal(pickle.loads(sent).load()["acc"], windows.load()["acc"])


def test_take_and_pool(windows: WindowSet) -> None:
    halves = [windows.take(range(10)), windows.take(np.arange(10, len(windows)))]
    joined = pool(halves)
    assert len(halves[0]) == 10
    for field in ("starts", "labels", "subjects"):
        np.testing.assert_array_equal(getattr(joined, field), getattr(windows, field))
    assert windows.take([]).load()["acc"].shape == (0, 3, 128)


@pytest.mark.parametrize("modalities", [None, ("acc",), ("mag", "acc")])
def test_windows_cut_out_of_their_signal_have_the_same_bits(windows: WindowSet, modalities: tuple[str, ...]) -> None:
    cut = pickle.loads(pickle.dumps(windows.cut(modalities)))
    whole, loaded = windows.load(modalities), cut.load()
    assert list(loaded) == list(whole) == [m for m in windows.modalities if m in (modalities or windows.modalities)]
    for name, block in whole.items():
        np.testing.assert_array_equal(loaded[name], block, strict=True)
    np.testing.assert_array_equal(cut.take([5, 3]).load()[cut.modalities[0]], whole[cut.modalities[0]][[5, 3]])


def test_nothing_but_the_rows_and_columns_of_the_windows_is_cut(windows: WindowSet, mini: Dataset) -> None:
    two = windows.take([0, len(windows) - 1])
    cut = two.cut(["gyro"])
    assert cut.rows is not None and cut.rows.shape == (2 * 128, 3) and cut.signal_path == ""
    start = int(two.starts[1])
    np.testing.assert_array_equal(cut.rows[128:], mini.signal()[start : start + 128, 3:6])
    with pytest.raises(UserError, match=r"\['hr'\] unknown"):
        two.cut(["hr"])
    assert windows.take([]).cut().load()["acc"].shape == (0, 3, 128)
