"""A board's rails, energy, heat and power mode, read from file trees: what cannot be read is None, never 0."""

import os
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from relief_ray.devices.meter import PERIOD_S, PowerMeter, Sample, energy_of, mean_w
from relief_ray.devices.power_sensors import (
    Rail,
    board_root,
    find_rails,
    heat,
    model_name,
    power_mode,
    release,
    total_rails,
    was_throttled,
)
from tests.devices.boards import BOARDS, agx_orin, orin_nx, write

_NOBODY = 65534


@pytest.fixture
def board(tmp_path):
    """Makes a board by its name."""
    return lambda name: BOARDS[name](tmp_path / name)


def measured(root, number=10):
    """A meter that took ``number`` samples on time: a busy machine would take them late."""
    meter = PowerMeter(root)
    for i in range(number):
        meter.samples.append(Sample(at_s=i * PERIOD_S, readings=tuple(rail.read() for rail in meter.rails)))
    meter.span_s = (number - 1) * PERIOD_S
    return meter


@contextmanager
def as_nobody():
    """Without root's rights, which read everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


WATTS = {
    "agx_orin": {"VDD_GPU_SOC": 8.0, "VDD_CPU_CV": 6.0, "VIN_SYS_5V0": 4.5, "VDDQ_VDD2_1V8AO": 0.5},
    "orin_nx": {"VDD_IN": 8.0, "VDD_CPU_GPU_CV": 3.5, "VDD_SOC": 2.0},
    "jetpack_7": {"VDD_GPU": 0.0, "VDD_CPU_SOC_MSS": 6.0, "VIN": 23.0},
    "jetpack_4": {"POM_5V_IN": 3.4, "POM_5V_GPU": 0.04},
    "negative": {"VDD_GPU_SOC": None, "VDD_CPU_CV": 6.0, "VIN_SYS_5V0": 4.5, "VDDQ_VDD2_1V8AO": 0.5},
    "none": {},
}
TOTALS = {"agx_orin": 18.5, "orin_nx": 8.0, "jetpack_7": 23.0, "jetpack_4": 3.4, "negative": None}


@pytest.mark.parametrize("name", WATTS)
def test_rails_by_label_each_once(board, name):
    rails = find_rails(board(name))
    found = {rail.label: rail.read().watts for rail in rails}
    assert found == {label: None if w is None else pytest.approx(w) for label, w in WATTS[name].items()}
    assert len(rails) == len(found), "a sensor is shown in two folders, and read once"


@pytest.mark.parametrize(
    ("labels", "summed"),
    [
        (("VIN_SYS_5V0", "VDDQ_VDD2_1V8AO"), ("VIN_SYS_5V0",)),
        (("VIN_SYS_5V0", "VDDQ_VDD2_1V8AO", "VDDQ_VDD2_1V8AO (2)"), ("VIN_SYS_5V0",)),  # two sensors
        (("VDDQ_VDD2_1V8AO",), ("VDDQ_VDD2_1V8AO",)),  # its feeder is not measured
        (("VDD_GPU_SOC", "VDD_CPU_CV"), ("VDD_GPU_SOC", "VDD_CPU_CV")),
        (("VDD_CPU_GPU_CV", "VDD_IN", "VDDQ_VDD2_1V8AO"), ("VDD_IN",)),
    ],
)
def test_a_rail_that_another_one_feeds_is_not_added_to_it(labels, summed):
    rails = [Rail(label=label, sensor="", files=(), unit_w=1.0) for label in labels]
    assert tuple(rail.label for rail in total_rails(rails)) == summed


@pytest.mark.parametrize(
    ("l4t", "jetpack"),
    [
        ("36 (release), REVISION: 4.3", "6"),
        ("38 (release), REVISION: 2.0", "7"),
        ("39 (release), REVISION: 0.0", "7"),
        ("99 (release), REVISION: 0.0", None),
    ],
)
def test_the_jetpack_of_a_release(tmp_path, l4t, jetpack):
    write(tmp_path / "etc", {"nv_tegra_release": f"# R{l4t}, GCID: 1, BOARD: generic"})
    assert release(tmp_path).jetpack == jetpack


@pytest.mark.parametrize("name", TOTALS)
def test_the_input_rail_is_the_total_else_the_sum_of_all(board, name):
    meter = measured(board(name))
    assert mean_w(meter) == (None if TOTALS[name] is None else pytest.approx(TOTALS[name]))
    assert meter.total().sensor == " + ".join(rail.label for rail in total_rails(meter.rails))


def test_a_machine_without_sensors_has_no_total(board):
    with PowerMeter(board("none")) as meter:
        pass
    assert meter.total() is None and mean_w(meter) is None and meter.by_rail() == () and not meter.samples


def test_a_negative_rail_is_named_and_makes_a_sum_impossible(board):
    meter = measured(board("negative"))
    first, *others = meter.by_rail()
    assert (first.mean_w, first.energy_j, first.dropped) == (None, None, 1.0) and first.why == "negative: -0.64 W"
    assert all(rail.energy_j > 0 for rail in others)
    assert meter.total().energy_j is None and "VDD_GPU_SOC: negative" in meter.total().why


def test_rails_of_one_label_are_all_there(tmp_path):
    root = orin_nx(tmp_path)
    for label in root.rglob("in*_label"):
        label.write_text("VDD_IN\n")
    rails = find_rails(root)
    assert [rail.label for rail in rails] == ["VDD_IN", "VDD_IN (2)", "VDD_IN (3)"]
    assert [rail.read().watts for rail in rails] == pytest.approx([8.0, 3.5, 2.0])
    assert [rail.label for rail in total_rails(rails)] == ["VDD_IN"]
    for label in root.rglob("in*_label"):
        label.write_text("VDD_CPU\n")
    assert len(total_rails(find_rails(root))) == 3, "without an input rail all are summed"


@pytest.mark.parametrize("milliamperes", [10**13, 3_000_000])
def test_more_watts_than_a_board_has_are_none(tmp_path, milliamperes):
    root = orin_nx(tmp_path)
    next(root.rglob("curr1_input")).write_text(f"{milliamperes}\n")
    first, second, _ = find_rails(root)
    assert first.read().watts is None and first.read().why.startswith("more than any board's: ")
    assert second.read().watts == pytest.approx(3.5)


@pytest.mark.parametrize("millidegrees", [9_999_999, 250_000])
def test_more_degrees_than_a_board_has_are_left_out_and_told(tmp_path, millidegrees):
    root = orin_nx(tmp_path)
    write(root / "sys/class/thermal", {"thermal_zone0/temp": millidegrees})
    now = heat(root)
    assert now.hottest_c == pytest.approx(51.0) and len(now.odd) == 1 and now.odd[0].startswith("thermal_zone0: ")


@pytest.mark.parametrize("name", ["temp", "curr1_input", "in1_label", "model", "nv_tegra_release"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path, name):
    root = orin_nx(tmp_path)
    file = next(root.rglob(name))
    file.unlink()
    os.mkfifo(file)
    with PowerMeter(root) as meter:
        heat(root), release(root), model_name(root)
    assert len(meter.rails) == 3


def test_a_rail_that_may_not_be_read_says_so():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        root = BOARDS["unreadable"](Path(folder) / "board")
        with as_nobody():
            readings = {rail.label: rail.read() for rail in find_rails(root)}
            meter = measured(root)
        (root / "sys/class/hwmon/hwmon1/in2_label").chmod(0)
        with as_nobody():
            labels = [rail.label for rail in find_rails(root)]
    assert readings["VDD_IN"].watts is None and readings["VDD_IN"].why == "curr1_input: Permission denied"
    assert readings["VDD_SOC"].watts == pytest.approx(2.0)
    assert meter.total().energy_j is None and "Permission denied" in meter.total().why
    assert "in2_label (not readable)" in labels, "a rail without a name still belongs to the sum"


def test_a_sensor_that_repeats_itself_for_five_seconds_measures_nothing(board):
    root = board("agx_orin")
    write(root / "sys/class/hwmon/hwmon3", {"curr3_input": 0})
    assert all(rail.mean_w is not None for rail in measured(root, 50).by_rail())
    meter = measured(root, 51)
    rows = {rail.label: rail for rail in meter.by_rail()}
    assert rows["VDD_CPU_CV"].mean_w is None and rows["VDD_CPU_CV"].why.startswith("stuck")
    assert rows["VIN_SYS_5V0"].mean_w == 0.0, "a rail without current may stay there"


def lively(root, sensor, number, still=range(0)):
    """A meter of a board whose first rail's current moves with every sample but those of ``still``."""
    meter = PowerMeter(root)
    for i in range(number):
        if i not in still:
            write(root / f"sys/class/hwmon/{sensor}", {"curr1_input": 1600 + 8 * (i % 2)})
        meter.samples.append(Sample(at_s=i * PERIOD_S, readings=tuple(rail.read() for rail in meter.rails)))
    meter.span_s = (number - 1) * PERIOD_S
    return meter


