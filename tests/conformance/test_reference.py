"""Reference numbers: the same machine repeats them to the bit, another order of summing stays within the tolerance."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from relief_ray.conformance import reference as module
from relief_ray.conformance.reference import WITHIN, agreement, reference_numbers


@pytest.fixture(scope="module")
def reference(run_cache):
    before = torch.get_num_threads()
    yield reference_numbers()
    torch.set_num_threads(before)


def changed(numbers, factor, **machine):
    """The same numbers with one value off by ``factor`` of the largest one, from another machine."""
    values = {name: value.copy() for name, value in numbers.values.items()}
    first = values[next(iter(values))].reshape(-1)
    first[0] += factor * np.abs(first).max()
    return replace(numbers, values=values, sha256="0" * 64, machine=numbers.machine.model_copy(update=machine))


def test_this_machine_repeats_itself(reference):
    again = agreement(reference_numbers(), reference)
    assert again.is_same and again.needs_bits and again.difference == 0.0 and again.is_kept


def test_another_order_of_summing_is_within_the_tolerance(reference, monkeypatch):
    """Another engine stands for another processor: the same mathematics, other last bits."""
    monkeypatch.setattr(module, "_SETTINGS", (*module._SETTINGS, "training.engine=naive"))
    other = agreement(reference_numbers(), reference)
    assert not other.is_same and 0 < other.difference < WITHIN / 10, "far from the limit"


def test_equal_processors_need_equal_bits_and_others_only_the_digits(reference):
    rounding = changed(reference, 1e-5)
    assert agreement(rounding, reference).needs_bits and not agreement(rounding, reference).is_kept
    for machine in ({"cpu": "Cortex-A78AE"}, {"torch": "2.8.0"}, {"device": "cuda: Orin"}):
        assert agreement(changed(reference, 1e-5, **machine), reference).is_kept
        far = agreement(changed(reference, 1e-3, **machine), reference)
        assert not far.is_kept and far.difference == pytest.approx(1e-3, rel=0.01)


def test_other_groups_and_values_that_are_no_numbers_are_broken(reference):
    fewer = replace(changed(reference, 0.0, cpu="x"), values=dict(list(reference.values.items())[1:]))
    assert not agreement(fewer, reference).is_kept
    assert not agreement(changed(reference, float("nan"), cpu="x"), reference).is_kept
