"""The rule that takes other processes to see, and strategies of ours that keep all rules."""

import pytest

from relief_ray.conformance.rules import RULES
from tests.conformance.broken import BROKEN, module
from tests.conformance.test_rules import judge

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("run_cache", "cluster")]


@pytest.fixture
def packed(on_warm_hosts):
    return lambda job: on_warm_hosts(job, num_hosts=2)


@pytest.mark.ci
@pytest.mark.parametrize("name", [n for n, (rule, _, _) in BROKEN.items() if rule == "executors"])
def test_a_strategy_that_looks_at_its_process_differs_from_the_serial_run(name, write, packed):
    rule, (body, build), message = BROKEN[name]
    verdicts = judge(f"{write(module(body, build))}:Mine", {"packed on Ray": packed})
    assert {v.rule: v.status for v in verdicts.values()} == dict.fromkeys(RULES, "kept") | {rule: "broken"}
    assert message in verdicts[rule].found


# By default `relief-ray conformance` tries them on Ray with the method of docs/extending.md.
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["relief", "fedavg", "fedsa_lora"])
def test_built_in_strategies_keep_every_rule(strategy, packed):
    verdicts = judge(strategy, {"packed on Ray": packed})
    assert {v.rule: v.status for v in verdicts.values()} == dict.fromkeys(RULES, "kept"), verdicts
