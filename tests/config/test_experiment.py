"""Every key at every level: unknown ones are refused with the nearest, impossible values with what was expected."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from relief_ray.config import experiment as module
from relief_ray.config.experiment import SCHEMA, ExperimentConfig, assign, explain, parse, preset, settings_of
from relief_ray.models.registry import BACKBONES
from relief_ray.records.identity import cell_id, config_hash
from relief_ray.strategies import PRESETS
from relief_ray.support.errors import UserError, nearest
from relief_ray.support.frozen import FrozenConfig
from relief_ray.support.user_yaml import read_mapping
from relief_ray.training.config import TrainingConfig
from tests.plans import override

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
    there = ".".join((*path, ""))
    assert message.startswith(f"file.yaml: unknown key '{there}{wrong}' (did you mean '{there}{key}'"), message
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


def test_a_field_that_resembles_none_of_the_methods_is_still_named():
    with pytest.raises(UserError, match=r"unknown key 'strategy.moo'; remove or rename it"):
        parse({"strategy": {"name": "fedavg", "moo": 1}})


def test_nearest_says_nothing_where_nothing_is_near():
    assert nearest("epoch", ["epochs", "lr"]) == " (did you mean 'epochs'?)" and nearest("qqq", ["epochs"]) == ""


# Values ----------------------------------------------------------------------------------------------------------

BAD = [
    ({"rounds": 0}, "rounds = 0: expected a whole number, at least 1"),
    ({"rounds": 2.5}, "rounds = 2.5: expected a whole number"),
    ({"seed": -1}, "seed = -1: "),
    ({"participation": 0.0}, "participation = 0.0: expected a number, above 0"),
    ({"participation": 1.5}, "participation = 1.5: .*at most 1"),
    ({"training": {"epochs": 0}}, "training.epochs = 0: "),
    ({"training": {"batch_size": 0}}, "training.batch_size = 0: "),
    ({"training": {"lr": 0}}, "training.lr = 0: "),
    ({"training": {"lr": float("nan")}}, "training.lr = nan: "),
    ({"runtime": {"mirror": "memory://x"}}, "runtime.mirror = 'memory://x': a store that ends with this process"),
    ({"runtime": {"mirror": "dir::memory://b/x"}}, "runtime.mirror = 'dir::memory://b/x': several stores in a chain; "),
    ({"runtime": {"mirror": "simplecache::memory://x"}}, "several stores in a chain; expected one that stays"),
    ({"training": {"missing": "drop"}}, "training.missing = 'drop': expected one of zero_input, zero_feature"),
    ({"training": {"engine": "turbo"}}, "training.engine = 'turbo': "),
    ({"evaluation": {"every": 0}}, "evaluation.every = 0: "),
    ({"evaluation": {"parts": ["train"]}}, "evaluation.parts.0 = 'train': "),
    ({"costs": {"utilisation": 0.0}}, "costs.utilisation = 0.0: "),
    ({"costs": {"planning_time": "guess"}}, "costs.planning_time = 'guess': "),
    ({"record": {"checkpoint_every": 0}}, "record.checkpoint_every = 0: "),
    ({"runtime": {"quorum": 0}}, "runtime.quorum = 0: "),
    ({"runtime": {"num_hosts": 0}}, "runtime.num_hosts = 0: "),
    ({"backbone": {"fusion": 0}}, "backbone.fusion = 0: "),
    ({"fleet": {"types": {"C": {"uplink_mbit_s": -1.0}}}}, "fleet.*uplink_mbit_s = -1.0, expected a number"),
    ({"fleet": {"types": {"C": {"count": -1}}}}, r"count = -1, expected 0 or more"),
    ({"data": {"stride_s": 0}}, "data.stride_s = 0: "),
    ({"data": {"name": "mnist"}}, "data.*mnist"),
    ({"strategy": {"name": "relief", "gamma": 1.0}}, "strategy.gamma = 1.0: "),
    ({"strategy": {"name": "fedprox", "mu": -1}}, "strategy.mu = -1: "),
    ({"strategy": "median"}, r"strategy = 'median': unknown strategy 'median'; expected .*import path, median.py:Med"),
    ({"strategy": "fedadam"}, r"'fedadam' \(a value of server.optimizer: --set server.optimizer=fedadam\); expected"),
    ({"strategy": "fedavgg"}, r"strategy = 'fedavgg': unknown strategy 'fedavgg' \(did you mean 'fedavg'\?\); exp"),
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
    assert explain(caught.value) == [
        "strategy.gamma = 7: expected a number, above 0, below 1, e.g. strategy.gamma=0.9 (the default)"
    ]


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
        ({"name": "relief", "budget": "none"}, "v1"),
    ],
)
def test_a_variation_is_labelled_by_the_preset_it_varies(strategy, label):
    config = parse({"strategy": strategy})
    assert config.label() == label
    assert parse(config.model_dump(mode="json")).label() == label


# --set -----------------------------------------------------------------------------------------------------------


def test_settings_are_read_as_yaml():
    settings_ = (
        "rounds=3",
        "training.lr=1e-2",
        "training.missing=zero_feature",
        "data.units=[torso]",
        "data.num_clients=null",
        "tracking.enabled=false",
        "name=a=b",
        "fleet.types={C: {active_power_w: 4}}",
        "costs.utilisation=0.5",
    )
    values = override({}, settings_)
    assert values["rounds"] == 3 and values["name"] == "a=b" and values["tracking"] == {"enabled": False}
    assert values["data"] == {"units": ["torso"], "num_clients": None}
    assert values["fleet"] == {"types": {"C": {"active_power_w": 4}}}
    assert parse({"training": {"lr": 1e-2}}).training.lr == parse(override({}, ["training.lr=1e-2"])).training.lr


def test_a_value_that_is_no_yaml_is_text():
    assert override({}, ["name=[1", "note=a: b: c"]) == {"name": "[1", "note": "a: b: c"}


def test_a_date_is_a_text_and_what_json_does_not_know_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("name: 2024-05-01\n", encoding="utf-8")
    assert parse(override(read_mapping(tmp_path / "a.yaml"), ["rounds=2"])).name == "2024-05-01"
    (tmp_path / "a.yaml").write_text("name: !!binary aGk=\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"a.yaml: cannot be read as YAML \(Object of type bytes"):
        read_mapping(tmp_path / "a.yaml")


def test_a_setting_goes_below_a_strategy_given_by_name():
    assert override({"strategy": "relief"}, ["strategy.gamma=0.5"]) == {"strategy": {"name": "relief", "gamma": 0.5}}
    assert parse(override({"strategy": "v2"}, ["strategy.gamma=0.5"])).strategy.mean == "participants"


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


# Hash ------------------------------------------------------------------------------------------------------------


def shuffled(value, order):
    if isinstance(value, dict):
        keys = list(value)
        order.shuffle(keys)
        return {k: shuffled(value[k], order) for k in keys}
    return value


@settings(max_examples=25, deadline=None)
@given(st.randoms())
def test_the_hash_does_not_depend_on_the_order_of_keys(order):
    values = parse({"strategy": "v2", "training": {"epochs": 2}}).model_dump(mode="json")
    assert hash_of(shuffled(values, order)) == hash_of(values)


def test_defaults_given_or_left_out_are_the_same_cell():
    assert hash_of({}) == hash_of({"rounds": 200, "strategy": "fedavg", "training": {"lr": 1e-3}})


@pytest.mark.parametrize(
    "values",
    [
        {"name": "other"},
        {"runtime": {"mode": "actors", "num_hosts": 3, "cache_mib": 64, "quorum": 0.5}},
        {"tracking": {"enabled": False, "uri": "http://127.0.0.1:5000"}},
    ],
)
def test_where_and_how_it_runs_does_not_name_the_cell(values):
    assert cell_id(parse(values).identity(), "data") == cell_id(parse({}).identity(), "data")


@pytest.mark.parametrize(
    "values",
    [
        {"rounds": 199},
        {"seed": 1},
        {"participation": 0.5},
        {"strategy": "fedprox"},
        {"strategy": {"name": "relief", "gamma": 0.8}},
        {"data": {"stride_s": 2.0}},
        {"fleet": {"gap": 10.0}},
        {"backbone": {"fusion": 100}},
        {"training": {"engine": "naive"}},
        {"evaluation": {"every": 1}},
        {"costs": {"planning_time": "split_naive"}},
        {"record": {"pairwise_every": 1}},
    ],
)
def test_whatever_decides_results_names_the_cell(values):
    assert hash_of(values) != hash_of({})


def test_an_identity_names_the_method_the_model_and_the_data_and_what_differs_from_the_defaults():
    assert parse({}).identity() == {
        "schema": SCHEMA,
        "strategy": {"name": "fedavg"},
        "backbone": {"name": "cnn"},
        "data": {"name": "dsa_mini"},
    }
    changed = {"strategy": "v1", "training": {"lr": 0.1, "epochs": 5}, "fleet": {"rotation": 1}, "seed": 3}
    assert parse(changed).identity() == {
        "schema": SCHEMA,
        "strategy": {"name": "relief", "budget": "none"},
        "backbone": {"name": "cnn"},
        "data": {"name": "dsa_mini"},
        "training": {"lr": 0.1},
        "fleet": {"rotation": 1},
        "seed": 3,
    }


class TrainingWithOneMoreKey(TrainingConfig):
    warmth: float = 0.9


class OneMoreSection(FrozenConfig):
    depth: int = 2


class ConfigWithMoreKeys(ExperimentConfig):
    training: TrainingConfig = TrainingWithOneMoreKey()
    added: OneMoreSection = OneMoreSection()
    note: str | None = None


@pytest.mark.parametrize("values", [{}, {"strategy": "v2", "rounds": 3, "training": {"lr": 0.1}}], ids=["plain", "set"])
def test_a_key_that_is_added_later_leaves_ids_unchanged_until_it_is_set(values):
    before = parse(values)
    more = ConfigWithMoreKeys(**values | {"training": TrainingWithOneMoreKey(**values.get("training", {}))})
    assert more.identity() == before.identity()
    for changes in (
        {"training": TrainingWithOneMoreKey(warmth=0.5)},
        {"added": OneMoreSection(depth=3)},
        {"note": "x"},
    ):
        assert more.model_copy(update=changes).identity() != before.identity()


def test_another_schema_number_gives_every_cell_another_id(monkeypatch):
    before = hash_of({})
    monkeypatch.setattr(module, "SCHEMA", SCHEMA + 1)
    assert hash_of({}) != before


def flat(values, prefix=""):
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def deciding_defaults():
    """Every default that decides results, by dotted key; of strategies and backbones by class."""
    sections = ExperimentConfig().model_dump(mode="json", exclude={*module.NOT_DECIDING, "strategy", "backbone"})
    table = dict(flat(sections))
    for kind in {type(strategy) for strategy in PRESETS.values()} | set(BACKBONES.values()):
        section = "backbone" if kind in BACKBONES.values() else "strategy"
        table |= flat(kind().model_dump(mode="json"), f"{section}.{kind().name}.")
    return table


def test_a_changed_default_raises_the_schema_number():
    """Defaults are no part of an identity: without another number, new runs would get the ids of other ones."""
    recorded, now = json.loads(DEFAULTS.read_text()), deciding_defaults()
    fix = f"Then write {DEFAULTS.name} anew: {{'schema': SCHEMA, 'defaults': deciding_defaults()}}."
    changed = {k: (v, now[k]) for k, v in recorded["defaults"].items() if k in now and now[k] != v}
    assert not changed, (
        f"defaults changed (before, now): {changed}. Raise relief_ray.config.experiment.SCHEMA by one. {fix}"
    )
    assert recorded["schema"] == SCHEMA, fix
    assert now.keys() == recorded["defaults"].keys(), f"keys were added or removed: SCHEMA stays as it is. {fix}"


# Files -----------------------------------------------------------------------------------------------------------


def test_yaml_and_json_files(tmp_path):
    (tmp_path / "a.yaml").write_text("rounds: 3\nstrategy: v1\n", encoding="utf-8")
    (tmp_path / "a.json").write_text('{"rounds": 3, "strategy": "v1"}', encoding="utf-8")
    assert read_mapping(tmp_path / "a.yaml") == read_mapping(tmp_path / "a.json") == {"rounds": 3, "strategy": "v1"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- 1\n", "holds list, expected a mapping"),
        ("a: [", "cannot be read as YAML"),
        ("", "holds NoneType"),
        (b"\xff\xfe\x00", "byte 0 is 0xff, expected a text in UTF-8"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path, content, message):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=rf"bad.yaml: .*{message}"):
        read_mapping(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"none.yaml: cannot be read"):
        read_mapping(tmp_path / "none.yaml")


# Backbones -------------------------------------------------------------------------------------------------------


def test_a_backbone_by_name_and_by_its_keys():
    assert parse({"backbone": "moment_lora"}).backbone.name == "moment_lora"
    assert parse({"backbone": {"conv1": 8}}).backbone.name == "cnn"
    assert parse(override({}, ["backbone=moment_lora", "backbone.size=tiny"])).backbone.model_dump()["size"] == "tiny"
    with pytest.raises(UserError, match=r"unknown backbone 'moment' \(did you mean 'moment_lora'\?\)"):
        parse({"backbone": "moment"})
    with pytest.raises(UserError, match=r"backbone\.rank = 0: expected a whole number, at least 1"):
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


# Physical runs ---------------------------------------------------------------------------------------------------


def test_a_physical_run_is_placed_on_devices():
    runtime = parse({"runtime": {"physical": True}}).runtime
    assert (runtime.mode, runtime.placement, runtime.data) == ("actors", "typed", "node")
    assert parse({"runtime": runtime.model_dump()}).runtime == runtime, "what run.json holds reads back"
    assert parse({"runtime": {"physical": True}}).device_by_host is False, "training.device is cpu by default"
    assert parse({"runtime": {"physical": True}, "training": {"device": "auto"}}).device_by_host is True
    assert parse({"training": {"device": "auto"}}).device_by_host is False
    assert hash_of({"runtime": {"physical": True}}) == hash_of({})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("mode", "packed", "'actors'"),
        ("mode", "inline", "'actors'"),
        ("placement", "virtual", "'typed'"),
        ("data", "ship", "'node'"),
        ("num_hosts", 2, "none"),
    ],
)
def test_a_setting_that_contradicts_a_physical_run_is_refused_by_name(key, value, expected):
    with pytest.raises(UserError, match=rf"runtime.*{key}.*physical=true.*expected {expected}.*remove {key}"):
        parse({"runtime": {"physical": True, key: value}})
    assert parse({"runtime": {key: value}}).runtime.physical is False


def test_clients_of_a_physical_run_share_no_steps():
    with pytest.raises(UserError, match=r"training.stack = 2.*host of its own"):
        parse({"runtime": {"physical": True}, "training": {"stack": 2}})


def seed_and_mu(config):
    return config.seed, config.strategy.mu


@pytest.mark.parametrize(
    ("values", "read"),
    [
        ({"training": {"epochs": np.int64(2), "lr": np.float32(0.5)}}, lambda c: (c.training.epochs, c.training.lr)),
        ({"training": {"epochs": 2, "lr": np.array(0.5)}}, lambda c: (c.training.epochs, c.training.lr)),
        (
            {"strategy": {"name": "fedprox", "mu": np.float32(0.5)}, "seed": np.int64(2)},
            lambda c: (c.seed, c.strategy.mu),
        ),
        ({"costs": {"profile": Path("p.json")}, "seed": 2}, lambda c: (c.seed, 0.5 * (c.costs.profile == "p.json"))),
    ],
)
def test_numbers_of_numpy_and_paths_are_what_they_say(values, read):
    """As Python gives them, at once and as settings."""
    assert read(parse(values)) == read(parse(assign({}, settings_of(values)))) == (2, 0.5)


def test_what_no_file_could_hold_is_refused_by_the_configuration():
    for value in ({(1, 2): 3}, object()):
        with pytest.raises(UserError, match=r"^configuration: .*(expected numbers|Unable to serialize)"):
            parse({"data": value})


def test_the_fields_of_a_users_instance_stay_the_objects_that_they_are(write):
    module = write(
        "from pydantic import ConfigDict, Field\nimport numpy as np\nimport relief_ray as rr\n"
        "from relief_ray.strategies import PRESETS\n\n\n"
        "class Mine(rr.StrategyConfig):\n    model_config = ConfigDict(arbitrary_types_allowed=True)\n"
        "    table: np.ndarray = np.zeros(2)\n    hidden: float = Field(1.0, exclude=True)\n    mu: float = 0.1\n\n"
        "    def build(self):\n        return PRESETS['fedavg'].build()\n\n\n"
        "MINE = Mine(table=np.ones(3), hidden=7.0)\n"
    )
    for more, mu in (({}, 0.1), ({"mu": 0.5}, 0.5)):
        strategy = parse({"strategy": {"name": f"{module}:MINE", **more}}).strategy
        assert (strategy.table.tolist(), strategy.hidden, strategy.mu) == ([1.0] * 3, 7.0, mu)
