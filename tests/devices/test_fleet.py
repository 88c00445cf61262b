import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from relief_ray.config.experiment import parse
from relief_ray.core.messages import apportion
from relief_ray.devices.fleet import FleetConfig, build_fleet, device_types, with_windows
from relief_ray.support.errors import UserError

MODALITIES = ("acc", "gyro", "mag", "hr")


def row(config, n=8, people=8):
    fleet, _ = build_fleet(config, MODALITIES, [i * people // n for i in range(n)], "dsa")
    return "".join(c.device for c in fleet.clients), [len(c.modalities) for c in fleet.clients]


@pytest.mark.parametrize(
    ("n", "counts", "expected"),
    [
        (8, (3, 3, 2), (3, 3, 2)),
        (100, (3, 3, 2), (38, 37, 25)),
        (20, (3, 3, 2), (8, 7, 5)),
        (50, (3, 3, 2), (19, 19, 12)),
        (6, (3, 3, 2), (2, 2, 2)),
        (10, (3, 3, 4), (3, 3, 4)),
        (100, (3, 3, 4), (30, 30, 40)),
        (20, (3, 0, 7), (6, 0, 14)),
    ],
)
def test_types_by_largest_remainder(n, counts, expected):
    assert tuple(apportion(n, counts)) == expected


@given(st.integers(1, 500), st.tuples(*[st.integers(0, 9)] * 3).filter(any))
def test_counts_add_up_and_stay_within_one_of_their_share(n, counts):
    per_type = apportion(n, counts)
    assert sum(per_type) == n
    assert all(abs(f - n * c / sum(counts)) < 1 for f, c in zip(per_type, counts, strict=True))


def test_default_fleet_is_the_papers_and_picklable():
    fleet, types = build_fleet(FleetConfig(), MODALITIES, range(8), "dsa")
    assert [c.device for c in fleet.clients] == list("AAABBBCC")
    assert [c.modalities for c in fleet.clients[::3]] == [MODALITIES, ("acc", "gyro"), ("acc",)]
    assert [c.num_windows for c in fleet.clients] == [0] * 8
    assert fleet.rare() == ("mag", "hr")
    assert pickle.loads(pickle.dumps((fleet, types))) == (fleet, types)


def test_coupling_moves_devices_but_never_changes_them_or_the_sensors():
    coupled, inverted = row(FleetConfig()), row(FleetConfig(coupling="inverted"))
    assert coupled == ("AAABBBCC", [4, 4, 4, 2, 2, 2, 1, 1])
    assert inverted == ("CCBBBAAA", [4, 4, 4, 2, 2, 2, 1, 1])
    drawn = {row(FleetConfig(coupling="independent", coupling_seed=s))[0] for s in range(6)}
    assert len(drawn) > 1 and {"".join(sorted(d)) for d in drawn} == {"AAABBBCC"}
    one = FleetConfig(coupling="independent", coupling_seed=3)
    assert row(one) == row(one)


def test_rotation_moves_types_by_whole_subjects():
    assert row(FleetConfig(rotation=1))[0] == "CAAABBBC"
    assert row(FleetConfig(rotation=8)) == row(FleetConfig())
    assert row(FleetConfig(rotation=1), n=16)[0] == "CCAAAAAABBBBBBCC"
    assert row(FleetConfig(rotation=1, coupling="inverted")) == ("ACCBBBAA", [1, 4, 4, 4, 2, 2, 2, 1])


FIVE = {
    "hub": {"tops": 21, "active_power_w": 15, "sensors": "all", "uplink_mbit_s": 80, "count": 1},
    "gateway": {"tops": 10, "active_power_w": 8, "count": 1},
    "phone": {"tops": 5, "active_power_w": 4, "sensors": ["acc", "gyro"], "latency_s": 0.04, "share": 3},
    "watch": {"like": "phone", "tops": 0.8, "active_power_w": 1.2, "sensors": "acc", "uplink_mbit_s": 2, "share": 2},
    "ring": {"like": "watch", "tops": 0.1, "active_power_w": 0.3, "people": [3, 7]},
}


def five(people=8, **changes):
    fleet, types = build_fleet(FleetConfig(types=FIVE, **changes), MODALITIES, range(1, people + 1))
    return [c.device for c in fleet.clients], fleet, types


def test_a_table_of_five_types_by_hand():
    """People 3 and 7 have rings; of the other six clients one and one are counted, four fall 3 to 2: 2.4 and 1.6."""
    names, fleet, types = five()
    assert names == ["hub", "gateway", "ring", "phone", "phone", "watch", "ring", "watch"]
    assert fleet.types == fleet.order == ("hub", "gateway", "phone", "watch", "ring")
    ring = types["ring"]
    assert (ring.latency_s, ring.uplink_mbit_s, ring.sensors, ring.share) == (0.04, 2.0, ("acc",), None)
    assert ring.uplink_bytes_per_s == 250_000.0 and ring.ray_resources == {"type_ring": 1.0}
    assert types["gateway"].uplink_bytes_per_s == 12e6 and fleet[1].modalities == MODALITIES


def test_rotation_leaves_people_where_they_are():
    names, *_ = five(rotation=1)
    assert names == ["watch", "hub", "ring", "gateway", "phone", "phone", "ring", "watch"]


def test_inverted_goes_by_the_order_from_the_end():
    """Clients 0, 1, 3, 4, 5, 7, 2, 6 in order of their types get the same devices from the end; sensors stay."""
    names, fleet, _ = five(coupling="inverted")
    assert names == ["ring", "ring", "gateway", "watch", "watch", "phone", "hub", "phone"]
    assert fleet[0].modalities == MODALITIES and fleet[2].modalities == ("acc",)


def test_gap_of_any_table_by_hand():
    """Tops 16, 4 and 1 are 16 apart, x = 0, 1/2 and 1: at gap 4 they are 16, 8 and 4."""
    table = {name: {"tops": tops, "active_power_w": 1} for name, tops in (("a", 16), ("b", 4), ("c", 1))}
    types = device_types(FleetConfig(types=table, gap=4))
    assert [kind.tops for kind in types.values()] == pytest.approx([16.0, 8.0, 4.0])
    assert FleetConfig(types=table, gap=16).gap is None
    given = {**table, "b": {**table["b"], "gap_exponent": 0.25}}
    assert device_types(FleetConfig(types=given, gap=16))["b"].tops == 4.0, "the table's own gap changes nothing"
    assert device_types(FleetConfig(types=given, gap=81))["b"].tops == pytest.approx(16 / 3)


def test_the_order_of_types_is_part_of_the_identity():
    other = dict(reversed([(name, {"tops": 1, "active_power_w": 1}) for name in ("one", "two")]))
    here = parse({"fleet": {"types": dict(reversed(other.items()))}}).identity()
    assert here != parse({"fleet": {"types": other}}).identity()
    figures = {"C": {"active_power_w": 4}, "B": {"active_power_w": 9}}
    same = parse({"fleet": {"types": dict(reversed(figures.items()))}}).identity()
    assert same == parse({"fleet": {"types": figures}}).identity(), "a preset has its own order"


OTHERS = {name: row for name, row in FIVE.items() if name != "ring"}


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ({"2nd": {"tops": 1, "active_power_w": 1}}, "fleet.types.2nd: expected a name of letters"),
        ({**OTHERS, "Phone": OTHERS["phone"]}, "fleet.types names 'phone' twice"),
        ({"ring": {"like": "hub"}, **OTHERS}, "fleet.types.ring.like = 'hub', expected none in the first type"),
        ({"ring": {"like": "hub"}, **OTHERS}, "none in the first type; write hub before ring"),
        (
            {**OTHERS, "ring": {"like": "hub", "tops": float("nan")}},
            r"fleet.types.ring.tops = \.nan: expected a number",
        ),
        ({**OTHERS, "ring": {"like": "hub", "available": float("inf")}}, r"ring.available = \.inf: expected a number"),
        ({**OTHERS, "ring": {"like": "hub", "count": True}}, "ring.count = .*true.*: expected a whole number"),
        ({**OTHERS, "ring": {"like": "hub", "people": [True]}}, "ring.people = .*: expected a list of whole numbers"),
        ({**OTHERS, "ring": {"like": "hub", "sensors": ["acc", 2]}}, "ring.sensors = .*: expected all, or a list"),
        ({**OTHERS, "ring": {"like": "tv"}}, "expected one above it: hub, gateway, phone and watch"),
        (
            {**OTHERS, "ring": {"like": "hub", "people": 3, "share": 1}},
            "fleet.types.ring has people and share, expected one of people",
        ),
        ({**FIVE, "band": {"like": "hub", "people": [7]}}, "person 7 in two places of `people`"),
        (
            {**OTHERS, "ring": {"like": "hub", "available": 0}},
            "fleet.types.ring.available = 0.0, expected a chance above 0, at",
        ),
        ({"ring": {"active_power_w": 1}}, "has neither tops .* nor a profile, expected one"),
        ({**OTHERS, "ring": {"like": "hub", "sensors": 3}}, "ring.sensors = .*: expected all, or a list of text"),
    ],
)
def test_a_wrong_table_is_refused_by_the_type_and_key(types, said):
    with pytest.raises(ValidationError, match=said):
        FleetConfig.model_validate({"types": types})


