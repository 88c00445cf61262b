"""Synthetic raw files: the originals' format, seeded, with gaps and absent activities, and never taken for real."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relief_ray.data import load_dataset
from relief_ray.data.describe import digests
from relief_ray.data.fetch import synth
from relief_ray.data.registry import get_spec
from relief_ray.data.source import MARKER, find_source
from relief_ray.support.errors import UserError


def test_the_seed_decides_every_byte(tmp_path: Path) -> None:
    spec = get_spec("mhealth")
    contents = [
        digests(spec, find_source(spec, synth("mhealth", tmp_path / str(n), seed, 0.01)))
        for n, seed in enumerate((5, 5, 6))
    ]
    assert contents[0] == contents[1]
    assert not set(contents[0].values()) & set(contents[2].values())


@pytest.mark.ci
@pytest.mark.parametrize(("name", "columns"), [("pamap2", 54), ("mhealth", 24)])
def test_the_originals_columns(name: str, columns: int, request: pytest.FixtureRequest) -> None:
    file = next(request.getfixturevalue(f"{name}_root").rglob("*ubject*1.*"))
    lines = file.read_bytes().splitlines()
    assert {len(line.split()) for line in lines} == {columns}
    if name == "pamap2":
        assert any(b"NaN" in line for line in lines)


@pytest.mark.ci
def test_pamap2_resembles_the_original(pamap2_root: Path) -> None:
    dataset = load_dataset("pamap2", pamap2_root)
    assert dataset.facts["103"]["missing_labels"] == [5, 6, 7, 24]
    lines = next(pamap2_root.rglob("subject101.dat")).read_bytes().splitlines()
    share = np.mean([line.split()[2] == b"NaN" for line in lines])
    assert share == pytest.approx(1 - 1 / 11, abs=0.01)  # about 9 readings a second at 100 Hz
    assert not [row for row in dataset.sensors if row["sensor"] == "hr" and row["filled"]]
    assert np.isfinite(np.asarray(dataset.signal())).all()


@pytest.mark.ci
@pytest.mark.parametrize("name", ["pamap2", "mhealth"])
def test_without_its_marker_it_is_still_known(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    root = shutil.copytree(request.getfixturevalue(f"{name}_root"), tmp_path / "copy")
    next(root.rglob(MARKER)).unlink()
    (root / f"{name}_SYNTHETIC").rename(root / name)
    assert not find_source(get_spec(name), root).synthetic
    assert load_dataset(name, root).origin == "SYNTHETIC"


@pytest.mark.slow
def test_dsa_layout(tmp_path: Path) -> None:
    synth("dsa", tmp_path, seed=2)
    dataset = load_dataset("dsa", tmp_path)
    assert (dataset.origin, dataset.signal().shape) == ("SYNTHETIC", (1_140_000, 45))


@pytest.mark.parametrize(("name", "scale"), [("dsa_mini", 1.0), ("mhealth", 0.0), ("mhealth", 1.5), ("dsa", 0.5)])
def test_refused(tmp_path: Path, name: str, scale: float) -> None:
    with pytest.raises(UserError, match=f"data synth '?{name}"):
        synth(name, tmp_path, scale=scale)
    assert list(tmp_path.iterdir()) == []


OWN = """
from dataclasses import replace

from relief_ray.data.formats.mhealth import MHEALTH

LAB = replace(MHEALTH, spec=replace(MHEALTH.spec, name="lab", subjects=(1, 2)))
NONE = replace(LAB, synthesise=None)
"""


def test_a_users_loader_writes_its_own(write: Callable[[str], str], tmp_path: Path) -> None:
    module = write(OWN)
    folder = synth(f"{module}.py:LAB", tmp_path / "data", scale=0.01)
    assert folder == tmp_path / "data" / f"{module}.LAB_SYNTHETIC"
    assert sorted(p.name for p in folder.rglob("*.log")) == ["mHealth_subject1.log", "mHealth_subject2.log"]
    assert find_source(get_spec(f"{module}:LAB"), tmp_path / "data").synthetic
    with pytest.raises(UserError, match="no synthetic form; choose one of pamap2, mhealth, dsa"):
        synth(f"{module}:NONE", tmp_path)
