import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from relief_ray.devices.fleet import FleetConfig, build_fleet, type_counts_for, with_windows
from relief_ray.support.errors import UserError

MODALITIES = ("acc", "gyro", "mag", "hr")
COUNTS = (3, 3, 2)


def row(config, n=None, modalities=MODALITIES, counts=COUNTS):
    fleet, _ = build_fleet(config, modalities, counts, n)
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
    assert type_counts_for(n, counts) == expected


@given(st.integers(1, 500), st.tuples(*[st.integers(0, 9)] * 3).filter(any))
def test_counts_add_up_and_stay_within_one_of_their_share(n, counts):
    per_type = type_counts_for(n, counts)
    assert sum(per_type) == n
    assert all(abs(f - n * c / sum(counts)) < 1 for f, c in zip(per_type, counts, strict=True))


def test_default_fleet_is_the_papers_and_picklable():
    fleet, types = build_fleet(FleetConfig(), MODALITIES, COUNTS)
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


def test_counts_and_number_of_the_configuration_win():
    assert row(FleetConfig(counts=(1, 1, 2), num_clients=8))[0] == "AABBCCCC"
    with pytest.raises(UserError, match=r"num_clients = 9.*8 clients"):
        build_fleet(FleetConfig(num_clients=9), MODALITIES, COUNTS, 8)


def test_figures_of_a_type_can_be_overridden():
    config = FleetConfig(types={"C": {"active_power_w": 4.0}}, gap=10)
    _, types = build_fleet(config, MODALITIES, COUNTS)
    assert (types["C"].active_power_w, types["C"].peak_tops) == (4.0, 27.5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"types": {"D": {"peak_tops": 1.0}}}, r"\['D'\], expected some of"),
        ({"types": {"C": {"uplink_bytes_per_s": -3.0}}}, r"uplink_bytes_per_s = -3.0"),
        ({"types": {"C": {"peak_topz": 3.0}}}, r"peak_topz"),
        ({"owned": {"X": ("acc",)}}, r"\['X'\]"),
        ({"counts": (0, 0, 0)}, r"not all 0"),
        ({"gap": 0.5}, r"gap"),
        ({"coupling": "loose"}, r"coupling"),
        ({"presett": "paper"}, r"presett"),
    ],
)
def test_bad_configuration_is_refused(given, said):
    with pytest.raises(ValidationError, match=said):
        FleetConfig.model_validate(given)


def test_modality_without_owner():
    with pytest.raises(UserError, match=r"no client owns modality 'mag'.*'A': 0.*fleet.owned"):
        build_fleet(FleetConfig(counts=(0, 3, 5)), MODALITIES, COUNTS)


def test_sensors_with_other_names_are_named_all_at_once_with_what_to_write():
    with pytest.raises(UserError) as caught:
        build_fleet(FleetConfig(), ("wrist", "hip", "ankle"), COUNTS)
    message = str(caught.value)
    assert "fleet.owned.B names ['acc', 'gyro'] by default; fleet.owned.C names ['acc'] by default" in message
    assert message.endswith("--set 'fleet.owned={B: [wrist, hip], C: [wrist]}'")
    fleet, _ = build_fleet(FleetConfig(owned={"B": ["wrist", "hip"], "C": "wrist"}), ("wrist", "hip", "ankle"), COUNTS)
    assert [c.modalities for c in fleet.clients][-1] == ("wrist",)


def test_types_that_no_client_has_need_no_sensors():
    fleet, _ = build_fleet(FleetConfig(counts=(3, 0, 0)), ("wrist", "hip"), (3, 0, 0))
    assert {c.modalities for c in fleet.clients} == {("wrist", "hip")}


def test_an_unknown_modality_or_none_is_refused():
    with pytest.raises(UserError, match=r"fleet.owned.B names \['eeg'\].*'hr'"):
        build_fleet(FleetConfig(owned={"B": ("acc", "eeg")}), MODALITIES, COUNTS)
    with pytest.raises(UserError, match=r"fleet.owned.C is empty"):
        build_fleet(FleetConfig(owned={"C": ()}), MODALITIES, COUNTS)


def test_owned_keeps_canonical_order():
    fleet, _ = build_fleet(FleetConfig(owned={"B": ("hr", "acc")}), MODALITIES, COUNTS)
    assert fleet[3].modalities == ("acc", "hr")


def test_with_windows():
    fleet, _ = build_fleet(FleetConfig(), MODALITIES, COUNTS)
    assert [c.num_windows for c in with_windows(fleet, range(8)).clients] == list(range(8))
    with pytest.raises(UserError, match="3 window counts for 8 clients"):
        with_windows(fleet, [1, 2, 3])
