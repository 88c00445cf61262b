"""Every rule of backbones is broken on purpose, and named; ours and a user's plain modules keep all of them."""

import json

import pytest
from typer.testing import CliRunner

from actors.cli.main import app
from relief_ray.config.experiment import parse
from relief_ray.conformance.backbones import BACKBONE_RULES, check_backbone
from relief_ray.conformance.runner import PROBLEM
from tests.conformance.broken_backbones import BROKEN, GOOD, module
from tests.plans import override

pytestmark = pytest.mark.usefixtures("run_cache")


def judge(backbone, *settings):
    values = override({**PROBLEM, "backbone": {"name": backbone}}, settings)
    return {v.rule: v for v in check_backbone(parse(values))}


def test_every_rule_is_broken_by_one_of_these():
    assert {rule for rule, _, _ in BROKEN.values()} == set(BACKBONE_RULES)


@pytest.mark.ci
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named_alone(name, write):
    rule, text, message = BROKEN[name]
    verdicts = judge(f"{write(module(text))}:Mine")
    assert list(verdicts) == list(BACKBONE_RULES)
    assert [v.rule for v in verdicts.values() if v.status == "broken"] == [rule], verdicts
    assert message in verdicts[rule].found
    rules = list(BACKBONE_RULES)
    assert all(verdicts[r].status == "not judged" for r in rules[rules.index(rule) + 1 :])


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("nn.Linear(self.width, num_classes + 1)", "head gives (B, 9), expected (B, 8), one logit a class"),
        (
            "nn.Sequential(nn.Unflatten(1, (1, self.width)), nn.Linear(self.width, num_classes))",
            "head gives (B, 1, 8)",
        ),
    ],
)
def test_a_wrong_shape_is_named_as_one_without_another_remedy(head, said, write):
    """A plain module cannot become a backbone: what was found says what to do, the general fix would mislead."""
    body = f"class Mine(Good):\n    def head(self, num_classes):\n        return {head}\n"
    name = f"{write(module(body))}:Mine"
    verdicts = judge(name)
    assert [v.rule for v in verdicts.values() if v.status == "broken"] == ["shape"]
    assert said in verdicts["shape"].found and verdicts["configuration"].status == "kept"
    assert verdicts["groups"].status == verdicts["function"].status == "not judged"
    shown = CliRunner().invoke(app, ["conformance", name]).stdout
    assert "BROKEN      shape" in shown and said in shown and "fix:" not in shown


@pytest.mark.ci
@pytest.mark.parametrize(
    "backbone", ["tests.nets:Normed", "cnn", *(pytest.param(f"tests.nets:{n}", marks=pytest.mark.slow)
                                              for n in ("NormedShared", "Attentive"))]
)  # fmt: skip
def test_every_rule_is_kept(backbone):
    assert {v.rule: (v.status, v.found) for v in judge(backbone).values()} == dict.fromkeys(
        BACKBONE_RULES, ("kept", "")
    )


@pytest.mark.ci
def test_the_good_one_of_which_the_broken_ones_are_made(write):
    assert {v.status for v in judge(f"{write(module(GOOD))}:Mine").values()} == {"kept"}


@pytest.mark.slow
@pytest.mark.moment
def test_the_large_backbone_keeps_them():
    small = ("data.stride_s=60", "data.max_windows_per_client=2", "data.subjects=[1,4,7]", "backbone.size=tiny")
    assert {v.status for v in judge("moment_lora", *small).values()} == {"kept"}


@pytest.mark.ci
def test_the_command_finds_out_that_it_is_a_backbone(write):
    name = write(module(GOOD))
    done = CliRunner().invoke(app, ["conformance", f"{name}:Mine", "--set", "width=5"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"backbone {name}:Mine, for the data of dsa_mini: acc, gyro, mag\n")
    assert f"{name}:Mine: keeps {len(BACKBONE_RULES)} rules" in done.stdout
    broken = write(module(BROKEN["divides by zero"][1]))
    done = CliRunner().invoke(app, ["conformance", f"{broken}:Mine", "--json"])
    report = json.loads(done.stdout)
    assert done.exit_code == 1 and not report["keeps"] and report["target"] == f"{broken}:Mine"
    assert [r["status"] for r in report["rules"]] == ["kept"] * 2 + ["broken"] + ["not judged"] * 9
