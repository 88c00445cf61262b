"""Clocks of a run: which runs a device profile fits, and a user's own clock from configuration to record."""

import json
import re
from pathlib import Path

import pytest

from relief_ray.config.experiment import ExperimentConfig, parse
from relief_ray.core.messages import Assignment
from relief_ray.devices.fleet import device_types
from relief_ray.devices.time import Conditions, Profile, Throughput, profile_text
from relief_ray.devices.workload import Workload
from relief_ray.experiment.recording import calibration_of
from relief_ray.experiment.setup import foreign_profile, prepare, profile_settings, run_clocks
from relief_ray.plugins.load import digests
from relief_ray.support.errors import UserError
from tests.conformance.cases import BASE, config_of
from tests.models.tiny_moment import SHAPE
from tests.own import CLOCK
from tests.plans import override

COSTS = Path(__file__).parents[2] / "docs" / "costs.md"
IDLE = Workload(forward_flops=0.0, backward_flops=0.0, optimizer_flops=0.0, group_flops=0.0, bytes_up=0, bytes_down=0)
ROW = Throughput(forward_flops_per_s=1e9, backward_flops_per_s=1e9, optimizer_flops_per_s=1e9)


def config(path, training=None, **backbone):
    return parse(
        {
            "backbone": {"name": "moment_lora", "size": "tiny", **backbone},
            "data": {"name": "dsa_mini"},
            "training": training or {},
            "costs": {"profile": str(path)},
        }
    )


def measured_with(path, config, **also):
    """A profile file made with what ``asked`` says."""
    conditions = Conditions(
        cpu="x", num_cores=1, num_threads=1, torch="2", torch_build="x", date="2026-01-01 00:00 UTC", commit="x",
        settings={"windows_per_batch": 16, **profile_settings(config, SHAPE), **also},
        turns=1, spread=0.0, load_before=None,
    )  # fmt: skip
    profile = Profile(origin="here", backbone="moment_lora", measured=conditions, devices={"A": ROW})
    path.write_text(profile_text(profile))


def said(config):
    return foreign_profile(config, SHAPE, run_clocks(config))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "p.json"


OTHER = [
    ({"pad_to": 256}, {}, "backbone.pad_to 256 (here None)"),
    ({}, {"autocast": "bf16"}, "autocast 'bf16' (here 'none')"),
    ({}, {"micro_batch": 4}, "micro_batch 4 (here None)"),
    ({}, {"optimizer": "sgd"}, "optimizer_flops 2.0 (here None)"),
    ({"rank": 4}, {"missing": "zero_feature"}, "missing 'zero_feature' (here 'zero_input'); backbone.rank 4 (here 8)"),
]


@pytest.mark.parametrize(("backbone", "training", "named"), OTHER)
def test_what_changes_speed_is_named_both_ways(path, backbone, training, named):
    plain, other = config(path), config(path, training, **backbone)
    measured_with(path, other)
    assert said(other) == ()
    assert said(plain) == (f"{path}: measured with {named}: its seconds are extrapolated; profile again",)
    measured_with(path, plain)
    assert said(plain) == () and len(said(other)) == 1


def with_types(path, planning, **types):
    rows = {name: {"active_power_w": 1, "sensors": "all", **row} for name, row in types.items()}
    made = {"backbone": {"name": "moment_lora", "size": "tiny"}, "data": {"name": "dsa_mini"}}
    return parse({**made, "fleet": {"types": rows}, "costs": {"planning_time": planning}})


def test_a_types_own_profile_gives_seconds_to_the_measured_clock_alone(path):
    """The file has one row, of whatever name; a type without tops is refused by every other clock that plans."""
    measured_with(path, config(path))
    profiled = {"profile": str(path)}
    clocks = run_clocks(with_types(path, "measured", hub={**profiled, "tops": 2}, watch=profiled))
    assert [*clocks] == ["measured"] and clocks["measured"].profile.devices == {"hub": ROW, "watch": ROW}
    with pytest.raises(UserError, match=r"'split_naive' needs the tops of every device type, found none of watch"):
        run_clocks(with_types(path, "split_naive", hub={"tops": 2}, watch=profiled))
    some = with_types(path, "flop_proportional", hub={"tops": 2}, watch={**profiled, "tops": 1})
    assert "measured" not in run_clocks(some), "it would have no seconds for a hub"
    clock = run_clocks(with_types(path, "measured", hub={"tops": 2}, watch=profiled))["measured"]
    with pytest.raises(UserError, match=r"has rows for \['watch'\], none for type 'hub'"):
        clock.times(device_types(some.fleet)["hub"], IDLE)


