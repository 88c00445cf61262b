from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).with_name("scenario.py")
Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def scenario() -> ModuleType:
    spec = importlib.util.spec_from_file_location("relief_records_scenario", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROGRAM.parents[2]), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def program(environment: dict[str, str]) -> Iterator[Program]:
    """Runs a command of the scenario in a process of its own, forked from one that has imported torch once."""
    line = [sys.executable, str(PROGRAM), "serve"]
    with subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:

        def call(command: str, *args: object, check: bool = True) -> subprocess.CompletedProcess[str]:
            words = [command, *map(str, args)]
            server.stdin.write(json.dumps(words) + "\n")
            server.stdin.flush()
            done = subprocess.CompletedProcess(words, **json.loads(server.stdout.readline()))
            if check:
                assert done.returncode == 0, done.stderr
            return done

        yield call


@pytest.fixture(scope="session")
def finished(scenario: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted; read only."""
    path = tmp_path_factory.mktemp("golden") / "run"
    scenario.drive(path)
    return path


@pytest.fixture
def rows(program: Program) -> Callable[..., list[dict[str, object]]]:
    def call(*args: object) -> list[dict[str, object]]:
        return json.loads(program("sweep", *args).stdout)

    return call


@pytest.fixture(scope="session")
def empty_store(finished, tmp_path_factory) -> Path:
    """A store that only knows its schema: making one takes seconds."""
    from relief_ray.records.sync import mlflow as mlflow_store
    from relief_ray.records.sync.mlflow import Store, store_uri

    folder = tmp_path_factory.mktemp("store")
    shutil.copytree(finished, folder / "run")
    mlflow_store._connect(Store(uri=store_uri(folder / "run")))
    return folder / "mlflow.db"


@pytest.fixture
def run(finished, empty_store, tmp_path) -> Path:
    """A finished run beside a store that does not have it yet."""
    shutil.copytree(finished, tmp_path / "run")
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return tmp_path / "run"
