"""`relief-ray config`: defaults, a preset's values, one key, and the page of the documentation."""

import json

import pytest

from relief_ray.config.experiment import all_keys
from tests.guards import configuration


def blocks(text):
    """Lines of `key = value`, without their indented explanations."""
    return [line for line in text.splitlines() if line[2:3].strip()]


def test_every_common_key_with_its_meaning_in_80_columns(invoke):
    shown = invoke("config")
    assert shown.exit_code == 0, shown.output
    assert [line.split()[0] for line in blocks(shown.stdout)[:-1]] == [key.key for key in all_keys() if not key.of]
    assert "training.lr = 0.001\n      number, above 0; default 0.001. Learning rate" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("wanted", "keys"),
    [
        ("lr", ["training.lr", "server.lr"]),
        ("record", ["record.checkpoint_every", "record.pairwise_every"]),
        ("rounds", ["rounds"]),
        ("fedprox", ["strategy.weighting", "strategy.mu", "strategy.partial_work", "strategy.deadline_s"]),
    ],
)
def test_one_key_a_section_or_a_method(invoke, wanted, keys):
    shown = invoke("config", wanted, "--json")
    assert [row["key"] for row in json.loads(shown.stdout)] == keys


def test_a_presets_values_and_what_differs(invoke):
    shown = invoke("config", "demo", "evaluation")
    assert "demo: values of its first run (fedavg); * differs from the default" in shown.stdout
    assert "* evaluation.every = 1\n" in shown.stdout and "  evaluation.window = 5\n" in shown.stdout
    rows = {row["key"]: row for row in json.loads(invoke("config", "quick", "--json").stdout)}
    assert (rows["rounds"]["default"], rows["rounds"]["value"]) == (200, 2)
    assert rows["strategy"]["value"] == "relief" and rows["strategy.gamma"]["value"] == 0.9
    assert "strategy.mu" not in rows and "backbone.rank" not in rows, "of other methods and models"


def test_a_files_values(invoke, tmp_path):
    (tmp_path / "mine.yaml").write_text("training: {lr: 0.5}\n")
    assert "* training.lr = 0.5\n" in invoke("config", tmp_path / "mine.yaml", "training").stdout


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["trainings"], "no preset (demo, quick, "),
        (["trainings"], "unknown key 'trainings' (did you mean 'training'?)"),
        (["quick", "epoch"], "unknown key 'epoch' (did you mean 'training.epochs'?)"),
        (["nofile.yaml"], "nofile.yaml: no such file in"),
    ],
)
def test_neither_a_preset_nor_a_key(invoke, args, expected):
    refused = invoke("config", *args)
    assert refused.exit_code == 2 and expected in " ".join(refused.stderr.split())


OWN = """
from pydantic import Field
from relief_ray import Backbone, BackboneConfig, Strategy, StrategyConfig
from relief_ray.strategies.fedavg import FedAvg

class Mine(FedAvg):
    alpha: float = Field(default=0.5, gt=0.0, description="Share of the step.")

class Net(BackboneConfig):
    hidden: int = 3

DATA = object()
"""


def test_the_keys_of_ones_own_classes(invoke, write, tmp_path):
    name = write(OWN)
    shown = invoke("config", f"{name}:Mine").stdout
    assert f"strategy.alpha = 0.5   ({name}:Mine)\n      number, above 0; default 0.5. Share of the step." in shown
    assert [row["key"] for row in json.loads(invoke("config", f"{name}.py:Net", "--json").stdout)] == [
        "backbone.hidden"
    ]
    (tmp_path / "own.yaml").write_text(f"strategy: {{name: '{name}:Mine', alpha: 0.25}}\n")
    assert "* strategy.alpha = 0.25" in invoke("config", tmp_path / "own.yaml", "strategy").stdout
    for wrong, message in (("DATA", "found a object, which has no keys"), ("Mines", "did you mean 'Mine'?")):
        assert message in " ".join(invoke("config", f"{name}:{wrong}").stderr.split())
    for setting in ("alfa=1", "beta=1"):  # beta is another method's
        refused = invoke("run", "quick", "--strategies", f"{name}:Mine", "--set", f"strategy.{setting}").stderr
        assert f"unknown key 'strategy.{setting.partition('=')[0]}'" in " ".join(refused.split())
        assert ("did you mean 'strategy.alpha'?" in " ".join(refused.split())) == (setting == "alfa=1")


PLAIN = """
from relief_ray import Strategy, StrategyConfig, WeightedSum
from relief_ray.strategies.fedavg import FedAvg

class Mine(StrategyConfig):
    alpha: float = 0.5

    def build(self) -> Strategy:
        return FedAvg().build()
"""


def test_an_inherited_key_is_listed_beside_those_of_ones_own(invoke, write):
    rows = json.loads(invoke("config", f"{write(PLAIN)}:Mine", "--json").stdout)
    assert [row["key"] for row in rows] == ["strategy.weighting", "strategy.alpha"]


LOSS = """
import relief_ray as rr


class Free(rr.FedAvg):
    def client_loss(self, step):
        return super().client_loss(step)


class Tied(Free):
    flops_per_value = 2.5

    def client_loss(self, step):
        return super().client_loss(step)
"""


def test_what_a_loss_of_ones_own_is_charged(invoke, write):
    name = write(LOSS)
    for method, flops in (("Free", "0"), ("Tied", "2.5")):
        said = f"client_loss is charged {flops} FLOPs per trained value and step (flops_per_value)"
        assert invoke("config", f"{name}:{method}").stdout.startswith(said)
    assert "charged" not in invoke("config", f"{name}:Free", "strategy.weighting").stdout


def test_the_page():
    again = "write it anew: python -m tests.guards.configuration --write"
    assert configuration.page() == configuration.FILE.read_text(encoding="utf-8"), again
