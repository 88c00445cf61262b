"""Values that all strategies' configurations refuse; committed ones are still read."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from relief_ray.core.messages import StageTimes
from relief_ray.strategies import PRESETS, AnyStrategy
from relief_ray.strategies.common import StrategyConfig, of_fastest_type
from relief_ray.strategies.darkdistill import DarkDistill
from relief_ray.strategies.fedicu import FedICU
from relief_ray.strategies.fedprox import FedProx
from relief_ray.strategies.helora import HeLoRA
from relief_ray.strategies.relief import Relief
from tests.toy import FOUR

ROOT = Path(__file__).parent.parent.parent
ANY: TypeAdapter[StrategyConfig] = TypeAdapter(AnyStrategy)


@pytest.mark.parametrize(
    ("config", "unread", "switch", "needed"),
    [
        (FedProx, {"deadline_s": 3.0}, {}, {"partial_work": "deadline"}),
        (FedICU, {"freeze_share": 0.5}, {}, {"freeze_unimportant": True}),
        (DarkDistill, {"kd_lr": 3.0}, {"distil": False}, {"distil": True}),
        (DarkDistill, {"kd_epochs": 3}, {"distil": False}, {"distil": True}),
        (DarkDistill, {"hidden": 16}, {"distil": False}, {"distil": True}),
        (HeLoRA, {"kd_epochs": 3}, {}, {"variant": "kd"}),
        (HeLoRA, {"kd_lr": 1e-3}, {}, {"variant": "kd"}),
        (HeLoRA, {"public_windows": 7}, {}, {"variant": "kd"}),
        (HeLoRA, {"padding": "zero"}, {"variant": "kd"}, {"variant": "pad"}),
        (HeLoRA, {"by_rank": False}, {"variant": "kd"}, {"variant": "pad"}),
        (HeLoRA, {"alpha_over": "own_rank"}, {"variant": "kd"}, {"variant": "pad"}),
    ],
)
def test_what_would_not_be_read_is_refused(config, unread, switch, needed):
    ((key, value),) = unread.items()
    ((name, other),) = needed.items()
    with pytest.raises(
        ValidationError, match=rf"{key} = {value} with {name} = .*, which does not read it; .*\.{name}={other}"
    ):
        config(**unread, **switch)
    assert getattr(config(**unread, **needed), key) == value
    default = {key: getattr(config(), key)}
    assert getattr(config(**default, **switch), key) == default[key], "a record names every key, whatever it is worth"


def test_two_deadlines_are_refused():
    with pytest.raises(ValidationError, match=r"deadline_s = 5.0 and deadline_fraction = 0.5, expected one of them"):
        Relief(deadline_s=5, deadline_fraction=0.5)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("key", ["kd_lr", "bin_nats"])
def test_numbers_are_finite(key, value):
    with pytest.raises(ValidationError, match="finite number"):
        DarkDistill(**{key: value})


def test_every_preset_and_every_committed_configuration_is_valid():
    committed = {
        json.dumps(strategies_of(cell), sort_keys=True)
        for path in sorted((ROOT / "results").glob("*/cells.json"))
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"].values()
    }
    assert len(committed) >= 20
    for values in map(json.loads, committed):
        read = ANY.validate_python(values).model_dump(mode="json")
        assert {key: read[key] for key in values} == values, "a key that was added since has its default"
    for config in PRESETS.values():
        assert ANY.validate_python(config.model_dump(mode="json")) == config


def strategies_of(cell):
    return (json.loads(cell) if isinstance(cell, str) else cell)["config"]["strategy"]


def test_the_fastest_type_by_hand():
    """Seconds a window: A 2 and 1.5, B 2.5 and 3; so A's, though B's second client, of one window, is done first."""
    clients = zip(FOUR.clients, "AABB", (5, 10, 10, 1), (10.0, 15.0, 25.0, 3.0), strict=True)
    times = {replace(c, device=d, num_windows=n): StageTimes(backward_s=s) for c, d, n, s in clients}
    assert [spent.compute_s for spent in of_fastest_type(times)] == [10.0, 15.0]