def test_a_types_profile_counts_by_its_content(path):
    measured_with(path, config(path))
    moved = path.with_name("other.json")
    moved.write_bytes(path.read_bytes())
    here, there = (with_types(path, "measured", hub={"profile": str(p)}).identity() for p in (path, moved))
    assert here == there
    with pytest.raises(UserError, match=r"fleet.types.hub.profile = .*none.json: cannot be read"):
        with_types(path, "measured", hub={"profile": str(path.with_name("none.json"))}).identity()


def test_what_does_not_change_speed_is_not_named(path):
    measured_with(path, config(path))
    for other in ({"weights_seed": 3}, {"alpha": 32}, {"revision": "main"}, {"weights": "hub"}):
        assert said(config(path, **other)) == ()


def test_a_setting_that_the_file_lacks_is_reported(path):
    measured_with(path, config(path))
    values = json.loads(path.read_text())
    assert said(config(path)) == ()
    del values["measured"]["settings"]["autocast"]
    path.write_text(json.dumps(values))
    assert "autocast None (here 'none')" in said(config(path))[0]


def test_a_users_clock_survives_json_and_is_among_the_runs_sources(write):
    """By module or by file: the same configuration, the same cell."""
    module = write(CLOCK)
    by_file, by_module = (
        parse(override(BASE, [f"costs.planning_time={place}:Mine"])) for place in (f"{module}.py", module)
    )
    assert by_file == by_module and by_module.costs.planning_time == f"{module}:Mine"
    assert ExperimentConfig.model_validate_json(by_module.model_dump_json()) == by_module
    assert by_module.modules() == (module,) and list(digests(by_module.modules())) == [f"{module}.py"]
    assert by_module.identity() == by_file.identity() != parse(BASE).identity()


def test_a_users_clock_plans_and_charges(write, run_cache):
    """The fleet's gap is 2: its slowest device has 275e12 / 2 FLOP/s. Seconds are 3 times forward FLOPs over that."""
    path = f"{write(CLOCK)}:Mine"
    setup = prepare(config_of("relief", costs={"planning_time": path}))
    assert list(setup.reference) == ["flop_proportional", "split_naive", "split_reuse", path]
    assert calibration_of(setup)["clocks"][path] == {"flops_per_s": 137.5e12, "factor": 3.0}
    everything = setup.layout.select()
    task = Assignment(client=7, down=everything, train=everything, up=everything, epochs=1)
    load, times = setup.planner.load(7, task), setup.planner.times(7, task)
    assert setup.planner.engine == "naive" and times.compute_s == pytest.approx(3 * load.forward_flops / 137.5e12)
    assert times == setup.reference[path].clients[7].times


def test_the_documented_clock_by_hand(write):
    """Type A is capped at Type B's 21e12 FLOP/s, Type C keeps its 5e12; both reach a tenth of them."""
    (text,) = re.findall(r"```python\n# file: my_clock.py\n(.*?)```", COSTS.read_text(encoding="utf-8"), re.DOTALL)
    config = parse({"costs": {"planning_time": f"{write(text)}.py:Capped", "utilisation": 0.1}})
    clock = run_clocks(config)[config.costs.planning_time]
    load = Workload(
        forward_flops=4.2e12, backward_flops=2.1e12, optimizer_flops=1e12, group_flops=0.0, bytes_up=0, bytes_down=0,
        extra_flops=1.1e12,
    )  # fmt: skip
    fast, slow = (clock.times(device_types(config.fleet)[name], load) for name in "AC")
    assert (fast.forward_s, fast.backward_s, fast.optimizer_s) == pytest.approx((2.0, 1.0, 1.0))
    assert slow.compute_s == pytest.approx(4.0 * 21 / 5) and fast.up_s == slow.up_s == pytest.approx(0.01)
