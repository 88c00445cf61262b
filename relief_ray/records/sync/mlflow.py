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
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from relief_ray.records.exported import ending_tags, exported_scalars, is_of_an_end
from relief_ray.records.ledger import End, LineFormat, scan
from relief_ray.records.lock import FileLock
from relief_ray.records.run_folder import ROUNDS_FILE, RUN_FILE, read_rounds, read_run
from relief_ray.records.schema import RoundRecord, RunRecord, RunStatus
from relief_ray.records.sync_state import Target, flat_params, read_sync, write_sync
from relief_ray.support.files import move
from relief_ray.support.masking import mask_logs, mask_text

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run


_SQLITE = "sqlite:///"
_EXPORT_LOCK = "sync.lock"
_STORE_WAIT_S = 120.0
MAX_BATCH_POINTS = 600
MAX_BATCH_PARAMS = 100
_MAX_DIGEST_CHARS = 36
_CHECKPOINTS = "checkpoints"

_ENDINGS = {"done": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "stopped": "KILLED"}

# Set only where the user has not: a dead server must be noticed in seconds, and no telemetry is sent.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}

# A cell that is computed again in its folder (`--rerun-stale`) is told from the one before by the moment of its making.
_CREATED, _REPLACED_BY = "relief.created", "relief.replaced_by"

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
            self._ended_ms = _unix_ms(self._record.finished) or 0
            self._format = LineFormat.of(self._record)
            self._end: End | None = None
            self._client, stored = _open_run(self._store, self._folder, self._record)
            self.run_id: str = stored.info.run_id
            self._tags = set(stored.data.tags)
            self._grid: str | None = stored.data.tags.get("mlflow.parentRunId")
            self._known = {key: _steps(self._client, self.run_id, key) for key in stored.data.metrics}
            self._target = Target(run_id=self.run_id)
        except BaseException:
            self._lock.release()
            raise

    def catch_up(self) -> int:
        """Send the points of all complete lines that the store lacks, note the progress, and return their number."""
        lines = scan(self._folder / ROUNDS_FILE, self._format, self._end)
        points = [point for record in lines.rounds for point in self._missing(record)]
        for start in range(0, len(points), MAX_BATCH_POINTS):
            batch = points[start : start + MAX_BATCH_POINTS]
            self._client.log_batch(self.run_id, metrics=batch)
            for point in batch:
                self._known.setdefault(point.key, set()).add(point.step)
        self._end = lines.end
        if lines.rounds:
            last = lines.rounds[-1]
            self._ended_ms = round(last.ended_unix_s * 1000)
            self._mark(self._target.model_copy(update={"step": last.round}))
        return len(points)

    def finish(self, status: RunStatus) -> None:
        """Copy the two files (with ``tracking.model`` the last state too), and say how and when the run has ended.

        The end is that of the last round, so that a run lasts as long as it took, whenever it is exported.
        """
        for name in (RUN_FILE, ROUNDS_FILE):
            self._client.log_artifact(self.run_id, str(self._folder / name))
        self._tag_end(ending_tags(read_run(self._folder)))
        if status in _ENDINGS:
            self._log_model()
            ended_ms = self._ended_ms or round(time.time() * 1000)
            self._client.set_terminated(self.run_id, _ENDINGS[status], ended_ms)
            if self._grid is not None:
                before = self._client.get_run(self._grid).info.end_time or 0
                self._client.set_terminated(self._grid, "FINISHED", max(before, ended_ms))  # until its last cell's end
            self._mark(self._target.model_copy(update={"status": status}))

    def _tag_end(self, tags: Mapping[str, str]) -> None:
        """Set the tags of a run's end; those of an earlier end, which the run went on from, are taken away."""
        earlier = set(filter(is_of_an_end, self._tags))
        for name in earlier - tags.keys():
            self._client.delete_tag(self.run_id, name)
        for name, text in tags.items():
            self._client.set_tag(self.run_id, name, text)
        self._tags = (self._tags - earlier) | tags.keys()

    def _log_model(self) -> None:
        """Copy the newest checkpoint: tensors of the server's state as safetensors, and what they belong to."""
        tracking = self._record.config.get("tracking")
        if not (isinstance(tracking, dict) and tracking.get("model")):
            return
        saved = sorted(self._folder.glob(f"{_CHECKPOINTS}/round-*"))
        if saved:
            self._client.log_artifacts(self.run_id, str(saved[-1]), "model")

    def close(self) -> None:
        """Release the lock, so that others can export this run."""
        self._lock.release()

    def _missing(self, record: RoundRecord) -> Sequence[Metric]:
        from mlflow.entities import Metric

        time_ms = round(record.ended_unix_s * 1000)
        scalars = exported_scalars(record, self._record.planning_model)
        return [
            Metric(key, value, time_ms, record.round)
            for key, value in scalars.items()
            if record.round not in self._known.get(key, ())
        ]

    def _mark(self, target: Target) -> None:
        self._target = target
        write_sync(self._folder, self._store.uri, target)


