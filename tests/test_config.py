"""Every key at every level: unknown ones are refused with the nearest, impossible values with what was expected."""

import json
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from relief_ray.config import ExperimentConfig, explain, keys_at, override, parse, preset, read_values
from relief_ray.errors import UserError, nearest
from relief_ray.records.identity import config_hash
from relief_ray.strategies import PRESETS

DEFAULTS = Path(__file__).with_name("defaults.json")


def hash_of(values):
    return config_hash(parse(values).identity())


def sections(model, path=()):
    """Every section of the configuration with its path."""
    yield path, model
    for key in type(model).model_fields:
        below = getattr(model, key)
        if isinstance(below, BaseModel):
            yield from sections(below, (*path, key))


ALL_KEYS = [
    (path, key) for path, model in sections(ExperimentConfig()) for key in type(model).model_fields if len(key) > 3
]


# Unknown keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "key"), ALL_KEYS, ids=lambda v: ".".join(v) if isinstance(v, tuple) else v)
def test_a_misspelt_key_is_refused_and_the_right_one_named(path, key):
    wrong = key + "_x"
    values = {wrong: 1}
    for part in reversed(path):
        values = {part: values} if part != "strategy" else {part: {"name": "fedavg", **values}}
    with pytest.raises(UserError) as caught:
        parse(values, "file.yaml")
    message = str(caught.value)
    assert message.startswith(f"file.yaml: unknown key '{'.'.join((*path, wrong))}' (did you mean '{key}'?)"), message
    assert message.endswith("remove or rename it")


def test_a_key_that_resembles_nothing_is_still_named():
    with pytest.raises(UserError, match=r"^configuration: unknown key 'zzzzzz'; remove or rename it$"):
        parse({"zzzzzz": 1})


