"""A method with some settings is another method: FedProx without its term is FedAvg, and a mistake is found."""

import pytest
from typer.testing import CliRunner

from actors.cli.main import app

pytestmark = pytest.mark.usefixtures("run_cache")

# FedAvg with a server momentum; MISTAKE is an aggregation that forgets a hundredth of the head.
METHOD = """
from functools import partial

from relief_ray.core.federated import Strategy
from relief_ray.core.messages import Collect, ServerState
from relief_ray.server.aggregation import apply_step
from relief_ray.strategies.common import StrategyConfig, allocate_everything, average


class Mine(StrategyConfig):
    beta: float = 0.5
    shrink: float = 1.0

    def build(self):
        reduction = self.reduction()
        mine = partial(aggregate, self.beta, self.shrink, reduction)
        return Strategy(name="mine", allocate=allocate_everything, reduction=reduction, aggregate=mine)


class Summed(StrategyConfig):
    # FedAvg, added up in float32 and in another order.
    no_average = "its own order of summing"

    def build(self):
        return Strategy(name="summed", allocate=allocate_everything, reduction=Collect(), aggregate=summed)


def summed(state, reduced, tools):
    updates, step = list(reversed(reduced.updates)), {}
    for j in updates[0].delta:
        step[j] = sum(u.delta[j] / len(updates) for u in updates)
    return ServerState(models={"global": apply_step(state.models["global"], step)}, tensors=state.tensors)


def aggregate(beta, shrink, reduction, state, reduced, tools):
    before, after = state.models["global"], average(reduction, state, reduced, tools).models["global"]
    old = state.tensors
    step = {j: after[j] - before[j] for j in after}
    velocity = {j: d + beta * old[j] if j in old else d for j, d in step.items()}
    model = {j: after[j] + beta * old[j] if beta and j in old else after[j] for j in after}
    return ServerState(models={"global": {**model, "head.1": shrink * model["head.1"]}}, tensors=velocity)
"""


def conformance(*words):
    done = CliRunner().invoke(app, ["conformance", *words])
    return done.exit_code, done.output


@pytest.mark.ci
def test_fedprox_without_its_term_is_fedavg_and_with_it_is_not():
    code, text = conformance("fedprox", "--equals", "fedavg", "--set", "mu=0")
    assert code == 0 and text.startswith("fedprox with mu=0 against fedavg\n") and "fedprox: keeps 1 rule" in text
    code, text = conformance("fedprox", "--equals", "fedavg", "--set", "strategy.mu=0.1", "--set", "rounds=1")
    assert code == 1 and "BROKEN" in text and "round 1: 11 of 11 groups differ from fedavg's" in text
    said = " ".join(text.split())
    assert "settings that differ: strategy.mu = 0.1 (no such key of fedavg) fix:" in said, said


@pytest.mark.ci
def test_a_method_of_the_user_s(write):
    name = f"{write(METHOD)}:Mine"
    assert conformance(name, "--equals", "fedavg", "--set", "beta=0", "--set", "rounds=2")[0] == 0
    code, text = conformance(name, "--equals", "fedavg", "--set", "rounds=2")
    assert code == 1 and "found: round 2: 11 of 11 groups differ" in text, "momentum begins in the second round"
    within = ("--set", "shrink=0.999", "--set", "rounds=1", "--within", "0.01")
    code, text = conformance(name, "--equals", "fedavg", "--set", "beta=0", *within[:4])
    assert code == 1 and "round 1: 1 of 11 groups differ from fedavg's, global/head.1 most, by" in " ".join(
        text.split()
    )
    assert conformance(name, "--equals", "fedavg", "--set", "beta=0", *within)[0] == 0


@pytest.mark.ci
def test_settings_of_the_problem_are_both_methods():
    code, text = conformance("fedprox", "--equals", "fedprox", "--set", "mu=0.5", "--set", "rounds=1")
    assert code == 1 and "differ from fedprox's" in text, "mu is the method's alone"
    assert "settings that differ: strategy.mu = 0.5 (0.01 of fedprox)" in " ".join(text.split()), text
    assert conformance("fedavg", "--equals", "central", "--set", "backbone.fusion=5", "--set", "rounds=1")[0] == 1


@pytest.mark.ci
def test_rounding_that_training_amplifies_is_told_from_another_method(write):
    """Sums in another order: 1e-8 in round 1, far more in round 3, where a tolerance of 1e-6 is too small."""
    name = f"{write(METHOD)}:Summed"
    code, text = conformance(name, "--equals", "fedavg", "--within", "1e-6")
    said = " ".join(text.split())
    assert code == 1 and "; round 1 differs first, by" in said and "training amplifies" in said
    assert "fix:" not in text and said.count("--set rounds=1 --within 1e-06") == 1
    assert conformance(name, "--equals", "fedavg", "--set", "rounds=1", "--within", "1e-06")[0] == 0
    code, text = conformance(f"{write(METHOD)}:Mine", "--equals", "fedavg", "--set", "rounds=2", "--within", "1e-6")
    assert code == 1 and "rounding" not in text and "fix:" in text, "another method is none"
