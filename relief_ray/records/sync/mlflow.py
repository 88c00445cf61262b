"""Copies runs to an MLflow store; the only module that imports MLflow, and only once an export begins.

Points are compared with a run's own history in the store before they are sent, so that each arrives exactly once, even
where a process was killed between sending and remembering. ``sync`` does in one go what a sender does while a run goes
on, after hours of a dead server or after a killed driver.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from glob import escape
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from pydantic import Field, JsonValue

from relief_ray.records.cells import PLAN_FILE, read_plan_file, refuse_contradicted, refuse_linked
from relief_ray.records.checkpoint import AGAIN, generations
from relief_ray.records.facts import sentence
from relief_ray.records.identity import flat, foreign, why_foreign
from relief_ray.records.ledger import LedgerEnd, LineFormat, scan
from relief_ray.records.lock import FileLock
from relief_ray.records.metrics import round_scalars
from relief_ray.records.run_folder import ROUNDS_FILE, RUN_FILE, read_rounds, read_run
from relief_ray.records.schema import (
    Record,
    RoundRecord,
    RunRecord,
    RunStatus,
    Text,
    config_value,
    has_folds,
    page_of,
    read_page,
    section,
)
from relief_ray.records.sync.mirror import whole_generation
from relief_ray.records.sync.sender import Copy, Target, brief
from relief_ray.support.errors import UserError, value_text
from relief_ray.support.files import move, opened, refuse_links, write_atomic
from relief_ray.support.masking import MASK, mask_logs, mask_text
from relief_ray.support.text import typed

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run


DATABASE = "mlflow.db"
"""Default store, beside the run folders."""
_SQLITE = "sqlite:///"
_SYNC_FILE, _EXPORT_LOCK = "sync.json", "sync.lock"
_STORE_WAIT_S = 120.0
MAX_BATCH_POINTS = 600
MAX_BATCH_PARAMS = 100
# Of a value's text.
_MAX_PARAM_CHARS = 500
_MAX_DIGEST_CHARS = 36

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

_METHOD, _STUDY = "relief.method", "relief.study_run"
# What the pages of 3.17 show, for whoever opens the address with this key: runs grouped by method, their mean F1 by
# round. MLflow keeps such a view as a tag of the experiment, where its own button for sharing one puts it.
VIEW = "methods"
_GROUPED = {
    "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": _METHOD}]},
    "useGroupedValuesInCharts": True,
}
# The kind does not make the pages open on runs: the address does (actors/terminal/mlflow_export.py).
_EXPERIMENT_TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    f"mlflow.sharedViewState.{VIEW}": json.dumps(_GROUPED),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """A database file or server, and the experiment in it; ``uri`` with an absolute path if it is a file."""

    uri: str
    experiment: str = "relief-ray"

    @property
    def database(self) -> Path | None:
        """Path of the SQLite file; None for servers."""
        return Path(unquote(self.uri.removeprefix(_SQLITE))) if self.uri.startswith(_SQLITE) else None


def store_uri(folder: Path, uri: str | None = None) -> str:
    """Return ``uri`` with the path of a SQLite file without links; by default ``mlflow.db`` beside the run folder."""
    if uri is None:
        return sqlite_address(folder.resolve().parent / DATABASE)
    return sqlite_address(Path(unquote(uri.removeprefix(_SQLITE))).resolve()) if uri.startswith(_SQLITE) else uri


def sqlite_address(database: Path) -> str:
    """Address of a SQLite file: in one a question mark would begin its options, a percent sign a character."""
    return _SQLITE + quote(str(database), safe="/ ")


class Exported(Record):
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

    targets: dict[str, Exported] = Field(default_factory=dict)
    error: Text | None = None


def read_sync(folder: Path) -> SyncState:
    """Read ``sync.json`` of a run folder; empty where it is missing or unreadable: the store is asked in any case."""
    try:
        return read_page(folder / _SYNC_FILE, SyncState)
    except (OSError, ValueError):
        return SyncState()


def write_sync(folder: Path, new: Mapping[str, Exported], error: str | None = None) -> None:
    """Note the progress of stores by URI, or why an export failed; other stores' progress stays."""
    targets = read_sync(folder).targets | {mask_text(uri): exported for uri, exported in new.items()}
    write_atomic(folder / _SYNC_FILE, page_of(SyncState(targets=targets, error=error)), make_folder=False)


