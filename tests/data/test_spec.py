"""Datasets' facts: windows of 5.12 s, canonical columns, units of dsa."""

import pytest

from relief_ray.data.spec import DATASETS, get_spec, with_units
from relief_ray.errors import UserError


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_facts_are_consistent(name: str) -> None:
    spec = DATASETS[name]
    assert spec.window == 5.12 * spec.rate_hz
    assert len(spec.labels) == len(spec.classes) == len(set(spec.classes))
    assert sum(spec.type_counts) == len(spec.subjects)
    assert spec.columns()[-1][2] == spec.num_channels
    assert len(spec.max_abs) == len(spec.modalities)


def test_paper_shapes() -> None:
    assert DATASETS["pamap2"].modalities == (("acc", 9), ("gyro", 9), ("mag", 9), ("hr", 1))
    assert DATASETS["mhealth"].modalities == (("acc", 9), ("gyro", 6), ("mag", 6), ("ecg", 2))
    assert DATASETS["dsa"].modalities == (("acc", 15), ("gyro", 15), ("mag", 15))
    assert (DATASETS["pamap2"].window, DATASETS["dsa"].window) == (256, 128)


def test_units_come_in_canonical_order() -> None:
    spec = with_units(DATASETS["dsa"], ("RL", "T"))
    assert spec.units == ("T", "RL")
    assert spec.modalities == (("acc", 6), ("gyro", 6), ("mag", 6))


@pytest.mark.parametrize("units", [("X",), ("T", "T")])
def test_bad_units_are_named(units: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"data\.units"):
        with_units(DATASETS["dsa"], units)


def test_units_belong_to_dsa_only() -> None:
    with pytest.raises(UserError, match="only 'dsa' has selectable units"):
        with_units(DATASETS["pamap2"], ("T",))


def test_unknown_name_lists_known_ones() -> None:
    with pytest.raises(UserError, match="pamap2"):
        get_spec("pamap")
