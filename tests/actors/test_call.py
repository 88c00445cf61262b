"""Test `actors.conformance`: the command's words, objects as targets, and the command's answers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import actors
import relief_ray as rr
from relief_ray.plugins.load import load
from relief_ray.strategies import PRESETS
from tests.own import METHOD

ROOT = Path(__file__).parents[2]


@pytest.mark.ci
def test_a_class_is_judged_as_the_command_judges_its_import_path(write, invoke):
    path = f"{write(METHOD)}:Mine"
    result = actors.conformance(load(path, "strategies"), ray=False)
    assert result and result.ok and result.broken == ()
    printed = invoke("conformance", path, "--no-ray")
    assert printed.exit_code == 0 and str(result) == repr(result) == printed.stdout.strip()
    assert result.facts == json.loads(invoke("conformance", path, "--no-ray", "--json").stdout)


@pytest.mark.ci
def test_fields_of_an_object_are_taken_along():
    """FedProx without its term is FedAvg, and with it is not."""
    without, with_it = (PRESETS["fedprox"].model_copy(update={"mu": mu}) for mu in (0.0, 0.5))
    assert actors.conformance(without, equals="fedavg", set={"rounds": 1}).ok
    assert not actors.conformance(with_it, equals="fedavg", set={"rounds": 1})
    backbone = actors.conformance(rr.CnnConfig(conv1=2, conv2=2, steps=2, fusion=3))
    assert backbone.ok and backbone.name == "cnn" and len(backbone.verdicts) == 12


@pytest.mark.parametrize(
    ("target", "words", "message"),
    [
        ("relif", {}, r"unknown strategy 'relif' \(did you mean 'relief'\?\)"),
        (3, {}, "found int 3; expected a method's name"),
        ("relief", {"set": {"gama": 3}}, "unknown key 'strategy.gama'"),
        ("dsa_mini", {"set": {"rounds": 3}}, r"set=\{'rounds': ..\}: expected keys of data"),
        ("relief", {"set": "gamma=3"}, "set: found 'gamma=3', expected a mapping"),
    ],
)
def test_a_wrong_target_or_setting_is_named(target, words, message):
    with pytest.raises(rr.UserError, match=message):
        actors.conformance(target, ray=False, **words)


@pytest.mark.ci
def test_without_ray_nothing_of_it_is_loaded():
    code = "import sys, actors; print(actors.conformance('dsa_mini', ray=False).ok, 'ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True", "False"], done.stderr
