"""No sample in two parts, a purge of one window between them, the protocol's fractions, short bouts reported."""

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from relief_ray.data import open_dataset, partition
from relief_ray.data.config import DataConfig
from relief_ray.data.partition import BoutWindows, _shorter, cut_tail, held_out, split_bouts, training_positions
from relief_ray.support.errors import UserError

lengths = st.lists(st.integers(0, 3000), min_size=1, max_size=6)


def bouts_of(sizes: list[int], num_subjects: int = 3) -> np.ndarray:
    stops = np.cumsum(sizes)
    return np.array(
        [[n % num_subjects, stop - size, stop] for n, (size, stop) in enumerate(zip(sizes, stops, strict=True))]
    )


def split(sizes: list[int], config: DataConfig, window: int, stride: int) -> list[BoutWindows]:
    return list(split_bouts(bouts_of(sizes), config, (0, 1, 2), window, stride))


@given(lengths, st.integers(2, 300), st.integers(1, 200), st.floats(0.05, 0.5), st.floats(0.05, 0.5))
def test_parts_of_a_bout_lie_one_window_apart(
    sizes: list[int], window: int, stride: int, validation: float, test: float
) -> None:
    config = DataConfig(validation_fraction=validation, test_fraction=test)
    for (_, start, stop), part in zip(bouts_of(sizes), split(sizes, config, window, stride), strict=True):
        ordered = [starts for starts in (part.train, part.validation, part.test) if len(starts)]
        for starts in ordered:
            assert start <= starts.min() and starts.max() + window <= stop
        for before, after in itertools.pairwise(ordered):
            assert after.min() - (before.max() + window) >= window


@given(lengths, st.integers(2, 300), st.integers(1, 200))
def test_every_bout_is_used(sizes: list[int], window: int, stride: int) -> None:
    for size, part in zip(sizes, split(sizes, DataConfig(), window, stride), strict=True):
        assert (len(part.train) > 0) == (size >= window)
        assert (len(part.test) > 0) == (size >= 3 * window)


def test_fractions_of_a_long_bout() -> None:
    (part,) = split([7500], DataConfig(), 128, 25)
    assert part.test.min() == 6000  # the last fifth
    train_end = 6000 - 128
    assert part.validation.min() == train_end - round(0.15 * train_end)
    assert part.train.max() + 128 <= part.validation.min() - 128
    assert (len(part.train), len(part.validation), len(part.test)) == (190, 31, 55)


def test_a_short_bout_keeps_one_test_window() -> None:
    (part,) = split([3 * 128], DataConfig(), 128, 25)
    assert (len(part.train), len(part.validation), len(part.test)) == (1, 0, 1)


@given(st.integers(1, 5000), st.floats(0.01, 0.5), st.integers(1, 500))
def test_cut_tail_leaves_a_window_on_both_sides(length: int, fraction: float, window: int) -> None:
    cut = cut_tail(0, length, fraction, window)
    assert (cut is None) == (length < 3 * window)
    if cut is not None:
        assert cut[0] >= window and cut[1] - cut[0] == window and length - cut[1] >= window


def test_held_out_subjects_by_fold() -> None:
    positions = tuple(range(8))
    folds = [held_out(DataConfig(split="held_out_subject", fold=fold), positions) for fold in range(4)]
    assert folds == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert held_out(DataConfig(), positions) == ()


@pytest.mark.parametrize(("leave_out", "people", "number"), [(1, 8, 8), (3, 8, 3), (2, 7, 4), (5, 8, 2)])
def test_everybody_is_tested_on_once_over_the_folds(leave_out: int, people: int, number: int) -> None:
    """Of 8 people by threes folds hold out 3, 3 and 2; of 7 by twos the last holds out one."""
    given = {"split": "held_out_subject", "leave_out": leave_out, "subjects": list(range(1, people + 1))}
    folds = [DataConfig.model_validate({**given, "fold": fold}) for fold in range(number)]
    assert folds[0].num_folds == number
    assert [p for fold in folds for p in held_out(fold, range(people))] == list(range(people))
    with pytest.raises(ValidationError, match=rf"has folds 0..{number - 1} \({leave_out} subject"):
        DataConfig.model_validate({**given, "fold": number})


