"""Test `rr.describe` and `rr.describe_data`: the commands' words, for each kind of target; figures for programs."""

import pytest
from typer.testing import CliRunner

import relief_ray as rr
from actors.cli.main import app
from relief_ray.data.formats.dsa_mini import DSA_MINI
from relief_ray.plugins.load import load
from relief_ray.strategies import PRESETS
from tests.studies.conftest import SMALL

NET = """
import torch
from torch import nn
import relief_ray as rr


class Net(nn.Module):
    def __init__(self, channels, num_classes, width):
        super().__init__()
        self.encoders = nn.ModuleDict(
            {m: nn.Sequential(nn.Conv1d(c, width, 5), nn.AdaptiveAvgPool1d(1), nn.Flatten()) for m, c in channels}
        )
        self.fusion = nn.Linear(width * len(channels), 4)
        self.head = nn.Linear(4, num_classes)


class MyNet(rr.PlainBackbone):
    width: int = 3

    def module(self, shape):
        return Net(shape.channels, shape.num_classes, self.width)
"""


def test_a_preset_is_described_as_the_command_does():
    described = rr.describe("quick", backbone=SMALL, strategy="pilot")
    words = ["model", "describe", "quick", "--set=strategy=pilot", *(f"--set=backbone.{key}=2" for key in SMALL)]
    printed = CliRunner().invoke(app, words).stdout.rstrip("\n")
    assert printed and str(described) == repr(described) == described.text == printed
    assert described._repr_html_().startswith("<pre style='font-family: monospace'>Backbone cnn of quick")


def test_groups_are_a_frame():
    frame = rr.describe("demo").frame.set_index("group")
    assert frame.values.size and frame["values"].sum() == 945_176 and frame.loc["fusion.A.mag"].clients == 2
    assert (frame.bytes == 4 * frame["values"]).all() and "tensors" not in frame


def test_classes_configurations_and_runs_are_described(write, small_study):
    kind = load(f"{write(NET)}:MyNet", "backbone")
    wide = rr.describe("quick", backbone=kind(width=5))
    assert rr.describe("quick", backbone=kind).facts["values"] < wide.facts["values"]
    assert wide.facts["backbone"]["width"] == 5 and ":MyNet of quick: acc" in wide.text
    pilot = rr.describe(rr.ExperimentConfig(), strategy=PRESETS["pilot"], backbone=SMALL)
    assert pilot.facts["values"] > rr.describe(backbone=SMALL).facts["values"]
    run = small_study.run("relief", seed=0)
    assert rr.describe(run.folder).facts["values"] == rr.describe("quick", backbone=SMALL).facts["values"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"experiment": "demoo"}, r"preset 'demoo': unknown \(did you mean 'demo'\?\)"),
        ({"backbon": "cnn"}, "unknown keyword; did you mean backbone='cnn'"),
        ({"set": {"backbone.x": 1}}, "unknown key 'backbone.x'"),
        ({"set": {"rounds.x": 1}}, r"^set=\{'rounds.x': 1\}: 'rounds' is"),
    ],
)
def test_a_wrong_word_is_answered(words, message):
    with pytest.raises(rr.UserError, match=message):
        rr.describe(**{"experiment": "quick", **words})


def test_data_are_described_as_the_command_does(run_cache, small_study):
    described = rr.describe_data("dsa_mini", set={"data.stride_s": 20})
    words = ["data", "describe", "dsa_mini", "--set", "data.stride_s=20"]
    printed = CliRunner().invoke(app, words).stdout.rstrip("\n")
    assert printed and str(described) == described.text == printed
    closer, same = (rr.describe_data(DSA_MINI, set={"data.stride_s": stride}).facts["windows"] for stride in (10, 20))
    assert same == described.facts["windows"] and closer["train"] > same["train"] > 0
    of_run = rr.describe_data(small_study.run("relief", seed=0).folder)
    assert of_run.facts["name"] == "dsa_mini" and of_run.facts["digest"] == described.facts["digest"]


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        ("dsa_min", {}, r"dataset 'dsa_min' is unknown \(did you mean 'dsa_mini'\?\)"),
        ("dsa_mini", {"rounds": 2}, "expected a key of data"),
        ("dsa_mini", {"data.stride": 2}, r"did you mean 'data\.stride_s'"),
    ],
)
def test_wrong_data_or_settings_are_answered(data, settings, message):
    with pytest.raises(rr.UserError, match=message):
        rr.describe_data(data, set=settings)


def test_a_description_of_data_in_the_place_of_its_loader_is_named():
    with pytest.raises(rr.UserError, match=r"found the description of 'Daily and .*; expected its Loader\(spec=\.\.,"):
        rr.run(data=DSA_MINI.spec)


def test_a_folder_of_several_runs_is_refused(small_study):
    with pytest.raises(rr.UserError, match=r"no run.json there; expected a run's folder, e.g. study.run\('relief'\)"):
        rr.describe(small_study.folder)