def test_clients_that_do_not_add_up_are_refused_with_the_sum():
    both = {"a": {"tops": 2, "active_power_w": 1, "count": 3}, "b": {"tops": 1, "active_power_w": 1, "count": 2}}
    with pytest.raises(UserError, match=r"the counts \{a: 3, b: 2\} are 5 together, expected 8"):
        build_fleet(FleetConfig(types=both), MODALITIES, range(8))
    none = {name: {"tops": 1, "active_power_w": 1, "share": 0} for name in "ab"}
    with pytest.raises(UserError, match=r"fleet.types: all shares are 0, expected 8"):
        build_fleet(FleetConfig(types=none), MODALITIES, range(8))
    for row_, fault in (({"tops": 1}, "all are equally fast"), ({"profile": "p.json"}, "no device type has `tops`")):
        with pytest.raises(ValidationError, match=rf"fleet.gap = 10: {fault}, expected no gap"):
            FleetConfig.model_validate({"types": {n: {"active_power_w": 1, **row_} for n in "ab"}, "gap": 10})
    ecg = {"a": {"tops": 1, "active_power_w": 1, "sensors": "ecg"}}
    with pytest.raises(UserError, match=r"for example --set fleet.types.a.sensors=all"):
        build_fleet(FleetConfig(types=ecg), MODALITIES, range(8))
    with pytest.raises(ValueError, match=r"fleet.types: dsa_mini has no people \[77\], expected some of \[1, 2"):
        parse({"fleet": {"types": {**FIVE, "ring": {**FIVE["ring"], "people": [77]}}}})
    with pytest.raises(ValueError, match="mixes people in a client"):
        parse({"fleet": {"types": FIVE}, "data": {"partition": "dirichlet"}})