def test_people_to_test_on_by_choice() -> None:
    config = DataConfig(split="held_out_subject", test_subjects=(3, 7))
    assert DataConfig(split="held_out_subject", test_subjects=(7, 3)) == config, "in any order"
    assert held_out(config, range(8)) == (2, 6) and len(training_positions(config)) == 6
    for wrong, said in (
        ({"test_subjects": (9,)}, r"data.test_subjects=\[9\]: \[9\] do not take part, expected some of \[1, 2"),
        ({"test_subjects": (3, 3)}, r"data.test_subjects=\[3, 3\]: names a subject twice, expected each once"),
        ({"test_subjects": (3,), "fold": 1}, r"with data.fold=1, expected one of the two"),
        ({"test_subjects": (3,), "split": "within_subject"}, "test_subjects"),
    ):
        with pytest.raises(ValidationError, match=said):
            DataConfig.model_validate({"split": "held_out_subject", **wrong})


def test_defaults_of_held_out_people_leave_digests_as_they_were() -> None:
    assert not {"leave_out", "test_subjects"} & DataConfig(split="held_out_subject").deciding().keys()
    assert DataConfig(split="held_out_subject", leave_out=1).deciding()["leave_out"] == 1


def test_held_out_needs_someone_left() -> None:
    with pytest.raises(UserError, match=r"all of the 2 subjects are held out .*leave one to train"):
        held_out(DataConfig(split="held_out_subject"), (0, 1))


def test_people_in_training_and_in_test_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were windows of person 2 in both parts, whatever cut them."""
    config = DataConfig(split="held_out_subject", stride_s=20.0)
    dataset = open_dataset(config)
    whole = partition.split_bouts

    def cut(*given: Any) -> Iterator[BoutWindows]:
        yield from (b._replace(train=b.test) if b.subject == 1 else b for b in whole(*given))

    monkeypatch.setattr(partition, "split_bouts", cut)
    monkeypatch.setattr(partition, "training_positions", lambda config: (1, *range(2, 8)))
    with pytest.raises(UserError, match="windows of subject 2 are in training and in test, expected in one"):
        partition.split_windows(dataset, config, 7)


def test_held_out_subject_is_only_tested_on() -> None:
    parts = split([2000] * 3, DataConfig(split="held_out_subject"), 128, 25)
    assert [len(part.test) > 0 for part in parts] == [True, True, False]
    assert [len(part.train) > 0 for part in parts] == [False, False, True]
    assert len(parts[0].test) == len(range(0, 2000 - 127, 25))


def test_random_split_leaks() -> None:
    config = DataConfig(split="random_leaky", seed=3)
    (part,) = split([7500], config, 128, 25)
    distance = np.abs(part.train[:, None] - part.test[None, :]).min(axis=0)
    assert (distance < 128).mean() > 0.9
    everything = np.sort(np.concatenate([part.train, part.validation, part.test]))
    np.testing.assert_array_equal(everything, np.arange(0, 7500 - 127, 25))
    (again,) = split([7500], config, 128, 25)
    np.testing.assert_array_equal(again.test, part.test)


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.4])
def test_where_bouts_are_too_short_the_window_that_fits_is_named(fraction: float) -> None:
    """The longest bout of 20.9 s, in windows of the seconds that the message names, has all three parts."""
    config = DataConfig(name="dsa_mini", test_fraction=fraction)
    said = _shorter(config, 20.9)
    window_s = float(re.search(r"data\.window_s=([\d.]+) just fits", said)[1])
    assert "the longest stretch (bout) has 20.9 s" in said and 20.9 / window_s < max(5, 4 / (1 - fraction)) + 0.05
    size, window = (math.floor(1000 * s) for s in (20.9, window_s))
    (part,) = split([size], config, window, 1)
    assert all(map(len, (part.train, part.validation, part.test)))
    (part,) = split([size], config, math.ceil(1.02 * window), 1)
    assert not all(map(len, (part.train, part.validation, part.test)))
    assert "more subjects" in _shorter(config, 60.0)
