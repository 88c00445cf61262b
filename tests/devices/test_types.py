import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from relief_ray.devices.fleet import PRESETS, DeviceType, with_gap


def test_presets_are_the_papers():
    figures = [(t.tops, t.active_power_w) for t in PRESETS["paper"].values()]
    assert figures == [(275.0, 60.0), (21.0, 30.0), (5.0, 5.0)]
    assert [t.active_power_w for t in PRESETS["testbed"].values()] == [60.0, 30.0, 15.0]
    # Section VII: Type A idles at about 12 W, B at 6 W, C at 3 W.
    assert [t.power.idle_w for t in PRESETS["testbed"].values()] == [12.0, 6.0, 3.0]
    assert PRESETS["paper"]["C"].ray_resources == {"type_c": 1.0}


def test_gap_55_is_the_preset_exactly():
    assert with_gap(PRESETS["paper"], 55) == dict(PRESETS["paper"])


@pytest.mark.parametrize(
    ("gap", "tops_b", "tops_c"), [(10, 275 * 0.2290868, 27.5), (100, 275 * 0.0524807, 2.75), (1, 275.0, 275.0)]
)
def test_gap_formula(gap, tops_b, tops_c):
    types = with_gap(PRESETS["paper"], gap)
    assert types["A"] == PRESETS["paper"]["A"]
    assert types["B"].tops == pytest.approx(tops_b, rel=1e-6)
    assert types["C"].tops == pytest.approx(tops_c, rel=1e-12)
    assert types["C"].active_power_w == 5.0


@given(st.floats(min_value=1, max_value=1000))
def test_types_keep_their_order_at_every_gap(gap):
    a, b, c = (t.tops for t in with_gap(PRESETS["paper"], gap).values())
    assert a >= b >= c > 0


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("uplink_mbit_s", -1.0, r"C.uplink_mbit_s = -1.0.*above 0.*96"),
        ("downlink_mbit_s", 0.0, r"downlink_mbit_s = 0.0.*above 0"),
        ("tops", 0.0, r"tops = 0.0"),
        ("utilisation", -0.5, r"utilisation = -0.5"),
        ("idle_fraction", 1.5, r"idle_fraction = 1.5, expected 0 to 1"),
        ("latency_s", -0.01, r"latency_s = -0.01, expected 0 or more"),
        ("uplink_mbit_s", float("nan"), r"finite"),
        ("active_power_w", float("inf"), r"finite"),
    ],
)
def test_impossible_figures_are_refused_by_name(key, value, said):
    figures = {"name": "C", "tops": 5.0, "active_power_w": 5.0} | {key: value}
    with pytest.raises(ValidationError, match=said):
        DeviceType.model_validate(figures)
