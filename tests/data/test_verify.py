"""Verification: unlisted bytes warn, implausible structure is a problem, an altered cache is noticed."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from relief_ray.data import Dataset, load_dataset
from relief_ray.data.loader import Recording
from relief_ray.data.registry import get_spec
from relief_ray.data.verify import structure, verify

SPEC = get_spec("mhealth")


def test_the_packaged_excerpt_is_known_and_sound() -> None:
    report = verify("dsa_mini")
    assert (report["ok"], report["num_known"], report["warnings"], report["origin"]) == (True, 1, [], "real")


def test_unlisted_bytes_warn_and_structure_decides(mhealth_root: Path) -> None:
    report = verify("mhealth", mhealth_root)
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
        facts={"nan_share": 0.01},
    )


def test_plausible(plausible: Recording) -> None:
    assert structure(SPEC, plausible) == []
    assert structure(SPEC, replace(plausible, labels=np.minimum(plausible.labels, 11))) == []


def test_implausible_facts_are_named(plausible: Recording) -> None:
    signal = plausible.signal.copy()
    signal[5, 10] = 9999.0
    labels = plausible.labels.copy()
    labels[: 50 * 59] = 2
    broken = replace(plausible, signal=signal, labels=labels, facts={"nan_share": 0.6})
    problems = structure(SPEC, broken)
    assert len(problems) == 3
    assert all(problem.startswith("subject 3: ") for problem in problems)
    assert "standing lasts 1 s" in problems[0]
    assert "nan_share is 0.60" in problems[1]
    assert "gyro reaches 9999" in problems[2]


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
    assert "the cached signal was altered" in report["problems"][0]
    shutil.rmtree(dataset.signal_path.parent)
    assert verify("dsa_mini")["ok"]
