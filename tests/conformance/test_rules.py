"""Every rule is broken on purpose, and named; strategies of ours keep all of them."""

from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch

from relief_ray.config.experiment import parse
from relief_ray.conformance.instrumented import global_state
from relief_ray.conformance.rules import RULES
from relief_ray.conformance.runner import PROBLEM, check
from relief_ray.strategies import PRESETS
from tests.conformance.broken import BROKEN, module
from tests.conformance.cases import strategy_values
from tests.plans import override

pytestmark = pytest.mark.usefixtures("run_cache")

# One per kind of state: the server's, the clients', random choices; the others are slow ones.
FAST = ("relief", "local", "harmony", "fedlease")


def judge(strategy, executors=None, **more):
    return {v.rule: v for v in check(parse({**PROBLEM, **more, "strategy": strategy}), executors)}


def test_every_rule_is_broken_by_one_of_these():
    assert {rule for rule, _, _ in BROKEN.values()} == set(RULES)


@pytest.mark.ci
@pytest.mark.parametrize("name", [n for n, (rule, _, _) in BROKEN.items() if rule != "executors"])
def test_a_broken_rule_is_named_alone(name, write):
    rule, (body, build), message = BROKEN[name]
    verdicts = judge(f"{write(module(body, build))}:Mine")
    assert list(verdicts) == list(RULES)
    assert [v.rule for v in verdicts.values() if v.status == "broken"] == [rule], verdicts
    assert message in verdicts[rule].found


def test_a_wrong_return_value_is_said_as_run_says_it(write):
    """The file, the line and the class that was expected; no attribute that is missing in our code."""
    name = write(module(*_returning("{'global': state.models['global']}")))
    verdict = judge(f"{name}:Mine")["finishes"]
    wanted = "aggregate returned a dict, expected a relief_ray.core.messages.ServerState ("
    assert verdict.status == "broken" and verdict.found.startswith(wanted)
    assert verdict.found.endswith(", in aggregate)") and f"{name}.py, line " in verdict.found


def _returning(expression):
    body = f"def aggregate(state, reduced, tools):\n    return {expression}\n"
    return body, "        return change(aggregate=aggregate)"


def test_a_process_may_have_any_number_of_threads():
    """A run pins them; that is none of the method's doing, and the process has its own again afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        verdicts = check(parse({**PROBLEM, "strategy": "fedavg"}))
        assert next(v for v in verdicts if v.rule == "globals").status == "kept"
        verdicts.close()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@contextmanager
def _deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize(
    ("changing", "what"),
    [
        (torch.inference_mode, "torch's inference mode"),
        (lambda: torch.backends.mkldnn.flags(enabled=False), "torch's use of oneDNN"),
        (_deterministic, "torch's deterministic algorithms"),
        (lambda: patch.object(torch, "relu_", torch.relu), "torch.relu_"),
    ],
)
def test_a_changed_setting_or_function_of_torch_is_seen(changing, what):
    config = parse({**PROBLEM, "strategy": "fedavg"})
    before = global_state(config)
    with changing():
        after = global_state(config)
    assert ("globals", what) in {key for key, value in before.items() if after[key] != value}
    assert global_state(config) == before, "also where torch has loaded its compiler, as for its optimizers"


def test_a_method_that_rests_on_purpose_need_not_move(write):
    body = "from relief_ray.core.federated import Insight\n\n"
    body += "def rests(context):\n    return True\n\ndef aggregate(state, reduced, tools):\n    return state\n"
    name = write(module(body, "        return change(aggregate=aggregate, insight=Insight(rests=rests))"))
    verdicts = check(parse({**PROBLEM, "strategy": f"{name}:Mine"}))
    assert next(v for v in verdicts if v.rule == "moves").status == "kept"


@pytest.mark.ci
@pytest.mark.parametrize("strategy", [p if p in FAST else pytest.param(p, marks=pytest.mark.slow) for p in PRESETS])
def test_every_preset_keeps_every_rule(strategy):
    """First phases last one round here, so that three rounds reach the phase after them."""
    statuses = {v.rule: (v.status, v.found) for v in judge(strategy_values(strategy)).values()}
    assert statuses == dict.fromkeys(RULES, ("kept", "")) | {"executors": ("not judged", "needs Ray")}


OTHER_STEPS = {
    "training": {"epochs": 1, "lr": 0.05, "optimizer": "sgd", "momentum": 0.5, "clip_norm": 1.0},
    "server": {"optimizer": "fedadam"},
    "evaluation": {"every": 2, "average": "ema"},
}


@pytest.mark.ci
@pytest.mark.parametrize(
    "strategy", ["relief", *(pytest.param(s, marks=pytest.mark.slow) for s in ("fedavg", "fedsa_lora", "fedlease"))]
)
def test_rules_are_kept_with_other_optimizers_and_averaged_models(strategy):
    statuses = {v.rule: (v.status, v.found) for v in judge(strategy_values(strategy), **OTHER_STEPS).values()}
    assert statuses == dict.fromkeys(RULES, ("kept", "")) | {"executors": ("not judged", "needs Ray")}


@pytest.mark.slow
@pytest.mark.moment
def test_rules_are_tried_on_another_backbone_where_that_is_asked_for():
    """By default shown by docs/extending.md, whose backbone is checked so (test_extending)."""
    values = override(PROBLEM, ["strategy=fedsa_lora", "backbone=moment_lora", "backbone.size=tiny"])
    small = override(values, ["data.stride_s=60", "data.max_windows_per_client=2", "data.subjects=[1,4,7]"])
    assert {v.status for v in check(parse(small))} == {"kept", "not judged"}
