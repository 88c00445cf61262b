"""Copies a run to an MLflow store; the only module that imports MLflow, and only once an export begins.

Points are compared with the run's own history in the store before they are sent, so that each arrives exactly once,
even where a process was killed between sending and remembering.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, JsonValue, ValidationError

from relief_ray.files import move, write_atomic
from relief_ray.records.base import Record, Text
from relief_ray.records.lock import FileLock
from relief_ray.records.metrics import round_scalars
from relief_ray.records.redact import mask_text
from relief_ray.records.run_folder import ROUNDS_FILE, RUN_FILE, read_run, scan
from relief_ray.records.schema import RoundRecord, RunRecord, RunStatus

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run


_SYNC_FILE = "sync.json"

_MAX_PARAM_CHARS = 500


class Target(Record):
    """Progress of the export to one store.

    Attributes:
        run_id: id of the run in the store.
        step: the last exported round.
        status: final status that was sent; None before the end.
    """

    run_id: str
    step: int | None = None
    status: RunStatus | None = None


class SyncState(Record):
    """``sync.json``: one target per store (its URI without credentials), and the last failure."""

    targets: dict[str, Target] = Field(default_factory=dict)
    error: Text | None = None


def flat_params(config: Mapping[str, JsonValue], prefix: str = "") -> dict[str, str]:
    """Flatten a configuration to dotted names and short texts; lists stay one value."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= flat_params(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = (value if isinstance(value, str) else json.dumps(value))[:_MAX_PARAM_CHARS]
    return flat


def read_sync(folder: Path) -> SyncState:
    """Read ``sync.json`` of a run folder; empty where it is missing or unreadable: the store is asked in any case."""
    try:
        return SyncState.model_validate_json((folder / _SYNC_FILE).read_bytes())
    except (OSError, ValidationError):
        return SyncState()


def write_sync(folder: Path, uri: str, target: Target) -> None:
    """Note the progress of one store."""
    state = SyncState(targets={**read_sync(folder).targets, mask_text(uri): target})
    write_atomic(folder / _SYNC_FILE, (state.model_dump_json(indent=1) + "\n").encode())


def write_failure(folder: Path, error: str) -> None:
    """Note why an export failed; the noted progress stays."""
    state = SyncState(targets=read_sync(folder).targets, error=error)
    write_atomic(folder / _SYNC_FILE, (state.model_dump_json(indent=1) + "\n").encode())


_SQLITE = "sqlite:///"

_EXPORT_LOCK = "sync.lock"

_STORE_WAIT_S = 120.0

MAX_BATCH_POINTS = 600

MAX_BATCH_PARAMS = 100

_ENDINGS = {"done": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}

# Set only where the user has not: a dead server must be noticed in seconds, and no telemetry is sent.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}

# Kind of our experiments. It does not make the pages of 3.17 open on runs: the address does
# (actors/terminal/mlflow_export.py).
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """A database file or server, and the experiment in it; ``uri`` with an absolute path if it is a file."""

    uri: str
    experiment: str = "relief-ray"

    @property
    def database(self) -> Path | None:
        """Path of the SQLite file; None for servers."""
        return Path(self.uri.removeprefix(_SQLITE)) if self.uri.startswith(_SQLITE) else None


def store_uri(folder: Path, uri: str | None = None) -> str:
    """Return ``uri`` with an absolute path if it is a SQLite file; by default ``mlflow.db`` beside the run folder."""
    if uri is None:
        return f"{_SQLITE}{folder.resolve().parent / 'mlflow.db'}"
    return f"{_SQLITE}{Path(uri.removeprefix(_SQLITE)).absolute()}" if uri.startswith(_SQLITE) else uri


class Exporter:
    """One run's connection to a store, under the folder's export lock."""

    def __init__(self, folder: Path, store: Store) -> None:
        """Open the store, find or make the run, and ask which points it has.

        Raises:
            UserError: another export of this folder is at work.
            Exception: whatever MLflow raises when the store cannot be used.
        """
        self._folder, self._store = folder.resolve(), store
        self._lock = FileLock(folder / _EXPORT_LOCK, "the export of this run")
        try:
            self._record = read_run(folder)
            self._client, stored = _open_run(self._store, self._folder, self._record)
            self.run_id: str = stored.info.run_id
            self._grid: str | None = stored.data.tags.get("mlflow.parentRunId")
            self._known = {key: _steps(self._client, self.run_id, key) for key in stored.data.metrics}
            self._num_bytes = 0
            self._target = Target(run_id=self.run_id)
        except BaseException:
            self._lock.release()
            raise

    def catch_up(self) -> int:
        """Send the points of all complete lines that the store lacks, note the progress, and return their number."""
        lines = scan(self._folder / ROUNDS_FILE, self._num_bytes)
        points = [point for record in lines.rounds for point in self._missing(record)]
        for start in range(0, len(points), MAX_BATCH_POINTS):
            batch = points[start : start + MAX_BATCH_POINTS]
            self._client.log_batch(self.run_id, metrics=batch)
            for point in batch:
                self._known.setdefault(point.key, set()).add(point.step)
        self._num_bytes = lines.num_bytes
        if lines.rounds:
            self._mark(self._target.model_copy(update={"step": lines.rounds[-1].round}))
        return len(points)

    def finish(self, status: RunStatus) -> None:
        """Copy the two files and, where the run has ended, set its status."""
        for name in (RUN_FILE, ROUNDS_FILE):
            self._client.log_artifact(self.run_id, str(self._folder / name))
        if status in _ENDINGS:
            self._client.set_terminated(self.run_id, _ENDINGS[status])
            if self._grid is not None:
                self._client.set_terminated(self._grid, "FINISHED")  # a grid lasts until its last cell's end
            self._mark(self._target.model_copy(update={"status": status}))

    def close(self) -> None:
        """Release the lock, so that others can export this run."""
        self._lock.release()

    def _missing(self, record: RoundRecord) -> Sequence[Metric]:
        from mlflow.entities import Metric

        time_ms = round(record.ended_unix_s * 1000)
        scalars = round_scalars(record, self._record.planning_model)
        return [
            Metric(key, value, time_ms, record.round)
            for key, value in scalars.items()
            if record.round not in self._known.get(key, ())
        ]

    def _mark(self, target: Target) -> None:
        self._target = target
        write_sync(self._folder, self._store.uri, target)