# Metrics that a clock simulates, by their names in a store, so that a chart cannot be taken for a measurement.
SIMULATED = {name: f"sim_{name}" for name in ("speedup", "round_s", "time_s", "energy_j")}

# Tags of a run's end: whom rounds lacked, and why it failed or was stopped.
_LEFT_OUT, _NOTE = "relief.left_out.", "relief.note"


def exported_scalars(record: RoundRecord, clock: str) -> dict[str, float]:
    """A round's values by their names in a store, ``sim_`` before what a clock simulated; and F1 by sensor.

    Every round says how many updates it used, as ``clients_used``: that curve returns where a client does.
    """
    values = {SIMULATED.get(name, name): value for name, value in round_scalars(record, clock).items()}
    used = float(len(record.participants) - len(record.rejected))
    sensors = record.metrics.f1_by_modality if record.metrics is not None else {}
    by_sensor = {f"f1_sensor_{sensor}": value for sensor, value in sensors.items() if isfinite(value)}
    return {**values, "clients_used": used, **by_sensor}


def ending_tags(run: RunRecord) -> dict[str, str]:
    """A tag for each client that rounds went on without, in which rounds and why, and one for why the run failed."""
    left_out = {f"{_LEFT_OUT}{entry.client}.{entry.cause}": sentence(entry) for entry in run.left_out}
    return left_out | ({_NOTE: run.note.partition("\n")[0]} if run.note else {})


class MlflowTarget(Target):
    """An MLflow store that gets the runs of a plan while they go on; their curves can be seen there."""

    # The thread shares the interpreter with the run, and importing MLflow takes seconds of a core that a run's own
    # processes need while they start. At the end every run is tried once more: `relief-ray sync` is for the rest.
    interval_s, delay_s, patience_s, limit_s, limit_after_stop_s = 5.0, 10.0, 0.0, 30.0, 3.0

    def __init__(
        self, out: Path, uri: str | None = None, experiment: str = "relief-ray", runs: Collection[Path] | None = None
    ) -> None:
        """Choose the store, by default a SQLite file beside the run folders; ``out``: folder of the plan.

        ``runs``: absolute folders of the runs that it gets; None: all.
        """
        self._uri, self._experiment, self._runs = uri, experiment, runs
        self.name, self.rest = f"MLflow {mask_text(uri or DATABASE)}", f"`relief-ray sync {typed(out)}` sends the rest"

    def copy_of(self, folder: Path) -> Copy | None:
        """The copy of one run; None for one that the store does not get."""
        if self._runs is not None and folder.absolute() not in self._runs:
            return None
        return MlflowRun(folder, Store(uri=store_uri(folder, self._uri), experiment=self._experiment))