def test_a_living_board_is_not_stuck(board):
    total = lively(board("orin_nx"), "hwmon1", 201, still=range(100, 148)).total()
    assert total.energy_j == pytest.approx(8.02 * 20.0, rel=1e-3) and total.why == "" and total.dropped == 0.0


def test_a_sensor_that_was_stuck_for_a_part_of_the_time_lacks_that_part(board):
    total = lively(board("orin_nx"), "hwmon1", 201, still=range(100, 160)).total()
    assert total.dropped == pytest.approx(0.31, abs=0.01) and total.why.startswith("stuck")
    assert total.energy_j == pytest.approx(8.02 * 20.0, rel=1e-3), "the gap is bridged"
    total = lively(board("jetpack_4"), "none", 201).total()
    assert (total.energy_j, total.dropped) == (None, 1.0)


def test_a_sum_with_a_rail_that_was_stuck_for_a_while_is_none(board):
    root = board("agx_orin")
    for channel in (2, 3):
        write(root / "sys/class/hwmon/hwmon3", {f"curr{channel}_input": 0})
    write(root / "sys/class/hwmon/hwmon4", {"curr2_input": 0})
    assert lively(root, "hwmon3", 201).total().energy_j == pytest.approx(20.0 * 1.604 * 20.0, rel=1e-3)
    total = lively(root, "hwmon3", 201, still=range(100, 160)).total()
    assert total.energy_j is None and total.mean_w is None and total.why.startswith("VDD_GPU_SOC: stuck")


