"""Test what names a cell: the settings that differ from their defaults, and the schema number."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from relief_ray import config as module
from relief_ray.config import SCHEMA, ExperimentConfig, parse
from relief_ray.frozen import FrozenConfig
from relief_ray.models.registry import BACKBONES
from relief_ray.records.identity import cell_id, config_hash
from relief_ray.strategies import PRESETS
from relief_ray.training.config import TrainingConfig

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
        {"costs": {"planning_time": "flop_proportional"}},
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
        "strategy": {"name": "relief", "select": "all"},
        "backbone": {"name": "cnn"},
        "data": {"name": "dsa_mini"},
        "training": {"lr": 0.1},
        "fleet": {"rotation": 1},
        "seed": 3,
    }


class TrainingWithOneMoreKey(TrainingConfig):
    momentum: float = 0.9


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
        {"training": TrainingWithOneMoreKey(momentum=0.5)},
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
    assert not changed, f"defaults changed (before, now): {changed}. Raise relief_ray.config.SCHEMA by one. {fix}"
    assert recorded["schema"] == SCHEMA, fix
    assert now.keys() == recorded["defaults"].keys(), f"keys were added or removed: SCHEMA stays as it is. {fix}"
