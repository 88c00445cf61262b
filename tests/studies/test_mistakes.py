"""Mistakes of a user with arrays and classes of his own: each is answered by what to write."""

import numpy as np
import pytest
from torch import nn

import relief_ray as rr
from relief_ray.records.cells import parse_claims
from tests.own import write

__all__ = ["write"]
ROW = np.arange(1800)
SIGNALS = np.sin(np.outer(ROW, np.arange(1, 7)))
SMALL = {"conv1": 2, "conv2": 2, "steps": 2, "fusion": 2}
OWN = """
import relief_ray as rr


class Narrow(rr.FedAvg):
    def server_step(self, mean):
        return mean


class Wide(rr.FedAvg):
    def weight(self, client, fleet, more):
        return 1.0


class Made(rr.FedAvg):
    def __init__(self, beta):
        self.beta = beta


class Empty(rr.PlainBackbone):
    pass


def accuracy_of(y_true, y_pred):
    return 0.5
"""


def run(**words):
    return rr.run("quick", **({"strategies": "fedavg", "backbone": SMALL, "rounds": 1, "quiet": True} | words))


def dataset(**words):
    words = {"subject": ROW // 600, "rate_hz": 50, "sensors": {"acc": slice(0, 3), "gyro": slice(3, 6)}} | words
    return rr.dataset("mine", words.pop("signals", SIGNALS), ROW // 150 % 4, synthetic=True, **words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"strategies": "{}:Narrow"}, r"server_step takes other arguments .*server_step\(mean, memory\) \(.*line 6"),
        ({"strategies": "{}:Wide"}, r"weight takes other arguments .*'more'.*expected weight\(client, fleet\)"),
        ({"strategies": "{}:Made"}, r"class Made has an __init__ of its own.*write `beta: float = 0.9`"),
        ({"backbone": "{}:Empty"}, r"^class Empty has no module\(self, shape\), expected .*; define it$"),
        ({"metrics": "{}:accuracy_of"}, r"takes other arguments .*expected accuracy_of\(confusion\) \(.*line 24"),
    ],
)  # fmt: skip
def test_of_a_class(write, run_cache, words, said):
    name = write(OWN)
    with pytest.raises(rr.UserError, match=said):
        run(**{key: value.format(name) for key, value in words.items()})


@pytest.mark.parametrize("given", [nn.Linear(3, 3), nn.Linear])
def test_a_module_is_no_backbone_but_what_one_returns(given):
    with pytest.raises(rr.UserError, match=r"backbone: found .*class Mine\(rr\.PlainBackbone\): def module"):
        run(backbone=given)


@pytest.mark.parametrize("given", [SIGNALS, (SIGNALS, ROW)])
def test_bare_arrays_are_answered_by_rr_dataset(given):
    with pytest.raises(rr.UserError, match=r"(?s)data: found .*arrays as rr\.dataset\(\.\.\)"):
        run(data=given)


def test_of_arrays(run_cache):
    with pytest.raises(rr.UserError, match=r"signals: found NaN alone in all rows of 0, 1 and 2, expected numbers"):
        dataset(signals=SIGNALS * np.nan)
    with pytest.raises(rr.UserError, match=r"no training window .*stretch \(bout\) has 3 s; set=\{'data.window_s': 0"):
        run(data=dataset())


def test_of_one_methods_fields():
    with pytest.raises(rr.UserError, match=r"^strategies=\{'name': 'relief', 'gama': 0.5\}: unknown key"):
        run(strategies={"name": "relief", "gama": 0.5})
    with pytest.raises(rr.UserError, match=r"^strategies=\{'name': 'relief', 'cover': True, .*\}: .*cover = True"):
        run(strategies=["fedavg", {"name": "relief", "cover": True, "deadline_s": 1.0}])


def test_a_claim_that_is_a_text_is_answered_by_one():
    with pytest.raises(rr.UserError, match=r"'relief > fedavg': expected a mapping, e\.g\. \{first: relief"):
        parse_claims(b"claims: [relief > fedavg]", "claims.yaml")
