"""One small study for all tests here: two methods, two seeds, two rounds, a backbone of a few hundred values."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import relief_ray as rr

SMALL = {"conv1": 2, "conv2": 2, "steps": 2, "fusion": 2}


@pytest.fixture(scope="session")
def small_study(run_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[rr.Study]:
    yield rr.run(
        "quick",
        strategies=["fedavg", "relief"],
        seeds=[0, 1],
        backbone=SMALL,
        out=tmp_path_factory.mktemp("study") / "small",
        quiet=True,
    )
