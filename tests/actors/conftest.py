"""Tiny runs in this process, two rounds of a backbone of a few hundred values, and one Ray cluster for all tests."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from actors.cli import app
from actors.runtime.session import SessionOptions, ray_session

ROOT = Path(__file__).parents[2]
SMALL = [f"--set=backbone.{key}=2" for key in ("conv1", "conv2", "steps", "fusion")]
Invoke = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True, scope="session")
def own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELIEF_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("RELIEF_DATA", raising=False)
        yield


@pytest.fixture(scope="session")
def cluster(own_places: None, run_cache: Path) -> Iterator[None]:
    """A local cluster of two cores that offers three devices of each type; all tests of a process share it."""
    resources = {"type_a": 3.0, "type_b": 3.0, "type_c": 3.0, "server": 1.0}
    with ray_session(SessionOptions(num_cpus=2, object_store_mib=256, resources=resources)):
        yield


@pytest.fixture(scope="session")
def invoke() -> Invoke:
    """Runs a command line in this process."""

    def run(*args: object) -> Result:
        return CliRunner().invoke(app, [str(a) for a in args], prog_name="relief-ray")

    return run


@pytest.fixture(scope="session")
def start() -> Iterator[Start]:
    """Starts a command line as a process of its own; what is left at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(*args: object, preexec: Callable[[], None] | None = None) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "actors.cli", *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            preexec_fn=preexec,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def runs(invoke: Invoke, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs of four strategies on a fleet so slow that RELIEF has to refuse groups."""
    out = tmp_path_factory.mktemp("runs") / "smoke"
    result = invoke(
        "run", "smoke", "--out", out, "--strategies", "fedavg,relief,v1,v3", *SMALL, "--set=costs.utilisation=3e-7"
    )
    assert result.exit_code == 0, result.output
    return out
