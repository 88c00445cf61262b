"""Verification: unlisted bytes warn, implausible structure is a problem, an altered cache is noticed."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from relief_ray.data import Dataset, load_dataset
from relief_ray.data.checks import structure
from relief_ray.data.dataset import parse_source, store
from relief_ray.data.describe import verify
from relief_ray.data.loader import Recording
from relief_ray.data.registry import get_spec
from relief_ray.support.errors import UserError

SPEC = get_spec("mhealth")


def test_the_packaged_excerpt_is_known_and_sound() -> None:
    report = verify("dsa_mini")
    assert (report["ok"], report["num_known"], report["warnings"], report["origin"]) == (True, 1, [], "real")


def test_unlisted_bytes_warn_and_structure_decides(mhealth_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIEF_DATA", str(mhealth_root))
    report = verify("mhealth")
    assert report["ok"], report["problems"]
    assert report["origin"] == "SYNTHETIC"
    assert report["num_known"] == 0
    assert len(report["warnings"]) == 10 and "differs from the list" in report["warnings"][0]
    json.dumps(report)


@pytest.fixture
def plausible() -> Recording:
    labels = np.repeat(np.arange(1, 13, dtype=np.int16), 50 * 60)
    return Recording(
        subject=3,
        signal=np.ones((len(labels), 23), np.float32),
        labels=labels,
        bouts=np.array([[0, len(labels)]]),
        filled=np.arange(len(labels))[:, None] % 100 < np.ones(23),
    )


def test_plausible(plausible: Recording) -> None:
    assert structure(SPEC, plausible) == []
    assert structure(SPEC, replace(plausible, labels=np.minimum(plausible.labels, 11))) == []


def test_implausible_facts_are_named(plausible: Recording) -> None:
    signal = plausible.signal.copy()
    signal[5, 10] = 9999.0
    labels = plausible.labels.copy()
    labels[: 50 * 59] = 2
    lost = np.arange(len(labels))[:, None] % 10 < 6 * (np.arange(23) == 22)  # one channel of 23
    broken = replace(plausible, signal=signal, labels=labels, filled=lost)
    problems = structure(SPEC, broken)
    assert len(problems) == 3
    assert all(problem.subject == 3 for problem in problems)
    assert problems[0].rule == "rates" and "standing lasts 1 s" in problems[0].found
    assert problems[1].rule == "finite" and "ecg: 60.0% of a channel's readings" in problems[1].found
    assert problems[2].rule == "channels" and "gyro reaches 9999" in problems[2].found


def test_an_altered_cache_is_noticed(
    mini: Dataset, mhealth_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path))
    dataset = load_dataset("dsa_mini")
    altered = bytearray(dataset.signal_path.read_bytes())
    altered[-1] ^= 1
    dataset.signal_path.write_bytes(altered)
    report = verify("dsa_mini")
    assert not report["ok"]
    (problem,) = report["problems"]
    assert f"{dataset.signal_path}: damaged cache entry (its bytes are not" in problem
    shutil.rmtree(dataset.signal_path.parent)
    assert verify("dsa_mini")["ok"]


@pytest.mark.parametrize("resealed", [False, True])
def test_swapped_labels_in_the_cache_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resealed: bool
) -> None:
    """Also where the entry was written anew, digests and all: the raw files say otherwise."""
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path))
    dataset = load_dataset("dsa_mini")
    folder, labels = dataset.signal_path.parent, dataset.labels.copy()
    labels[labels == 3] = 5
    if resealed:
        shutil.rmtree(folder)
        before, after = dataset.spec.labels[3], dataset.spec.labels[5]
        swapped = [
            replace(each, labels=np.where(each.labels == before, np.int16(after), each.labels))
            for each in parse_source(dataset.spec, dataset.source)
        ]
        store(dataset.spec, swapped, dataset.source, folder)
        assert (load_dataset("dsa_mini").labels == labels).all()
    else:
        np.save(folder / "labels.npy", labels)
        with pytest.raises(UserError, match=rf"labels\.npy: damaged cache entry .* delete the folder {folder}"):
            load_dataset("dsa_mini")
    report = verify("dsa_mini")
    (problem,) = report["problems"]
    assert not report["ok"] and str(folder / "labels.npy") in problem and "delete the folder" in problem