def _unix_ms(moment: str | None) -> int | None:
    """Milliseconds since 1970 of a moment in ISO 8601."""
    return None if not moment else round(datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp() * 1000)


def _steps(client: MlflowClient, run_id: str, key: str) -> set[int]:
    return {point.step for point in client.get_metric_history(run_id, key)}


def _store_lock(store: Store, beside: Path) -> FileLock:
    """One opener at a time: two processes that create one SQLite store break it, or make two parent runs."""
    database = store.database
    lock = database.with_name(f"{database.name}.lock") if database else beside / ".mlflow.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(lock, "the MLflow store", wait_s=_STORE_WAIT_S)


def _open_run(store: Store, folder: Path, record: RunRecord) -> tuple[MlflowClient, Run]:
    with _store_lock(store, folder.parent):
        client = _connect(store)
        experiment = _experiment(client, store)
        before = _find(client, experiment, {"relief.cell": record.cell, "relief.folder": str(folder)})
        run = next((r for r in before if r.data.tags.get(_CREATED) == record.created), None)
        if run is None:
            run = _create(client, experiment, folder, record)
            _mark_replaced(client, before, run.info.run_id)
            _log_dataset(client, run.info.run_id, record)
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
    mask_logs()  # urllib3 warns of every retry with its address
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


def _find(client: MlflowClient, experiment: str, tags: dict[str, str]) -> list[Run]:
    # Only the first tag is asked for: a folder's name may hold quotes, which the query language cannot.
    (first, value), *_ = tags.items()
    runs = client.search_runs([experiment], filter_string=f"tags.`{first}` = '{value}'", max_results=1000)
    return [r for r in runs if all(r.data.tags.get(k) == v for k, v in tags.items())]


def _mark_replaced(client: MlflowClient, before: Sequence[Run], run_id: str) -> None:
    """Name the runs that the folder held earlier, before the cell was computed again, as replaced."""
    for run in before:
        if _REPLACED_BY not in run.data.tags:
            client.set_tag(run.info.run_id, _REPLACED_BY, run_id)
            client.update_run(run.info.run_id, name=f"{run.info.run_name} (replaced)")


def _create(client: MlflowClient, experiment: str, folder: Path, record: RunRecord) -> Run:
    tags = {
        "relief.cell": record.cell,
        "relief.folder": str(folder),
        _CREATED: record.created,
        "relief.strategy": record.strategy,
        "relief.data_origin": record.data_origin,
        "relief.planning_model": record.planning_model,
        "mlflow.source.name": "relief-ray",
        "mlflow.source.type": "LOCAL",
        "mlflow.note.content": _description(folder, record),
    }
    started_ms = _started_ms(folder, record)
    if record.parent is not None:
        tags["mlflow.parentRunId"] = _study(client, experiment, record.parent, started_ms)
    return client.create_run(experiment, start_time=started_ms, tags=tags, run_name=record.name)


def _started_ms(folder: Path, record: RunRecord) -> int | None:
    """Moment at which the first round began; before there is one, that at which the run was made."""
    rounds = read_rounds(folder)
    if rounds:
        first = rounds[0]
        return round((first.ended_unix_s - first.wall_s) * 1000)
    return _unix_ms(record.created)