def test_every_fault_gets_its_line():
    with pytest.raises(UserError) as caught:
        parse({"rounds": 0, "trainig": {}, "training": {"lr": "fast"}}, "a.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == 3 and all(line.startswith("a.yaml: ") for line in lines)
    assert any("unknown key 'trainig' (did you mean 'training'?)" in line for line in lines)


def test_a_field_of_another_strategy_is_unknown():
    with pytest.raises(UserError, match=r"unknown key 'strategy.mu'"):
        parse({"strategy": {"name": "fedavg", "mu": 0.1}})


def test_keys_of_a_section():
    assert keys_at([]) == list(ExperimentConfig.model_fields)
    assert {"gamma", "mu", "weighting"} <= set(keys_at(["strategy"]))
    assert set(keys_at(["strategy"], "fedavg")) == {"name", "weighting"}, "of the chosen one alone"
    with pytest.raises(UserError, match=r"unknown key 'strategy.moo'; remove or rename it"):
        parse({"strategy": {"name": "fedavg", "moo": 1}})
    assert keys_at(["training"])[0] == "epochs" and keys_at(["rounds"]) == [] and keys_at(["no", "way"]) == []


def test_nearest_says_nothing_where_nothing_is_near():
    assert nearest("epoch", ["epochs", "lr"]) == " (did you mean 'epochs'?)" and nearest("qqq", ["epochs"]) == ""


# Values ----------------------------------------------------------------------------------------------------------

BAD = [
    ({"rounds": 0}, "rounds = 0: .*greater than or equal to 1"),
    ({"rounds": 2.5}, "rounds = 2.5: .*integer"),
    ({"seed": -1}, "seed = -1: "),
    ({"participation": 0.0}, "participation = 0.0: .*greater than 0"),
    ({"participation": 1.5}, "participation = 1.5: .*less than or equal to 1"),
    ({"training": {"epochs": 0}}, "training.epochs = 0: "),
    ({"training": {"batch_size": 0}}, "training.batch_size = 0: "),
    ({"training": {"lr": 0}}, "training.lr = 0: "),
    ({"training": {"lr": float("nan")}}, "training.lr = nan: "),
    ({"training": {"missing": "drop"}}, "training.missing = 'drop': .*'zero_input' or 'zero_feature'"),
    ({"training": {"engine": "turbo"}}, "training.engine = 'turbo': "),
    ({"evaluation": {"every": 0}}, "evaluation.every = 0: "),
    ({"evaluation": {"parts": ["train"]}}, "evaluation.parts.0 = 'train': "),
    ({"costs": {"utilisation": 0.0}}, "costs.utilisation = 0.0: "),
    ({"costs": {"planning_time": "guess"}}, "costs.planning_time = 'guess': "),
    ({"record": {"checkpoint_every": 0}}, "record.checkpoint_every = 0: "),
    ({"runtime": {"quorum": 0}}, "runtime.quorum = 0: "),
    ({"runtime": {"num_hosts": 0}}, "runtime.num_hosts = 0: "),
    ({"backbone": {"fusion": 0}}, "backbone.fusion = 0: "),
    ({"fleet": {"types": {"C": {"uplink_bytes_per_s": -1.0}}}}, "fleet.*uplink_bytes_per_s = -1.0, expected a number"),
    ({"fleet": {"counts": [0, 0, 0]}}, r"fleet.counts = \[0, 0, 0\]: expected three numbers"),
    ({"data": {"stride_s": 0}}, "data.stride_s = 0: "),
    ({"data": {"name": "mnist"}}, "data.*mnist"),
    ({"strategy": {"name": "relief", "gamma": 1.0}}, "strategy.gamma = 1.0: "),
    ({"strategy": {"name": "fedprox", "mu": -1}}, "strategy.mu = -1: "),
    ({"strategy": "fedavgg"}, r"strategy = 'fedavgg': unknown strategy 'fedavgg' \(did you mean 'fedavg'\?\); known: "),
    ({"strategy": 3}, "strategy = 3: "),
    ({"training": 3}, "training = 3: "),
]  # fmt: skip


@pytest.mark.parametrize(("values", "message"), BAD, ids=[json.dumps(v) for v, _ in BAD])
def test_an_impossible_value_is_refused_with_its_key_and_the_expectation(values, message):
    with pytest.raises(UserError, match=message):
        parse(values)


def test_explained_errors_hide_the_unions_tags():
    with pytest.raises(ValidationError) as caught:
        ExperimentConfig.model_validate({"strategy": {"name": "v2", "gamma": 7}})
    assert explain(caught.value) == ["strategy.gamma = 7: Input should be less than 1"]


def test_configurations_are_frozen():
    with pytest.raises(ValidationError):
        ExperimentConfig().rounds = 3


# Strategies by name ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_by_its_name(name):
    config = parse({"strategy": name})
    assert config.strategy == PRESETS[name] == preset(name) and config.label() == name
    assert parse(config.model_dump(mode="json")) == config, "what run.json holds reads back"


def test_a_preset_with_one_field_changed_keeps_the_others():
    strategy = parse({"strategy": {"name": "v3", "gamma": 0.5}}).strategy
    assert (strategy.select, strategy.mandatory, strategy.gamma) == ("random", False, 0.5)


@pytest.mark.parametrize(
    ("strategy", "label"),
    [
        ({"name": "v2", "deadline_fraction": 0.5}, "v2"),
        ({"name": "v2_mandatory", "gamma": 0.5}, "v2_mandatory"),
        ({"name": "relief", "weighting": "samples"}, "relief"),
        ({"name": "fedprox", "mu": 1.0}, "fedprox"),
        ({"name": "relief", "select": "all"}, "v1"),
    ],
)
def test_a_variation_is_labelled_by_the_preset_it_varies(strategy, label):
    config = parse({"strategy": strategy})
    assert config.label() == label
    assert parse(config.model_dump(mode="json")).label() == label


# --set -----------------------------------------------------------------------------------------------------------


def test_settings_are_read_as_yaml():
    settings_ = (
        "rounds=3", "training.lr=1e-2", "training.missing=zero_feature", "data.units=[torso]", "data.num_clients=null",
        "tracking.enabled=false", "name=a=b", "fleet.types={C: {active_power_w: 4}}", "costs.utilisation=0.5",
    )  # fmt: skip
    values = override({}, settings_)
    assert values["rounds"] == 3 and values["name"] == "a=b" and values["tracking"] == {"enabled": False}
    assert values["data"] == {"units": ["torso"], "num_clients": None}
    assert values["fleet"] == {"types": {"C": {"active_power_w": 4}}}
    assert parse({"training": {"lr": 1e-2}}).training.lr == parse(override({}, ["training.lr=1e-2"])).training.lr


def test_a_value_that_is_no_yaml_is_text():
    assert override({}, ["name=[1", "note=a: b: c"]) == {"name": "[1", "note": "a: b: c"}


def test_values_that_json_does_not_know_pass_through(tmp_path):
    (tmp_path / "a.yaml").write_text("name: 2024-05-01\n", encoding="utf-8")
    values = override(read_values(tmp_path / "a.yaml"), ["rounds=2"])
    with pytest.raises(UserError, match=r"name = .*2024, 5, 1.*valid string"):
        parse(values)


def test_a_setting_goes_below_a_strategy_given_by_name():
    assert override({"strategy": "relief"}, ["strategy.gamma=0.5"]) == {"strategy": {"name": "relief", "gamma": 0.5}}
    assert parse(override({"strategy": "v2"}, ["strategy.gamma=0.5"])).strategy.cohort is False


def test_settings_leave_the_original_alone_and_later_ones_win():
    values = {"training": {"epochs": 1}}
    assert override(values, ["training.epochs=2", "training.epochs=3"]) == {"training": {"epochs": 3}}
    assert values == {"training": {"epochs": 1}}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rounds", "--set rounds: expected path=value"),
        ("=3", "--set =3: expected path=value"),
        ("rounds.x=3", "--set rounds.x=3: 'rounds' is 5, not a section"),
    ],
)
def test_a_setting_that_cannot_be_read(setting, message):
    with pytest.raises(UserError, match=message):
        override({"rounds": 5}, [setting])


