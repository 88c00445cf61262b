"""Device types of a user's own in comparisons: their order counts, and a table of them is no testbed."""

import pytest

from relief_ray.records.identity import flat
from relief_ray.report.comparison import compare_runs, differences
from relief_ray.report.tables import paper
from relief_ray.support.errors import UserError

HUB, WATCH = {"tops": 20.0, "active_power_w": 9.0}, {"tops": 2.0, "active_power_w": 1.0}


def test_fleets_that_differ_in_the_order_of_their_types_are_two_settings(make):
    """The first type is the most capable one: others have its people, its ranks and depths."""
    tables = ({"hub": HUB, "watch": WATCH}, {"watch": WATCH, "hub": HUB})
    one, other = (make("fedavg", seed=s, extra={"fleet": {"types": table}}) for s, table in enumerate(tables))
    with pytest.raises(UserError, match=r"differ in fleet.types = \['hub', 'watch'\] and \['watch', 'hub'\]; compare"):
        compare_runs([one, other])
    assert len(compare_runs([one, make("fedavg", seed=2, extra={"fleet": {"types": tables[0]}})]).runs) == 2


def test_a_flat_configuration_keeps_the_order_of_a_table_alone():
    assert flat({"fleet": {"types": {"b": {"x": 1}, "a": {"x": 2}}, "gap": None}, "empty": {}}) == {
        "fleet.gap": None, "fleet.types": ["b", "a"], "fleet.types.a.x": 2, "fleet.types.b.x": 1,
    }  # fmt: skip


def test_types_of_ones_own_are_no_testbed(make):
    fleet = {"preset": "testbed", "types": {"hub": HUB, "watch": WATCH}}
    own = compare_runs([make(name, extra={"fleet": fleet}) for name in ("fedavg", "relief")])
    assert paper.testbed_table(own) is None and paper.device_table(own) is None and "testbed" not in own.title


def test_tables_of_types_with_the_same_names_are_told_apart_by_figures():
    """Others go by their names in order of capability."""
    rows = ("tops", "active_power_w", "share", "latency_s", "uplink_mbit_s")
    first, second = (
        {"fleet.types": ["watch", "hub"], **{f"fleet.types.hub.{row}": value for row in rows}} for value in (1.0, 2.0)
    )
    third = {"fleet.types": ["ring", "band"], **{f"fleet.types.ring.{row}": 3.0 for row in rows}}
    every = [first, second, third]
    told = "hub.tops {0}, hub.active_power_w {0}, hub.share {0}, hub.latency_s {0}, .."
    assert [differences(each, every)["types"] for each in every] == [told.format(1), told.format(2), "ring, band"]
    longer = third | {"rounds": 9}
    assert differences(third, [first, third, longer])["types"] == "ring, band", "other rounds are no other table"