class MlflowRun:
    """The copy of one run in a store; while it is connected, under the folder's export lock."""

    def __init__(self, folder: Path, store: Store) -> None:
        """Connect nothing yet."""
        self._folder, self._store, self.run_id, self.num_points = folder.resolve(), store, "", 0
        self._given = folder
        self._lock: FileLock | None = None

    def connect(self) -> None:
        """Open the store, find or make the run, and ask which points it has.

        Raises:
            UserError: another export of this folder is at work, or no run is there.
            Exception: whatever MLflow raises when the store cannot be used.
        """
        refuse_linked(self._given)
        self._lock = FileLock(self._folder / _EXPORT_LOCK, "the export of this run")
        self._record = read_run(self._folder)
        self._ended_ms = _unix_ms(self._record.finished) or 0
        self._format = LineFormat.of(self._record)
        self._end: LedgerEnd | None = None
        self._client, stored = _open_run(self._store, self._folder, self._record)
        self.run_id = stored.info.run_id
        self._tags = set(stored.data.tags)
        self._grid: str | None = stored.data.tags.get(_STUDY)
        self._known = {
            key: {point.step for point in self._client.get_metric_history(self.run_id, key)}
            for key in stored.data.metrics
        }
        self._exported = Exported(run_id=self.run_id)

    def send(self) -> bool:
        """Send the points of all complete new lines that the store lacks, and note the progress."""
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
            self._mark(step=last.round)
        self.num_points += len(points)
        return bool(points)

    def finish(self) -> None:
        """Copy the two files (with ``tracking.model`` the last state too), and say how and when the run has ended.

        The end is that of the last round, so that a run lasts as long as it took, whenever it is exported.

        Raises:
            UserError: a finished run's records contradict each other.
        """
        run = read_run(self._folder)
        if run.status == "done":
            refuse_contradicted(self._folder, run)
        for name in (RUN_FILE, ROUNDS_FILE):
            self._client.log_artifact(self.run_id, str(self._folder / name))
        self._tag_end(ending_tags(run))
        if run.status in _ENDINGS:
            self._log_model()
            ended_ms = self._ended_ms or round(time.time() * 1000)
            self._client.set_terminated(self.run_id, _ENDINGS[run.status], ended_ms)
            if self._grid is not None:
                before = self._client.get_run(self._grid).info.end_time or 0
                self._client.set_terminated(self._grid, "FINISHED", max(before, ended_ms))  # until its last cell's end
            self._mark(status=run.status)

    def _tag_end(self, tags: Mapping[str, str]) -> None:
        """Set the tags of a run's end; those of an earlier end, which the run went on from, are taken away."""
        earlier = {tag for tag in self._tags if tag == _NOTE or tag.startswith(_LEFT_OUT)}
        for name in earlier - tags.keys():
            self._client.delete_tag(self.run_id, name)
        for name, text in tags.items():
            self._client.set_tag(self.run_id, name, text)
        self._tags = (self._tags - earlier) | tags.keys()

    def _log_model(self) -> None:
        """Copy the newest checkpoint: the server's tensors as safetensors, and their description.

        Raises:
            UserError: it is damaged.
        """
        if config_value(self._record.config, "tracking.model"):
            for newest in generations(self._folder)[:1]:
                if whole_generation(newest) is None:
                    raise UserError(f"{newest}: does not match its sha256, expected a whole checkpoint; {AGAIN}")
                self._client.log_artifacts(self.run_id, str(newest), "model")

    def failed(self, error: Exception) -> bool:
        """Note why in ``sync.json``, and let go: whatever the store has taken is asked anew."""
        self.close()
        if not isinstance(error, UserError):
            with suppress(UserError):
                write_sync(self._folder, {}, error=brief(error))
        # It answers with another value under this run: no retry heals that.
        return getattr(error, "error_code", None) == "INVALID_PARAMETER_VALUE"

    def close(self) -> None:
        """Release the lock, so that others can export this run."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _missing(self, record: RoundRecord) -> Sequence[Metric]:
        from mlflow.entities import Metric

        time_ms = round(record.ended_unix_s * 1000)
        scalars = exported_scalars(record, self._record.planning_model)
        return [
            Metric(key, value, time_ms, record.round)
            for key, value in scalars.items()
            if record.round not in self._known.get(key, ())
        ]

    def _mark(self, **news: int | str) -> None:
        self._exported = self._exported.model_copy(update=news)
        write_sync(self._folder, {self._store.uri: self._exported})


def _configured_store(folder: Path, run: RunRecord, uri: str | None) -> Store:
    """Return the store that a run is exported to.

    Raises:
        UserError: only the record names the run's own store, or that needs credentials, which are not kept.
    """
    tracking = section(run.config, "tracking")
    target = uri or tracking.get("uri") or None
    if uri is None and target is not None and MASK in target:
        raise UserError(
            f"{folder}: its MLflow store {target} needs credentials, which are not kept; name it with --uri"
        )
    if uri is None and (address := foreign(run.config).get("tracking.uri")):
        raise UserError(f"{folder}: {why_foreign('tracking.uri', address)}: sync it with --uri")
    return Store(uri=store_uri(folder, target), experiment=tracking.get("experiment") or "relief-ray")


@dataclass(frozen=True, kw_only=True, slots=True)
class Synced:
    """Result of a ``sync``; ``num_points`` were new to the store."""

    uri: str
    run_id: str
    num_points: int


def sync(folder: Path, uri: str | None = None) -> Synced:
    """Send the points of a run that a store lacks; running it again changes nothing.

    The store is the one that the run was configured with, unless another is named.

    Raises:
        UserError: no run there, its ledger is damaged, another export is at work, or the store cannot be used.
    """
    run = read_run(folder)
    read_rounds(folder)  # refuses a damaged last line; an export alone would leave it out
    store = _configured_store(folder, run, uri)
    copy = MlflowRun(folder, store)
    try:
        copy.connect()
        copy.send()
        copy.finish()
        return Synced(uri=mask_text(store.uri), run_id=copy.run_id, num_points=copy.num_points)
    except UserError:
        raise
    except Exception as error:
        made = "expected a database that MLflow made and that you may write; move that file away"
        remedy = f"{made if store.database else 'expected a reachable MLflow store; start it'}, or name another"
        if copy.failed(error):
            other = "expected a store without other values under this run; name another with --uri"
            remedy = f"{other}, or delete that run in it"
        if "unsupported URI" in str(error):
            remedy = "expected an address such as http://HOST:5000 or sqlite:///mlflow.db; type it anew"
        raise UserError(
            f"{mask_text(store.uri)}: cannot export {folder} ({brief(error)}), {remedy}, and sync again"
        ) from error
    finally:
        copy.close()


def _unix_ms(moment: str | None) -> int | None:
    """Milliseconds since 1970 of a moment in ISO 8601."""
    return None if not moment else round(datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp() * 1000)


def _store_lock(store: Store, beside: Path) -> FileLock:
    """One opener at a time: two processes that create one SQLite store break it, or make two parent runs."""
    database = store.database
    lock = database.with_name(f"{database.name}.lock") if database else beside / ".mlflow.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(lock, "the MLflow store", wait_s=_STORE_WAIT_S)


def _open_run(store: Store, folder: Path, record: RunRecord) -> tuple[MlflowClient, Run]:
    with _store_lock(store, folder.parent):
        client = _connect(store)
        from mlflow.entities import Param

        experiment = _experiment(client, store)
        # Only the cell is asked for: a folder's name may hold quotes, which the query language cannot.
        before = [
            run
            for run in _search(client, experiment, "relief.cell", record.cell)
            if run.data.tags.get("relief.folder") == str(folder)
        ]
        run = next((r for r in before if r.data.tags.get(_CREATED) == record.created), None)
        if run is None:
            run = _create(client, experiment, folder, record)
            _mark_replaced(client, before, run.info.run_id)
            _log_dataset(client, run.info.run_id, record)
        elif run.info.status != "RUNNING":
            client.update_run(run.info.run_id, status="RUNNING")
    _refuse_elsewhere(store, folder, run)
    tags = {"relief.code_version": record.code_version, "relief.source_digest": record.source_digest}
    for name, value in tags.items():
        client.set_tag(run.info.run_id, name, value)
    params = [Param(key, value_text(value)[:_MAX_PARAM_CHARS]) for key, value in flat(record.config).items()]
    for start in range(0, len(params), MAX_BATCH_PARAMS):
        client.log_batch(run.info.run_id, params=params[start : start + MAX_BATCH_PARAMS])
    return client, run


def _refuse_elsewhere(store: Store, what: Path, run: Run) -> None:
    """Check that a store beside what is copied to it keeps its files there: it names their place itself.

    Raises:
        UserError: they would be written elsewhere.
    """
    if store.database is None or store.database.name != DATABASE:
        return
    beside, address = store.database.parent, urlsplit(str(run.info.artifact_uri))
    place = Path(unquote(address.path))
    is_here = address.scheme in ("", "file") and not address.netloc and place.is_absolute()
    if what.resolve().is_relative_to(beside) and not (is_here and place.resolve().is_relative_to(beside)):
        named = mask_text(str(run.info.artifact_uri))
        raise UserError(
            f"{store.database}: keeps files of runs in {named}, expected a place in {beside} (was the folder moved?); "
            f"remove {DATABASE} and mlartifacts there and create both again: relief-ray sync {typed(beside)}"
        )


def _connect(store: Store) -> MlflowClient:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    mask_logs()  # urllib3 warns of every retry with its address
    from mlflow import MlflowClient

    database = store.database
    if database is None:
        return MlflowClient(tracking_uri=store.uri)
    refuse_links([database])
    with suppress(FileNotFoundError), opened(database) as file:  # a pipe in its place is refused
        if os.fstat(file.fileno()).st_nlink > 1:  # a backup of hard links keeps what it has
            fix = f"copy it first: cp {typed(database)} copy.db && mv copy.db {typed(database)}"
            raise UserError(f"{database}: has another name, in a backup of hard links say, expected one; {fix}")
    # MLflow makes the folder that the address names, as it is written there: with %3F for a question mark.
    strays = [folder for folder in Path(store.uri.removeprefix(_SQLITE)).parents if not folder.exists()]
    # Made beside and renamed: a process killed in the middle of the schema would leave a broken store. Such leftovers
    # are removed; the lock makes sure that no other process is still writing them.
    _remove_leftovers(database)
    try:
        if not database.exists():
            beside = database.with_name(f".{database.name}.{time.time_ns()}.new")
            MlflowClient(tracking_uri=sqlite_address(beside)).search_experiments(max_results=1)
            move(beside, database)
        return MlflowClient(tracking_uri=store.uri)
    finally:
        _remove_leftovers(database)
        for folder in strays:
            with suppress(OSError):  # it is not there, or holds something
                folder.rmdir()


def _remove_leftovers(database: Path) -> None:
    for leftover in database.parent.glob(f".{escape(database.name)}.*.new*"):
        leftover.unlink()


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
    if experiment.lifecycle_stage != "active":
        uri, restore = mask_text(store.uri), f"mlflow experiments restore --experiment-id {experiment.experiment_id}"
        address = f"MLFLOW_TRACKING_URI={shlex.quote(uri)} " if uri == store.uri else ""  # masked, it would not work
        raise UserError(
            f"{uri}: its experiment {store.experiment!r} was deleted, expected one that takes runs; restore it with "
            f"`{address}{restore}`, or name another store (tracking.uri; of sync: --uri)"
        )
    for tag in _EXPERIMENT_TAGS.keys() - experiment.tags.keys():  # it was not made by us
        with suppress(Exception):  # a convenience, which a server may refuse
            client.set_experiment_tag(experiment.experiment_id, tag, _EXPERIMENT_TAGS[tag])
    return str(experiment.experiment_id)


def _search(client: MlflowClient, experiment: str, tag: str, value: str) -> Sequence[Run]:
    return client.search_runs([experiment], filter_string=f"tags.`{tag}` = '{value}'", max_results=1000)


def _mark_replaced(client: MlflowClient, before: Sequence[Run], run_id: str) -> None:
    """Name the runs that the folder held earlier, before the cell was computed again, as replaced."""
    for run in before:
        if _REPLACED_BY not in run.data.tags:
            client.set_tag(run.info.run_id, _REPLACED_BY, run_id)
            client.update_run(run.info.run_id, name=f"{run.info.run_name} (replaced)")


def _create(client: MlflowClient, experiment: str, folder: Path, record: RunRecord) -> Run:
    method = _method(folder, record)
    tags = {
        "relief.cell": record.cell,
        "relief.folder": str(folder),
        _CREATED: record.created,
        "relief.strategy": record.strategy,
        _METHOD: method,
        "relief.data_origin": record.data_origin,
        "relief.planning_model": record.planning_model,
        "mlflow.source.name": "relief-ray",
        "mlflow.source.type": "LOCAL",
        "mlflow.note.content": _description(folder, record),
    }
    # The moment at which the first round began; before there is one, that at which the run was made.
    first = next(iter(read_rounds(folder)), None)
    started_ms = _unix_ms(record.created) if first is None else round((first.ended_unix_s - first.wall_s) * 1000)
    if record.parent is not None:
        tags[_STUDY] = _study(client, experiment, record.parent, started_ms)
    return client.create_run(experiment, start_time=started_ms, tags=tags, run_name=_name(method, record))


def _method(folder: Path, record: RunRecord) -> str:
    """The method, its own level of a grid, and the setting where the grid has several: means are over this name."""
    level = _level(record.config)
    return ", ".join(filter(None, [record.method.name + (f" ({level})" if level else ""), _setting(folder, record)]))


def _level(config: Mapping[str, JsonValue]) -> str:
    return str(config_value(config, "choice.level") or "")


def _setting(folder: Path, record: RunRecord) -> str:
    """Name of a cell's setting in its grid, without the method's own level; empty where all cells have the same."""
    if record.parent is None:
        return ""
    try:
        rows = read_plan_file(folder.parent / PLAN_FILE).cells
    except UserError:  # a copy of the run alone
        return ""
    settings = {row.folder: row.setting.removesuffix(f"-{_level(row.config)}") for row in rows}
    return settings.get(folder.name, "") if len(set(settings.values())) > 1 else ""


def _name(method: str, record: RunRecord) -> str:
    """``relief, fold 0, replicate 3``: what tells the runs of a study apart at a glance."""
    fold, number = config_value(record.config, "data.fold"), record.config.get("replicate")
    place = f"fold {fold}" if has_folds(record.config) and fold is not None else ""
    draw = f"seed {record.config.get('seed')}" if number is None else f"replicate {number}"
    return ", ".join(filter(None, [method, place, draw]))


def _description(folder: Path, record: RunRecord) -> str:
    """Text of a run's page: what was run, what is simulated, where the records are."""
    facts = section(record.config, "data")
    place = ", ".join(f"{key} {facts[key]}" for key in ("name", "split", "fold") if facts.get(key) not in (None, ""))
    return (
        f"{record.method.title or record.strategy} on {place or 'data'} ({record.data_origin}). "
        f"Metrics that begin with `sim_` are simulated by the clock `{record.planning_model}`; the others were "
        f"measured here. Records: {folder}"
    )