def test_a_board_that_is_slowed_down_in_the_middle_of_a_measurement_was_throttled(tmp_path, monkeypatch):
    """Neither at its beginning nor at its end."""
    monkeypatch.setattr("relief_ray.devices.meter._HEAT_PERIOD_S", 0.01)
    monkeypatch.setattr("relief_ray.devices.meter.PERIOD_S", 0.01)
    root, until_s = orin_nx(tmp_path), time.monotonic() + 30.0
    alert = root / "sys/class/thermal/cooling_device1"
    with PowerMeter(root) as meter:
        write(alert, {"cur_state": 1})
        seen = len(meter.heats)
        while len(meter.heats) < seen + 2 and time.monotonic() < until_s:
            time.sleep(0.01)
        write(alert, {"cur_state": 0})
    assert (meter.heats[0].slowed, meter.heats[-1].slowed) == ((), ()) and meter.was_throttled is True
    with PowerMeter(root) as meter:
        pass
    assert meter.was_throttled is False


def test_energy_is_the_trapezoid_over_what_is_there():
    times_s = [0.0, 0.1, 0.2, 0.3, 0.4]
    ramp = energy_of("x", "", times_s, [0.0, 1.0, 2.0, 3.0, 4.0], 0.4)
    assert (ramp.energy_j, ramp.mean_w, ramp.peak_w) == (pytest.approx(0.8), pytest.approx(2.0), 4.0)
    gap = energy_of("x", "", times_s, [0.0, None, 2.0, 3.0, 4.0], 0.4)
    assert gap.energy_j == pytest.approx(0.8), "a gap is bridged by a straight line"
    uneven = energy_of("x", "", [0.0, 0.1, 0.4], [1.0, 1.0, 4.0], 0.4)
    assert uneven.energy_j == pytest.approx(0.1 + 0.75), "by time, not by number"
    longer = energy_of("x", "", times_s, [2.0] * 5, 0.5)
    assert longer.energy_j == pytest.approx(1.0), "the edges count too"
    few = energy_of("x", "", times_s, [1.0, None, None, None, 4.0], 0.5, "why not")
    assert (few.energy_j, few.mean_w, few.dropped, few.why) == (None, None, pytest.approx(0.6), "why not")
    assert energy_of("x", "", [], [], 1.0).energy_j is None


def test_samples_are_taken_in_the_background_from_the_first_moment_to_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr("relief_ray.devices.meter.PERIOD_S", 0.01)
    with PowerMeter(orin_nx(tmp_path)) as meter:
        time.sleep(0.1)
    assert len(meter.samples) >= 3 and meter.samples[-1].at_s - meter.samples[0].at_s >= 0.1
    assert meter.total().dropped == pytest.approx(max(0.0, 1 - len(meter.samples) / round(meter.span_s / 0.01)))


@pytest.mark.parametrize(
    ("name", "l4t", "jetpack", "mode"),
    [
        ("agx_orin", "36.4.0", "6", "15W"),
        ("jetpack_7", "38.2.0", "7", "15W"),
        ("jetpack_4", "32.7.1", "4", "15W"),
    ],
)
def test_release_and_power_mode_by_name(board, name, l4t, jetpack, mode):
    root = board(name)
    known = release(root)
    assert (known.l4t, known.jetpack, power_mode(root)) == (l4t, jetpack, mode)
    assert model_name(root).startswith("NVIDIA Jetson") and "\0" not in model_name(root)


def test_what_a_machine_does_not_tell_is_none(board):
    root = board("none")
    assert (release(root), power_mode(root), model_name(root)) == (None, None, None)
    now = heat(root)
    assert (now.hottest_c, now.slowed, now.num_overcurrent, was_throttled([now])) == (None, None, None, None)
    write(root, {"var/lib/nvpmodel/status": "pmode:0007"})
    assert power_mode(root) == "mode 7", "without a list of names"


def test_throttling_is_told_from_a_fan_and_by_events(board):
    cool, warm = heat(board("orin_nx")), heat(board("slowed"))
    assert cool.hottest_c == 51.0, "a zone that is switched off does not count"
    assert cool.slowed == () and warm.slowed == ("cpu-throttle-alert",), "nor does a running fan"
    assert was_throttled([cool, cool]) is False and was_throttled([cool, warm]) is True
    after = type(cool)(hottest_c=51.0, slowed=(), num_overcurrent=3)
    assert was_throttled([cool, after]) is True, "over-current events happened in between"
    assert was_throttled([after, after]) is False, "older ones do not count"


def test_the_root_can_be_named_by_a_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("RELIEF_SYSFS", raising=False)
    assert board_root() == Path("/")
    monkeypatch.setenv("RELIEF_SYSFS", str(agx_orin(tmp_path / "b")))
    assert release(board_root()).jetpack == "6"
