"""Built-in datasets by name: windows of 5.12 s, canonical columns, units of dsa."""

from collections.abc import Callable

import pytest

from relief_ray.data.config import DataConfig
from relief_ray.data.dataset import cache_key
from relief_ray.data.formats.dsa import with_units
from relief_ray.data.registry import DATASETS, get_spec
from relief_ray.support.errors import UserError


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_facts_are_consistent(name: str) -> None:
    spec = get_spec(name)
    assert spec.window == 5.12 * spec.rate_hz
    assert len(spec.labels) == len(spec.classes) == len(set(spec.classes))
    assert spec.columns()[-1][2] == spec.num_channels
    assert len(spec.max_abs) == len(spec.modalities)


def test_paper_shapes() -> None:
    assert get_spec("pamap2").modalities == (("acc", 9), ("gyro", 9), ("mag", 9), ("hr", 1))
    assert get_spec("mhealth").modalities == (("acc", 9), ("gyro", 6), ("mag", 6), ("ecg", 2))
    assert get_spec("dsa").modalities == (("acc", 15), ("gyro", 15), ("mag", 15))
    assert (get_spec("pamap2").window, get_spec("dsa").window) == (256, 128)


def test_units_come_in_canonical_order() -> None:
    spec = with_units(get_spec("dsa"), ("RL", "T"))
    assert spec.units == ("T", "RL")
    assert spec.modalities == (("acc", 6), ("gyro", 6), ("mag", 6))


@pytest.mark.parametrize("units", [("X",), ("T", "T")])
def test_bad_units_are_named(units: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"data\.units"):
        with_units(get_spec("dsa"), units)


def test_units_belong_to_dsa_only() -> None:
    with pytest.raises(UserError, match="only 'dsa' has selectable units"):
        with_units(get_spec("pamap2"), ("T",))


def test_unknown_name_lists_known_ones() -> None:
    with pytest.raises(UserError, match="pamap2"):
        get_spec("pamap")


CACHE_KEYS = {
    "pamap2": "73dd40a91485ba134c68a1a9de43005e4b4b5eae219efe058a1344acd49120b8",
    "mhealth": "62cfd30f7b7e6ab0503d10cf602416ecf9055b10b16d100825597fce9ee53bb5",
    "dsa": "4c38bd87cb54a868e4284743ab3334274127a717dd7f19bb3da452f2009329b6",
    "dsa_mini": "d2760e938a7ed0d67d0828208c1cc9fc53070934fcf713ae09f8b0900d82a00d",
}


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_cache_keys_stay(name: str) -> None:
    """Another key would parse everything anew and give every run another data digest."""
    assert cache_key(get_spec(name), "x") == CACHE_KEYS[name]


OWN = """
from dataclasses import replace

from relief_ray.data.formats.mhealth import MHEALTH

LAB = replace(MHEALTH, spec=replace(MHEALTH.spec, name="lab", rate_hz=25))
WRONG = MHEALTH.spec
"""


def test_a_users_loader_goes_by_its_import_path_or_its_file(write: Callable[[str], str]) -> None:
    module = write(OWN)
    spec = get_spec(f"{module}:LAB")
    assert (spec.name, spec.window) == (f"{module}:LAB", 128)
    assert DataConfig(name=f"{module}.py:LAB") == DataConfig(name=f"{module}:LAB")
    with pytest.raises(UserError, match=r"found a DatasetSpec, expected a relief_ray\.data\.loader\.Loader"):
        get_spec(f"{module}:WRONG")