def _log_dataset(client: MlflowClient, run_id: str, record: RunRecord) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    name = str(config_value(record.config, "data.name") or "data")
    source = json.dumps({"name": name, "origin": record.data_origin, "sha256": record.data_digest})
    dataset = Dataset(name=name, digest=record.data_digest[:_MAX_DIGEST_CHARS], source_type="local", source=source)
    client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])


def _study(client: MlflowClient, experiment: str, name: str, started_ms: int | None) -> str:
    """The run that stands for a grid or a plan: its cells name it, and it holds reports and figures."""
    grids = _search(client, experiment, "relief.kind", "grid")
    study = next((run for run in grids if run.data.tags.get("relief.grid") == name), None)
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
        tags: by name; a metric would be a chart of a single bar beside the runs' curves.
    """

    started: str | None
    finished: str | None
    note: str
    tags: Mapping[str, str]


def log_study(store: Store, name: str, files: Sequence[Path], summary: StudySummary) -> str:
    """Copy files (a report, figures) and a summary to the run that stands for a grid or plan; return its id.

    Raises:
        Exception: whatever MLflow raises when the store cannot be used.
    """
    with _store_lock(store, files[0].parent):
        client = _connect(store)
        run_id = _study(client, _experiment(client, store), name, _unix_ms(summary.started))
    _refuse_elsewhere(store, files[0], client.get_run(run_id))
    for tag, text in {**summary.tags, "mlflow.note.content": summary.note}.items():
        client.set_tag(run_id, tag, text)
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
    _refuse_elsewhere(store, folder, client.get_run(target.run_id))
    for file in files:
        client.log_artifact(target.run_id, str(file), "report")
    return target.run_id
