import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.core.messages import StageTimes
from relief_ray.devices.fleet import DeviceType
from relief_ray.devices.time import (
    FlopProportional,
    MeasuredClock,
    Profile,
    SplitClock,
    Throughput,
    load_profile,
    profile_text,
    throughput,
)
from relief_ray.devices.workload import Workload
from relief_ray.support.errors import UserError

DEVICE = DeviceType(
    name="C", tops=2.0, utilisation=0.5, active_power_w=10.0, uplink_mbit_s=8e-4, downlink_mbit_s=1.6e-3
)
LOAD = Workload(
    forward_flops=1e12, backward_flops=2e12, optimizer_flops=5e11, group_flops=6e12, bytes_up=50, bytes_down=400
)
ROW = Throughput(forward_flops_per_s=1e11, backward_flops_per_s=2e11, optimizer_flops_per_s=5e11)


def test_flop_proportional_by_hand():
    times = FlopProportional(utilisation=0.1).times(DEVICE, LOAD)
    assert times.compute_s == pytest.approx(6e12 / (2e12 * 0.5 * 0.1))
    assert times.backward_s == pytest.approx(2 * times.forward_s)
    assert times.optimizer_s == 0.0


def test_extra_flops_by_hand():
    """1e12 more: over the device's speed, or at the pace of the profile's optimizer."""
    more = replace(LOAD, extra_flops=1e12)
    assert FlopProportional(utilisation=0.1).times(DEVICE, more).compute_s == pytest.approx(60.0 + 10.0)
    assert SplitClock(utilisation=0.1).times(DEVICE, more).optimizer_s == pytest.approx(5.0 + 10.0)
    measured = MeasuredClock(profile=Profile(origin="o", backbone="cnn", devices={"C": ROW})).times(DEVICE, more)
    assert (measured.forward_s, measured.backward_s, measured.optimizer_s) == pytest.approx((10.0, 10.0, 1.0 + 2.0))


def test_split_by_hand():
    times = SplitClock(utilisation=0.1).times(DEVICE, LOAD)
    assert (times.forward_s, times.backward_s, times.optimizer_s) == pytest.approx((10.0, 20.0, 5.0))


@pytest.mark.parametrize(
    "model",
    [FlopProportional(), SplitClock(), MeasuredClock(profile=Profile(origin="o", backbone="cnn", devices={"C": ROW}))],
)
def test_link_is_the_same_under_every_model(model):
    times = model.times(DEVICE, LOAD)
    assert (times.up_s, times.down_s) == (pytest.approx(0.51), pytest.approx(2.01))


def test_measured_by_hand_and_its_own_link():
    row = ROW.model_copy(update={"uplink_mbit_s": 8e-5, "latency_s": 0.0})
    times = MeasuredClock(profile=Profile(origin="o", backbone="cnn", devices={"C": row})).times(DEVICE, LOAD)
    assert times == StageTimes(forward_s=10.0, backward_s=10.0, optimizer_s=1.0, up_s=5.0, down_s=2.0)


def test_measured_without_a_row_says_which_there_are():
    model = MeasuredClock(profile=Profile(origin="bench 7", backbone="cnn", devices={"A": ROW}))
    with pytest.raises(UserError, match=r"bench 7.*\['A'\].*'C'"):
        model.times(DEVICE, LOAD)


SECONDS = st.floats(1e-3, 1e3)


@given(SECONDS, SECONDS, SECONDS)
def test_throughput_gives_back_the_measured_seconds(forward_s, backward_s, optimizer_s):
    seen = StageTimes(forward_s=forward_s, backward_s=backward_s, optimizer_s=optimizer_s)
    profile = Profile(origin="o", backbone="cnn", devices={"C": throughput(LOAD, seen)})
    times = MeasuredClock(profile=profile).times(DEVICE, LOAD)
    assert (times.forward_s, times.backward_s, times.optimizer_s) == pytest.approx((forward_s, backward_s, optimizer_s))


def test_throughput_of_untimed_phases_and_of_nothing():
    row = throughput(LOAD, StageTimes(forward_s=1.0, backward_s=2.0))
    assert row.optimizer_flops_per_s == pytest.approx(3e12 / 3)
    with pytest.raises(UserError, match="no phase"):
        throughput(LOAD, StageTimes())


def test_profile_file_round_trip(tmp_path):
    profile = Profile(origin="measured, board 3, 15 W", backbone="cnn", devices={"C": ROW})
    (tmp_path / "p.json").write_text(profile_text(profile))
    assert load_profile(tmp_path / "p.json") == profile


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema_version": 2}, r"schema_version 2, this release reads 1"),
        ({"origin": ""}, r"origin"),
        ({"devices": {}}, r"devices"),
        ({"devices": {"C": ROW.model_dump() | {"forward_flops_per_s": -1.0}}}, r"devices.C.forward_flops_per_s = -1.0"),
        ({"speed": 1}, r"speed"),
    ],
)
def test_bad_profile_files_are_refused_by_key(tmp_path, change, said):
    path = tmp_path / "p.json"
    good = Profile(origin="o", backbone="cnn", devices={"C": ROW}).model_dump()
    path.write_text(json.dumps(good | change))
    with pytest.raises(UserError, match=said) as raised:
        load_profile(path)
    assert str(path) in str(raised.value)


def test_unreadable_profile_files(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        load_profile(tmp_path / "none.json")
    (tmp_path / "p.json").write_text("{")
    with pytest.raises(UserError, match=r"not JSON .*: relief-ray device profile --out .*p\.json"):
        load_profile(tmp_path / "p.json")
    (tmp_path / "p.json").write_text("[]")
    with pytest.raises(UserError, match="schema_version None"):
        load_profile(tmp_path / "p.json")