def _steps(client: MlflowClient, run_id: str, key: str) -> set[int]:
    return {point.step for point in client.get_metric_history(run_id, key)}


def _open_run(store: Store, folder: Path, record: RunRecord) -> tuple[MlflowClient, Run]:
    # One opener at a time: two processes that create one SQLite store break it, or make two parent runs.
    database = store.database
    lock = database.with_name(f"{database.name}.lock") if database else folder.parent / ".mlflow.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock, "the MLflow store", wait_s=_STORE_WAIT_S):
        client = _connect(store)
        experiment = _experiment(client, store)
        run = _find(client, experiment, {"relief.cell": record.cell, "relief.folder": str(folder)})
        if run is None:
            run = _create(client, experiment, folder, record)
        elif run.info.status != "RUNNING":
            client.update_run(run.info.run_id, status="RUNNING")
    tags = {"relief.code_version": record.code_version, "relief.source_digest": record.source_digest}
    for name, value in tags.items():
        client.set_tag(run.info.run_id, name, value)
    _log_params(client, run.info.run_id, flat_params(record.config))
    return client, run


def _connect(store: Store) -> MlflowClient:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    database = store.database
    # Made beside and renamed: a process killed in the middle of the schema would leave a broken store. Such leftovers
    # are removed; the lock makes sure that no other process is still writing them.
    for leftover in database.parent.glob(f".{database.name}.*.new*") if database is not None else ():
        leftover.unlink()
    if database is not None and not database.exists():
        beside = database.with_name(f".{database.name}.{time.time_ns()}.new")
        MlflowClient(tracking_uri=f"{_SQLITE}{beside}").search_experiments(max_results=1)
        move(beside, database)
    return MlflowClient(tracking_uri=store.uri)


def _experiment(client: MlflowClient, store: Store) -> str:
    experiment = client.get_experiment_by_name(store.experiment)
    if experiment is None:
        place = store.database.parent / "mlartifacts" / store.experiment if store.database else None
        with suppress(Exception):  # another machine may have been faster; the second query decides
            client.create_experiment(
                store.experiment, artifact_location=place.as_uri() if place else None, tags=_EXPERIMENT_TAGS
            )
        experiment = client.get_experiment_by_name(store.experiment)
    assert experiment is not None, f"experiment {store.experiment!r} was neither found nor made"
    return str(experiment.experiment_id)


def _find(client: MlflowClient, experiment: str, tags: dict[str, str]) -> Run | None:
    # Only the first tag is asked for: a folder's name may hold quotes, which the query language cannot.
    (first, value), *_ = tags.items()
    runs = client.search_runs([experiment], filter_string=f"tags.`{first}` = '{value}'", max_results=1000)
    return next((r for r in runs if all(r.data.tags.get(k) == v for k, v in tags.items())), None)


def _create(client: MlflowClient, experiment: str, folder: Path, record: RunRecord) -> Run:
    tags = {
        "relief.cell": record.cell,
        "relief.folder": str(folder),
        "relief.strategy": record.strategy,
        "relief.data_origin": record.data_origin,
        "relief.planning_model": record.planning_model,
    }
    if record.parent is not None:
        tags["mlflow.parentRunId"] = _parent(client, experiment, record.parent)
    return client.create_run(experiment, tags=tags, run_name=record.name)


def _parent(client: MlflowClient, experiment: str, name: str) -> str:
    runs = client.search_runs([experiment], filter_string="tags.`relief.kind` = 'grid'", max_results=1000)
    parent = next((r for r in runs if r.data.tags.get("relief.grid") == name), None)
    if parent is None:
        parent = client.create_run(experiment, tags={"relief.kind": "grid", "relief.grid": name}, run_name=name)
        # A parent only groups its cells; if the grid were killed, it would stay open for ever.
        client.set_terminated(parent.info.run_id, "FINISHED")
    return str(parent.info.run_id)


def _log_params(client: MlflowClient, run_id: str, params: dict[str, str]) -> None:
    from mlflow.entities import Param

    rows = [Param(key, value) for key, value in params.items()]
    for start in range(0, len(rows), MAX_BATCH_PARAMS):
        client.log_batch(run_id, params=rows[start : start + MAX_BATCH_PARAMS])
