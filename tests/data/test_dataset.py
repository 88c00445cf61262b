"""Loading: once parsed, then mapped; changed files are parsed anew; units are cut from the whole."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from relief_ray.data import DataConfig, federate, load_dataset, num_clients
from relief_ray.data.dataset import LABELS, assemble, parse_source
from relief_ray.data.fetch import synth
from relief_ray.data.loader import NULL, Recording
from relief_ray.data.registry import get_spec
from relief_ray.data.source import find_source
from relief_ray.support.errors import UserError


def test_the_second_load_does_not_parse(mhealth_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_dataset("mhealth", mhealth_root)
    monkeypatch.setattr("relief_ray.data.dataset.parse_source", lambda *args: pytest.fail("parsed again"))
    second = load_dataset("mhealth", mhealth_root)
    assert second.digest == first.digest
    assert second.signal_path == first.signal_path
    with pytest.raises(ValueError, match="read-only"):
        second.signal()[0, 0] = 1.0


def test_a_changed_file_is_parsed_anew(mhealth_root: Path, tmp_path: Path) -> None:
    root = shutil.copytree(mhealth_root, tmp_path / "copy")
    before = load_dataset("mhealth", root)
    file = root / "mhealth_SYNTHETIC" / "MHEALTHDATASET" / "mHealth_subject4.log"
    lines = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join(lines[:-7]) + b"\n")
    after = load_dataset("mhealth", root)
    assert after.digest != before.digest


@pytest.mark.ci
@pytest.mark.parametrize("name", ["pamap2", "mhealth"])
def test_synthetic_raw_files_go_all_the_way(name: str, request: pytest.FixtureRequest) -> None:
    dataset = load_dataset(name, request.getfixturevalue(f"{name}_root"))
    config = DataConfig(name=name, split="random_leaky")  # so short are these bouts
    data = federate(dataset, config, [dataset.spec.names] * num_clients(dataset, config))
    assert data.origin == dataset.origin == "SYNTHETIC"
    loaded = data.clients[0].load()
    assert {key: block.shape[1:] for key, block in loaded.items()} == {k: (c, 256) for k, c in dataset.spec.modalities}
    assert all(np.isfinite(block).all() for block in loaded.values())


def test_a_missing_subject_is_named(mhealth_root: Path, tmp_path: Path) -> None:
    root = shutil.copytree(mhealth_root, tmp_path / "copy")
    (root / "mhealth_SYNTHETIC" / "MHEALTHDATASET" / "mHealth_subject7.log").unlink()
    with pytest.raises(UserError, match=r"1 of 10 files .*mHealth_subject7\.log"):
        parse_source(get_spec("mhealth"), find_source(get_spec("mhealth"), root))


@pytest.mark.slow
def test_bouts_of_full_length_give_all_parts(tmp_path: Path) -> None:
    synth("mhealth", tmp_path)
    dataset, config = load_dataset("mhealth", tmp_path), DataConfig(name="mhealth", num_clients=100)
    data = federate(dataset, config, [dataset.spec.names] * 100)
    assert sum(count > 0 for count in data.coverage["test"]) == 12
    assert min(map(len, data.clients)) >= 12


@pytest.mark.slow
def test_the_original_dsa_within_its_limits(dsa_zip: Path) -> None:
    """First load under three minutes, second under five seconds, units equal the whole's columns."""
    first = load_dataset("dsa", dsa_zip.parent)
    assert first.load_s < 180
    start = time.monotonic()
    whole = load_dataset("dsa", dsa_zip.parent)
    assert time.monotonic() - start < 5
    assert whole.signal().shape == (1_140_000, 45)
    part = load_dataset("dsa", dsa_zip.parent, units=("LL", "T"))
    for (_, first_part, _), (_, first_whole, _) in zip(part.spec.columns(), whole.spec.columns(), strict=True):
        np.testing.assert_array_equal(
            part.signal()[::1000, first_part : first_part + 6],
            whole.signal()[::1000][:, first_whole + np.array([0, 1, 2, 12, 13, 14])],
        )


def test_nothing_is_left_beside_the_entries(own_cache: Path, mhealth_root: Path) -> None:
    load_dataset("mhealth", mhealth_root)
    assert not [name for name in os.listdir(own_cache / "parsed") if name.endswith(".part")]


@pytest.mark.parametrize("kind", [np.int16, np.uint8, np.int64, np.uint64, np.dtype(">i4")])
def test_rows_without_an_activity_are_no_class_whatever_their_codes(kind) -> None:
    spec = replace(get_spec("mhealth"), classes=("walk", "run", "rest"), labels=(1, 2, 255), null_labels=(-1, 0, 999))
    codes = np.array([1, 0, 2, 255, 254, 1], kind)
    recording = Recording(subject=1, signal=np.zeros((6, 6)), labels=codes, bouts=np.array([[0, 6]]))
    assert assemble(spec, [recording])[LABELS].tolist() == [0, NULL, 1, 2, NULL, 0]
