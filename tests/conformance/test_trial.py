"""Test what is judged is called, and what its result says to people and to programs."""

from dataclasses import replace

import pytest

from relief_ray.config.experiment import parse
from relief_ray.conformance.rules import RULES, Verdict
from relief_ray.conformance.runner import PROBLEM
from relief_ray.conformance.trial import Conformance, judged_of, title_of
from tests.plans import override


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
    name = title_of(spec, parse(override(PROBLEM, [f"strategy={spec}"])))
    assert name == expected.format(file=file)
    kept = (Verdict(rule="purity", status="kept"),)
    result = Conformance(name=name, heading="", rules=RULES, verdicts=kept, about={})
    assert result.summary == f"{name}: keeps 1 rule"


def test_a_result_is_true_where_no_rule_is_broken():
    kept, unjudged = (
        Verdict(rule="purity", status="kept"),
        Verdict(rule="executors", status="not judged", found="no Ray"),
    )
    broken = Verdict(rule="moves", status="broken", found="it stays")
    words = {"name": "mine", "heading": "mine (own)", "rules": RULES, "about": {"strategy": "mine"}}
    good, bad = (Conformance(verdicts=verdicts, **words) for verdicts in ((kept, unjudged), (kept, broken)))
    assert good and good.ok and good.facts["keeps"] and good.broken == ()
    assert not bad and not bad.ok and not bad.facts["keeps"] and bad.broken == ("moves",)
    assert repr(bad) == str(bad) == bad.text and "found: it stays" in bad.text and ">mine (own)" in bad._repr_html_()
    assert bad.text.splitlines()[0] == "mine (own)" and bad.text.endswith("mine: breaks moves; 1 kept, 0 not judged")


@pytest.mark.ci
def test_each_verdict_is_passed_on_when_it_is_reached():
    judged, reached = judged_of("dsa_mini", [], {})
    assert next(reached).rule == "description"
    result = replace(judged, verdicts=tuple(reached))
    assert len(result.verdicts) == len(judged.rules) - 1 and result.ok and result.facts["dataset"] == "dsa_mini"
