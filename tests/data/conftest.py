"""A cache of the tests' own, the packaged excerpt, and small synthetic raw files."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relief_ray.data import Dataset, load_dataset
from relief_ray.data.fetch import synth
from relief_ray.data.loader import Members

REAL_DATA = os.environ.get("RELIEF_DATA")


@pytest.fixture(autouse=True, scope="session")
def own_cache(run_cache: Path) -> Path:
    """One cache for all tests of a process: two would depend on whose turn it was first."""
    return run_cache


@pytest.fixture(scope="session")
def mini(own_cache: Path) -> Dataset:
    return load_dataset("dsa_mini")


@pytest.fixture(scope="session")
def pamap2_root(own_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pamap2")
    synth("pamap2", root, seed=1, scale=0.05)
    return root


@pytest.fixture(scope="session")
def mhealth_root(own_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without most of the null rows, to be parsed quickly."""
    root = tmp_path_factory.mktemp("mhealth")
    for file in synth("mhealth", root, seed=1, scale=0.2).rglob("*.log"):
        first, *lines = file.read_bytes().splitlines(keepends=True)
        kept = [line for number, line in enumerate(lines) if number % 50 == 0 or not line.endswith(b"\t0\n")]
        file.write_bytes(b"".join([first, *kept]))
    return root


@pytest.fixture(scope="session")
def dsa_zip() -> Path:
    """The original archive; the tests that need it are skipped where it is not at hand."""
    archives = sorted(Path(REAL_DATA).glob("daily*.zip")) if REAL_DATA else []
    if not archives:
        pytest.skip("RELIEF_DATA does not hold the dsa archive")
    return archives[0]


@pytest.fixture(scope="session")
def members_of() -> Callable[[dict[str, bytes]], Members]:
    return lambda files: Members(names=tuple(sorted(files)), read=files.__getitem__)


@pytest.fixture(scope="session")
def as_text() -> Callable[[np.ndarray, str], bytes]:
    def write(table: np.ndarray, delimiter: str) -> bytes:
        return "\n".join(delimiter.join(f"{value:g}" for value in row) for row in table).encode() + b"\n"

    return write
