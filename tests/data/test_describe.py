"""Descriptions: seconds, ranges and windows that add up."""

import json
from pathlib import Path

import numpy as np
import pytest

from relief_ray.data import DataConfig, Dataset
from relief_ray.data.describe import describe, list_datasets


def test_the_excerpt(mini: Dataset) -> None:
    report = describe(mini, DataConfig())
    assert report["activity_s"]["1"] == dict.fromkeys(mini.spec.classes, 120.0)
    assert report["windows"] == {"train": 8 * 544, "validation": 576, "test": 1216}
    assert sum(report["coverage"]["train"]) == report["windows"]["train"]
    signal = np.asarray(mini.signal())
    assert report["ranges"]["gyro"]["max"] == signal[:, 3:6].max()
    assert report["ranges"]["mag"]["mean"] == pytest.approx(signal[:, 6:].mean(), abs=1e-6)
    assert "10.24432/C5C59F" in report["doi"] and "Altun" in report["citation"] and "CC BY 4.0" in report["licence"]
    assert json.loads(json.dumps(report)) == report


def test_the_list_tells_found_from_absent(mhealth_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIEF_DATA", str(mhealth_root))
    listed = {line["name"]: line for line in list_datasets()}
    assert listed["mhealth"]["origin"] == "SYNTHETIC"
    assert listed["dsa_mini"]["origin"] == "real"
    assert listed["pamap2"]["path"] is None
