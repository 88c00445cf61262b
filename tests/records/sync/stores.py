"""Stores of MLflow for the tests of the export: what is in one, and what should be."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from relief_ray.records.run_folder import read_run
from relief_ray.records.sync.mlflow import store_uri
from tests.sealed import put_run

POINTS_A_ROUND = 10  # of the toy run, which is never evaluated and goes on without a client
START_S = 60.0


def stored(folder: Path, uri: str | None = None, name: str = "relief-ray") -> list[object]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store_uri(folder, uri))
    experiment = client.get_experiment_by_name(name)
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def points(folder: Path, uri: str | None = None) -> Counter[tuple[str, int]]:
    """How often each (metric, round) is in the store, over all runs."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store_uri(folder, uri))
    logged = [
        p for r in stored(folder, uri) for key in r.data.metrics for p in client.get_metric_history(r.info.run_id, key)
    ]
    return Counter((p.key, p.step) for p in logged)


def expected(rounds: int) -> Counter[tuple[str, int]]:
    costs = ("sim_round_s", "sim_time_s", "sim_energy_j", "bytes_up", "bytes_down", "wall_s")
    keys = ("loss", "sim_speedup", "trained_fraction", "clients_used", *costs)
    return Counter((key, round_) for key in keys for round_ in range(1, rounds + 1))


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + START_S
    while not condition():
        assert time.monotonic() < until, "the export did not get there"
        time.sleep(0.05)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def configured(run: Path, **tracking: object) -> None:
    record = read_run(run)
    changed = record.model_copy(update={"config": {**record.config, "tracking": tracking}})
    put_run(run, changed)