# Files -----------------------------------------------------------------------------------------------------------


def test_yaml_and_json_files(tmp_path):
    (tmp_path / "a.yaml").write_text("rounds: 3\nstrategy: v1\n", encoding="utf-8")
    (tmp_path / "a.json").write_text('{"rounds": 3, "strategy": "v1"}', encoding="utf-8")
    assert read_values(tmp_path / "a.yaml") == read_values(tmp_path / "a.json") == {"rounds": 3, "strategy": "v1"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- 1\n", "holds list, expected a mapping"),
        ("a: [", "cannot be read as YAML"),
        ("", "holds NoneType"),
        (b"\xff\xfe\x00", "cannot"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path, content, message):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=rf"bad.yaml: .*{message}"):
        read_values(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"none.yaml: cannot be read"):
        read_values(tmp_path / "none.yaml")


# Backbones -------------------------------------------------------------------------------------------------------


def test_a_backbone_by_name_and_by_its_keys():
    assert parse({"backbone": "moment_lora"}).backbone.name == "moment_lora"
    assert parse({"backbone": {"conv1": 8}}).backbone.name == "cnn"
    assert parse(override({}, ["backbone=moment_lora", "backbone.size=tiny"])).backbone.model_dump()["size"] == "tiny"
    with pytest.raises(UserError, match=r"unknown backbone 'moment' \(did you mean 'moment_lora'\?\)"):
        parse({"backbone": "moment"})
    with pytest.raises(UserError, match=r"backbone\.rank = 0: .*greater than or equal to 1"):
        parse({"backbone": {"name": "moment_lora", "rank": 0}})
    with pytest.raises(UserError, match=r"unknown key 'backbone\.conv1'"):
        parse({"backbone": {"name": "moment_lora", "conv1": 8}})


def test_a_backbones_revision_counts_only_where_it_is_given():
    values = {"name": "moment_lora", "size": "tiny"}
    assert hash_of({"backbone": {**values, "revision": None}}) == hash_of({"backbone": values})
    assert hash_of({"backbone": {**values, "weights": "hub", "revision": "v1"}}) != hash_of(
        {"backbone": {**values, "weights": "hub"}}
    )
    assert parse({"backbone": {**values, "revision": "v1"}}).model_dump()["backbone"]["revision"] == "v1"
