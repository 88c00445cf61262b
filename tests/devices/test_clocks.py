"""Clocks by name and by import path: what is built, what is recorded and read back, what is refused."""

import pytest

from relief_ray.devices.fleet import PRESETS
from relief_ray.devices.time import (
    CLOCKS,
    ClockContext,
    FlopProportional,
    MeasuredClock,
    Profile,
    SplitNaive,
    SplitReuse,
    Throughput,
    build_clocks,
    clock_name,
    restore_clock,
)
from relief_ray.devices.workload import Workload
from relief_ray.support.errors import UserError
from tests.own import CLOCK

ROW = Throughput(forward_flops_per_s=1e3, backward_flops_per_s=2e3, optimizer_flops_per_s=3e3)
PROFILE = Profile(origin="test bench", backbone="cnn", devices=dict.fromkeys("ABC", ROW))
LOAD = Workload(
    forward_flops=4e12, backward_flops=2e12, optimizer_flops=5e11, group_flops=6e12, bytes_up=0, bytes_down=0
)


def context(profile=None):
    utilisation = {"flop_proportional": 0.25, "split": 0.5}
    return ClockContext(backbone="cnn", utilisation=utilisation, types=PRESETS["paper"], profile=profile)


def test_a_run_records_every_built_in_clock_that_can_be_built():
    plain = build_clocks(context(), "split_naive")
    assert plain == {
        "flop_proportional": FlopProportional(utilisation=0.25),
        "split_naive": SplitNaive(utilisation=0.5),
        "split_reuse": SplitReuse(utilisation=0.5),
    }
    assert build_clocks(context(PROFILE), "measured") == {**plain, "measured": MeasuredClock(profile=PROFILE)}
    engines = {name: kind.engine for name, kind in CLOCKS.items()}
    assert engines == {"flop_proportional": "naive", "split_naive": "naive", "split_reuse": "reuse", "measured": None}


def test_recorded_parameters_give_the_clock_back():
    for name, clock in build_clocks(context(PROFILE), "measured").items():
        assert restore_clock(name, clock.model_dump(mode="json")) == clock
    with pytest.raises(ValueError, match="greater than 0"):
        restore_clock("split_naive", {"kind": "split", "utilisation": 0})
    with pytest.raises(ValueError, match="flop_proportional"):
        restore_clock("flop_proportional", {"kind": "split"})


def test_fitted_clocks_are_those_that_take_their_utilisation_from_the_calibration():
    other = {"flop_proportional": 0.1, "split": 0.1}
    moved = build_clocks(
        ClockContext(backbone="cnn", utilisation=other, types=PRESETS["paper"], profile=PROFILE), "measured"
    )
    known = build_clocks(context(PROFILE), "measured")
    assert {name for name in known if known[name] != moved[name]} == {n for n, kind in CLOCKS.items() if kind.is_fitted}


def test_a_clock_that_needs_a_profile_says_so():
    with pytest.raises(UserError, match=r"'measured' needs a device profile; set costs\.profile=FILE"):
        build_clocks(context(), "measured")


def test_an_unknown_name_is_reported_with_the_nearest():
    with pytest.raises(UserError) as caught:
        clock_name("split_naiv")
    assert str(caught.value) == (
        "costs.planning_time = 'split_naiv': expected 'flop_proportional', 'split_naive', 'split_reuse' or "
        "'measured' (did you mean 'split_naive'?); one of your own goes by its import path, my.module:MyClock"
    )


def test_a_users_clock_by_hand(write):
    """Forward FLOPs alone over the slowest device's 5e12 FLOP/s, times its factor: 4e12 / 5e12 * 3 = 2.4 s."""
    path = f"{write(CLOCK)}:Mine"
    clocks = build_clocks(context(), path)
    assert list(clocks) == ["flop_proportional", "split_naive", "split_reuse", path]
    times = clocks[path].times(PRESETS["paper"]["A"], LOAD)
    assert times.compute_s == pytest.approx(2.4) and times.link_s == pytest.approx(0.02)
    assert restore_clock(path, clocks[path].model_dump(mode="json")) == clocks[path]


def test_a_users_clock_on_a_fitted_one_takes_its_utilisation(write):
    text = """
from typing import Literal

from relief_ray.devices.time import SplitClock


class Mine(SplitClock):
    about = "as SplitClock"
    kind: Literal["mine"] = "mine"
"""
    path = f"{write(text)}:Mine"
    assert build_clocks(context(), path)[path].utilisation == context().utilisation["split"]


def test_an_instance_is_taken_as_it_is(write):
    path = f"{write(CLOCK)}:FAST"
    clock = build_clocks(context(), path)[path]
    assert (clock.factor, clock.flops_per_s) == (1.0, 8e12)
    assert clock.times(PRESETS["paper"]["C"], LOAD).compute_s == pytest.approx(0.5)
    assert restore_clock(path, clock.model_dump(mode="json")) == clock


def test_a_users_clock_may_need_a_profile(write):
    path = f"{write(CLOCK)}:Profiled"
    with pytest.raises(UserError, match=r"Profiled' needs a device profile; set costs\.profile=FILE"):
        build_clocks(context(), path)
    assert build_clocks(context(PROFILE), path)[path].flops_per_s == 1e3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{}:Min", r"has no 'Min'; own_\d+\.py is a file here; type own_\d+:Mine$"),
        ("{}:CONTEXT", r"found a int, expected a subclass of relief_ray\.devices\.time\.TimeModel"),
        ("{}:Unfinished", r"the class has no times\(device, load\); write that method"),
    ],
)
def test_what_is_no_clock_is_refused(write, name, message):
    with pytest.raises(UserError, match=message) as caught:
        clock_name(name.format(write(CLOCK)))
    assert str(caught.value).startswith("costs.planning_time = ")
