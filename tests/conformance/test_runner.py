"""Reference numbers: the same machine repeats them to the bit, another order of summing stays within the tolerance."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from relief_ray.config.experiment import parse
from relief_ray.conformance import runner as module
from relief_ray.conformance.runner import WITHIN, IsolationCheck, ReferenceNumbers, agreement, reference_numbers
from relief_ray.records.identity import machine_facts
from tests.conformance.cases import BASE, drive

HERE = ReferenceNumbers(
    machine=machine_facts(),
    sha256="a" * 64,
    values={"head": np.array([0.5, -2.0], np.float32), "fusion.B": np.array([[1.0]], np.float32)},
)


def changed(factor, **machine):
    """The same numbers with one value off by ``factor`` of the largest one, from another machine."""
    values = {**HERE.values, "head": HERE.values["head"] + np.array([2.0 * factor, 0.0], np.float32)}
    return replace(HERE, values=values, sha256="0" * 64, machine=HERE.machine.model_copy(update=machine))


def test_equal_processors_need_equal_bits_and_others_only_the_digits():
    assert agreement(HERE, HERE).is_same and agreement(HERE, HERE).needs_bits and agreement(HERE, HERE).is_kept
    rounding = agreement(changed(1e-5), HERE)
    assert rounding.needs_bits and not rounding.is_kept and rounding.difference == pytest.approx(1e-5, rel=0.01)
    for machine in ({"cpu": "Cortex-A78AE"}, {"torch": "2.8.0"}, {"device": "cuda: Orin"}):
        assert agreement(changed(1e-5, **machine), HERE).is_kept
        assert not agreement(changed(1e-3, **machine), HERE).is_kept


def test_other_groups_and_values_that_are_no_numbers_are_broken():
    fewer = replace(changed(0.0, cpu="x"), values={"head": HERE.values["head"]})
    assert not agreement(fewer, HERE).is_kept
    shaped = replace(changed(0.0, cpu="x"), values={**HERE.values, "head": np.zeros(3, np.float32)})
    assert not agreement(shaped, HERE).is_kept
    assert not agreement(changed(float("nan"), cpu="x"), HERE).is_kept


@pytest.mark.slow
def test_this_machine_repeats_itself_and_another_order_of_summing_is_far_from_the_limit(run_cache, monkeypatch):
    """Smaller batches on the way back stand for another processor: the same mathematics, other last bits."""
    before = torch.get_num_threads()
    try:
        reference = reference_numbers()
        assert agreement(reference_numbers(), reference).is_same
        monkeypatch.setattr(module, "_REFERENCE_SETTINGS", {**module._REFERENCE_SETTINGS, "training.micro_batch": 3})
        other = agreement(reference_numbers(), reference)
        assert not other.is_same and 0 < other.difference < WITHIN / 5
        monkeypatch.setattr(module, "_REFERENCE_SETTINGS", {**module._REFERENCE_SETTINGS, "training.lr": 0.31})
        assert agreement(reference_numbers(), reference).difference > 100 * WITHIN, "a wrong step is seen"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
@pytest.mark.parametrize("strategy", ["relief", "relief_plus", "harmony"])
def test_what_a_client_reaches_is_enough_for_it(strategy, missing, run_cache, tmp_path):
    """With NaN in all that it neither received nor kept; rows of absent networks are of the server's model."""
    sections = {"strategy": strategy, "transfer": {"download": "reachable"}}
    config = parse({**BASE, **sections, "training": {**BASE["training"], "missing": missing}})
    drive(config, tmp_path, make_executor=IsolationCheck)
