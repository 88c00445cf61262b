"""Users' code at fault is named: function, file, line, what it returned, what was expected; nothing broken is committed."""

import re
from dataclasses import replace

import pytest
import torch

from actors.terminal.exit_codes import exit_code
from relief_ray import federated, guarded
from relief_ray.config import parse
from relief_ray.errors import UserCodeFailed
from relief_ray.experiment.experiment import Experiment
from relief_ray.experiment.lifecycle import create, reopen
from relief_ray.experiment.setup import prepare
from relief_ray.plugins import blamed, users_function
from relief_ray.records import read_rounds
from relief_ray.strategies import PRESETS
from relief_ray.training.serial_executor import SerialExecutor
from tests.faulty import BACKBONES, METHODS

pytestmark = pytest.mark.usefixtures("run_cache")
TINY = {
    "data": {"name": "dsa_mini", "stride_s": 30.0, "max_windows_per_client": 40},
    "backbone": {"conv1": 2, "conv2": 2, "steps": 2, "fusion": 2},
    "training": {"epochs": 1, "lr": 0.01},
    "evaluation": {"every": 2},
    "rounds": 2,
    "runtime": {"mode": "inline"},
    "tracking": {"enabled": False},
}


def go_on(setup, folder):
    with folder:
        Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job)).run()


def fail(path, values):
    """The error of a run, as the command line takes it."""
    with pytest.raises(Exception) as caught:
        go_on(*create(parse({**TINY, **values}), path))
    return caught.value


def judge(error, fault, name):
    """The exit code, what is said, and the file, line and function; never a fault of ours."""
    said = str(blamed(error) or error)
    assert (exit_code(error), fault.said in said) == (fault.code, True), said
    if fault.code == 7:
        assert re.search(rf"{name}\.py, line \d+, in {fault.function}\b", said) and "mend it there" in said, said
    assert len(said) < 4000


def test_there_are_as_many_as_the_audit_had():
    assert len(METHODS) + len(BACKBONES) >= 39


@pytest.mark.parametrize("which", METHODS)
def test_a_method_at_fault_is_named_and_the_rounds_before_stay(which, write, tmp_path, monkeypatch):
    fault = METHODS[which]
    name = write(fault.text)
    error = fail(tmp_path / "run", {"strategy": f"{name}:Mine"})
    judge(error, fault, name)
    if fault.round < 2:
        return
    assert [r.round for r in read_rounds(tmp_path / "run")] == [1], "nothing of the wrong round is committed"
    monkeypatch.setenv("WORKS", "1")
    go_on(*reopen(tmp_path / "run"))
    assert [r.round for r in read_rounds(tmp_path / "run")] == [1, 2]


@pytest.mark.parametrize("which", BACKBONES)
def test_a_backbone_at_fault_is_named(which, write, tmp_path):
    fault = BACKBONES[which]
    name = write(fault.text)
    judge(fail(tmp_path / "run", {"backbone": f"{name}:Mine"}), fault, name)


def test_a_resumed_run_is_the_one_that_never_failed(write, tmp_path, monkeypatch):
    name = write(METHODS["NaN at the server"].text)
    fail(tmp_path / "failed", {"strategy": f"{name}:Mine"})
    monkeypatch.setenv("WORKS", "1")
    go_on(*reopen(tmp_path / "failed"))
    go_on(*create(parse({**TINY, "strategy": f"{name}:Mine"}), tmp_path / "whole"))
    ends = [[r.model_sha256 for r in read_rounds(tmp_path / run)] for run in ("failed", "whole")]
    assert ends[0] == ends[1]


def test_methods_of_ours_are_not_wrapped_and_a_users_partial_is():
    for preset in PRESETS.values():
        plain = preset.build()
        assert guarded.guarded(plain).aggregate is plain.aggregate and guarded.guarded(plain).client == plain.client
    assert users_function(federated.single_model) is None and users_function(len) is None
    assert users_function(guarded.partial(federated.single_model, fail)) is fail


def test_an_error_whose_text_fails_and_one_without_a_user():
    class Mute(Exception):
        def __str__(self):
            raise ValueError

    setup = prepare(parse(TINY))
    strategy = replace(setup.strategy, aggregate=lambda *_: (_ for _ in ()).throw(Mute()))
    with pytest.raises(Mute) as caught:
        guarded.guarded(strategy).aggregate(None, None, None)
    assert "Mute: no message, since its __str__ raised ValueError" in str(blamed(caught.value))


def test_a_weight_may_be_a_tensor_of_one_value():
    weigh = guarded._wrapped(guarded._weight, lambda group, client, task: torch.tensor(2.0))
    assert weigh(None, prepare(parse(TINY)).fleet[0], None) == 2.0
    with pytest.raises(UserCodeFailed, match=r"reduction\.weight returned -1 for client 0, expected a number"):
        guarded._wrapped(guarded._weight, lambda *_: -1)(None, prepare(parse(TINY)).fleet[0], None)