def _description(folder: Path, record: RunRecord) -> str:
    """Text of a run's page: what was run, what is simulated, where the records are."""
    data = record.config.get("data")
    facts = data if isinstance(data, dict) else {}
    place = ", ".join(f"{key} {facts[key]}" for key in ("name", "split", "fold") if facts.get(key) not in (None, ""))
    return (
        f"{record.method.title or record.strategy} on {place or 'data'} ({record.data_origin}). "
        f"Metrics that begin with `sim_` are simulated by the clock `{record.planning_model}`; the others were "
        f"measured here. Records: {folder}"
    )


def _log_dataset(client: MlflowClient, run_id: str, record: RunRecord) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    data = record.config.get("data")
    name = str(data.get("name") or "data") if isinstance(data, dict) else "data"
    source = json.dumps({"name": name, "origin": record.data_origin, "sha256": record.data_digest})
    dataset = Dataset(name=name, digest=record.data_digest[:_MAX_DIGEST_CHARS], source_type="local", source=source)
    client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])


def _study(client: MlflowClient, experiment: str, name: str, started_ms: int | None = None) -> str:
    """The run that stands for a grid or a plan: parent of a grid's cells, holder of reports and figures."""
    runs = client.search_runs([experiment], filter_string="tags.`relief.kind` = 'grid'", max_results=1000)
    study = next((r for r in runs if r.data.tags.get("relief.grid") == name), None)
    if study is None:
        tags = {"relief.kind": "grid", "relief.grid": name, "mlflow.source.name": "relief-ray"}
        study = client.create_run(experiment, start_time=started_ms, tags=tags, run_name=name)
        # It only groups cells and holds files; if the grid were killed, it would stay open for ever.
        client.set_terminated(study.info.run_id, "FINISHED", started_ms)
    return str(study.info.run_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class StudySummary:
    """Facts on a grid or plan for the line of its own run.

    Attributes:
        started: when its first run was made (ISO 8601); None: no run was.
        finished: when its last run was done; None: none is.
        note: text of its page.
        tags: by name.
        metrics: by name.
    """

    started: str | None
    finished: str | None
    note: str
    tags: Mapping[str, str]
    metrics: Mapping[str, float]


def log_study(store: Store, name: str, files: Sequence[Path], summary: StudySummary) -> str:
    """Copy files (a report, figures) and a summary to the run that stands for a grid or plan; return its id.

    Raises:
        Exception: whatever MLflow raises when the store cannot be used.
    """
    with _store_lock(store, files[0].parent):
        client = _connect(store)
        run_id = _study(client, _experiment(client, store), name, _unix_ms(summary.started))
    for tag, text in {**summary.tags, "mlflow.note.content": summary.note}.items():
        client.set_tag(run_id, tag, text)
    for key, value in summary.metrics.items():
        client.log_metric(run_id, key, value)
    for file in files:
        client.log_artifact(run_id, str(file))
    if (ended_ms := _unix_ms(summary.finished)) is not None:
        client.set_terminated(run_id, "FINISHED", ended_ms)
    return run_id


def log_run(store: Store, folder: Path, files: Sequence[Path]) -> str | None:
    """Copy files (its report) to the store's run of a run folder; return its id, None where it was never exported.

    Raises:
        Exception: whatever MLflow raises when the store cannot be used.
    """
    target = read_sync(folder).targets.get(mask_text(store.uri))
    if target is None:
        return None
    client = _connect(store)
    for file in files:
        client.log_artifact(target.run_id, str(file), "report")
    return target.run_id


def _log_params(client: MlflowClient, run_id: str, params: dict[str, str]) -> None:
    from mlflow.entities import Param

    rows = [Param(key, value) for key, value in params.items()]
    for start in range(0, len(rows), MAX_BATCH_PARAMS):
        client.log_batch(run_id, params=rows[start : start + MAX_BATCH_PARAMS])