def test_counts_and_number_of_the_configuration_win():
    assert (
        row(FleetConfig(types={"A": {"share": 1}, "B": {"share": 1}, "C": {"share": 2}}, num_clients=8))[0]
        == "AABBCCCC"
    )
    with pytest.raises(UserError, match=r"num_clients = 9.*8 clients"):
        build_fleet(FleetConfig(num_clients=9), MODALITIES, range(8))


def test_figures_of_a_type_can_be_overridden():
    config = FleetConfig(types={"C": {"active_power_w": 4.0}}, gap=10)
    _, types = build_fleet(config, MODALITIES, range(8))
    assert (types["C"].active_power_w, types["C"].tops) == (4.0, 27.5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"types": {"D": {"tops": 1.0}}}, r"fleet.types.D has no active_power_w.*the types of paper are A, B and C"),
        ({"types": {"C": {"uplink_mbit_s": -3.0}}}, r"uplink_mbit_s = -3.0"),
        ({"types": {"C": {"peak_topz": 3.0}}}, r"peak_topz"),
        ({"types": {"C": {"share": -1}}}, r"share = -1.0, expected 0 or more"),
        ({"gap": 0.5}, r"gap"),
        ({"coupling": "loose"}, r"coupling"),
        ({"presett": "paper"}, r"presett"),
    ],
)
def test_bad_configuration_is_refused(given, said):
    with pytest.raises(ValidationError, match=said):
        FleetConfig.model_validate(given)


def test_modality_without_owner():
    with pytest.raises(UserError, match=r"no client owns modality 'mag'.*'A': 0.*fleet.types"):
        build_fleet(FleetConfig(types={"A": {"count": 0}}), MODALITIES, range(8))


def test_sensors_with_other_names_are_named_all_at_once_with_what_to_write():
    with pytest.raises(UserError) as caught:
        build_fleet(FleetConfig(), ("wrist", "hip", "ankle"), range(8))
    message = str(caught.value)
    assert "fleet.types.B.sensors names ['acc', 'gyro'] by default; fleet.types.C.sensors names ['acc'] by" in message
    assert message.endswith("--set 'fleet.types={B: {sensors: [wrist, hip]}, C: {sensors: wrist}}'")
    own = FleetConfig(types={"B": {"sensors": ["wrist", "hip"]}, "C": {"sensors": "wrist"}})
    fleet, _ = build_fleet(own, ("wrist", "hip", "ankle"), range(8))
    assert [c.modalities for c in fleet.clients][-1] == ("wrist",)


def test_types_that_no_client_has_need_no_sensors():
    fleet, _ = build_fleet(FleetConfig(types={"A": {"count": 3}}), ("wrist", "hip"), range(3))
    assert {c.modalities for c in fleet.clients} == {("wrist", "hip")}


def test_an_unknown_modality_or_none_is_refused():
    with pytest.raises(UserError, match=r"fleet.types.B.sensors names \['eeg'\].*'hr'"):
        build_fleet(FleetConfig(types={"B": {"sensors": ("acc", "eeg")}}), MODALITIES, range(8))
    with pytest.raises(UserError, match=r"fleet.types.C.sensors is empty"):
        build_fleet(FleetConfig(types={"C": {"sensors": ()}}), MODALITIES, range(8))


def test_owned_keeps_canonical_order():
    fleet, _ = build_fleet(FleetConfig(types={"B": {"sensors": ("hr", "acc")}}), MODALITIES, range(8))
    assert fleet[3].modalities == ("acc", "hr")


def test_with_windows():
    fleet, _ = build_fleet(FleetConfig(), MODALITIES, range(8), "dsa")
    assert [c.num_windows for c in with_windows(fleet, range(8)).clients] == list(range(8))
    with pytest.raises(UserError, match="3 window counts for 8 clients"):
        with_windows(fleet, [1, 2, 3])
