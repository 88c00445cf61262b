"""Tests the name under which a verdict shows the strategy."""

import pytest

from actors.commands.conformance import asked_for, summary
from relief_ray.config import override, parse
from relief_ray.conformance.rules import Verdict
from relief_ray.conformance.runner import PROBLEM


@pytest.mark.parametrize(
    ("target", "own", "expected"),
    [
        ("harmony", "", "harmony"),
        ("{file}:BIG", "BIG = Harmony(encoder_lr=0.5)", "{file}:BIG (harmony)"),
        ("{file}:Mine", "class Mine(FedAvg):\n    pass", "{file}:Mine"),
    ],
)
def test_an_instance_of_a_built_in_method_keeps_the_name_it_was_given_by(target, own, expected, write):
    imports = "from relief_ray.strategies.fedavg import FedAvg\nfrom relief_ray.strategies.harmony import Harmony\n"
    file = write(f"{imports}\n{own}\n")
    spec = target.format(file=file)
    name = asked_for(spec, parse(override(PROBLEM, [f"strategy={spec}"])))
    assert name == expected.format(file=file)
    assert summary(name, [Verdict(rule="purity", status="kept")]) == f"{name}: keeps 1 rule"


def test_a_file_without_the_name_in_it_is_answered_with_its_names(invoke, write):
    name = write("from relief_ray.strategies.fedavg import FedAvg\n\nclass Mine(FedAvg):\n    pass\n\nBIG = Mine()\n")
    for target in (name, f"{name}.py"):
        done = invoke("conformance", target, "--no-ray")
        said = " ".join(done.stderr.split())
        assert done.exit_code == 2
        assert f"{name}.py is a file here, expected what to judge in it: {name}.py:Mine, {name}.py:BIG" in said
