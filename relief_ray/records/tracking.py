"""Experiment tracking: an asynchronous copy of the run folder, never a condition of the run.

The folder is the truth. A background thread is notified once a round and sends the points that the store lacks;
``sync`` does the same later, after hours of a dead server or after a killed driver.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.schema import RoundRecord, RunRecord, RunStatus
from relief_ray.records.sync.mlflow import Exporter, Store, store_uri
from relief_ray.records.sync_state import write_failure
from relief_ray.support.errors import UserError
from relief_ray.support.masking import MASK, mask_text
from relief_ray.support.text import typed

_LOG = logging.getLogger(__name__)
_FINISH_S = 5.0
_RETRY_S = 30.0
# Rounds that end within it are sent together: the thread shares the interpreter with the run.
_INTERVAL_S = 5.0
# MLflow takes seconds of a core to import, which a run's own processes need while they start.
_DELAY_S = 10.0


class Tracker(Protocol):
    """Receives the events of a run; no method may raise, or wait for a network longer than a few seconds."""

    def start(self, run: RunRecord, folder: Path) -> None:
        """Called once the run folder exists."""
        ...

    def round(self, record: RoundRecord) -> None:
        """Called once a round's line is in the ledger."""
        ...

    def finish(self, status: RunStatus) -> None:
        """Called when the run has ended with ``status``."""
        ...

    def close(self) -> None:
        """Release all resources, also where ``finish`` was never called."""
        ...


class NullTracker:
    """Ignores all events."""

    def start(self, run: RunRecord, folder: Path) -> None:
        """Do nothing."""

    def round(self, record: RoundRecord) -> None:
        """Do nothing."""

    def finish(self, status: RunStatus) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _End:
    status: RunStatus | None


class MlflowTracker:
    """Copies the run folder to an MLflow store in a background thread; failures never stop a run."""

    def __init__(
        self,
        uri: str | None = None,
        experiment: str = "relief-ray",
        *,
        finish_s: float = _FINISH_S,
        retry_s: float = _RETRY_S,
        interval_s: float = _INTERVAL_S,
        delay_s: float = _DELAY_S,
    ) -> None:
        """Set the store; nothing is connected yet.

        Args:
            uri: the store; by default a SQLite file beside the run folder.
            experiment: name of the MLflow experiment.
            finish_s: longest wait at the end of a run.
            retry_s: pause after a failure.
            interval_s: pause after a success.
            delay_s: the first export is this long after the start, or with the first round.
        """
        self._uri, self._experiment, self._finish_s = uri, experiment, finish_s
        self._retry_s, self._interval_s, self._delay_s = retry_s, interval_s, delay_s
        self._events: queue.SimpleQueue[_End | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._folder = Path()
        self._warned = False

    def start(self, run: RunRecord, folder: Path) -> None:
        """Start the thread, which first sends the points that an earlier driver did not."""
        self._folder = folder
        store = Store(uri=store_uri(folder, self._uri), experiment=self._experiment)
        self._thread = threading.Thread(target=self._work, args=(folder, store), name="mlflow-export", daemon=True)
        self._thread.start()

    def round(self, record: RoundRecord) -> None:
        """Notify the thread; the round itself is read from the ledger."""
        self._events.put(None)

    def finish(self, status: RunStatus) -> None:
        """Wait up to ``finish_s`` for the export to complete; the rest is left for ``sync``."""
        self._end(status)

    def close(self) -> None:
        """End the export as ``finish`` does, but leave the run's status in the store as it is."""
        self._end(None)

    def _end(self, status: RunStatus | None) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._events.put(_End(status=status))
            thread.join(self._finish_s)
            if thread.is_alive():
                self._warn(
                    f"MLflow export is not done after {self._finish_s:g} s; `relief-ray sync {typed(self._folder)}` "
                    "completes it"
                )

    def _work(self, folder: Path, store: Store) -> None:
        exporter: Exporter | None = None
        pause_until = 0.0
        end: _End | None = None
        timeout_s: float | None = self._delay_s
        while end is None:
            end, timeout_s = self._next(timeout_s), None
            if end is None and time.monotonic() < pause_until:
                continue
            try:
                exporter = exporter or Exporter(folder, store)
                exporter.catch_up()
                pause_until = time.monotonic() + self._interval_s
                if end is not None and end.status is not None:
                    exporter.finish(end.status)
            except Exception as error:
                _drop(exporter)
                exporter = None
                pause_until = time.monotonic() + self._retry_s
                self._failed(folder, store, error)
        _drop(exporter)

    def _next(self, timeout_s: float | None) -> _End | None:
        # One export serves all events that have piled up; an end is the last one ever put.
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        while event is None and not self._events.empty():
            event = self._events.get()
        return event

    def _failed(self, folder: Path, store: Store, error: Exception) -> None:
        message = brief(error)
        self._warn(
            f"MLflow export to {mask_text(store.uri)} failed ({message}); `relief-ray sync {typed(folder)}` completes "
            "it later"
        )
        try:
            write_failure(folder, message)
        except UserError as second:
            _LOG.debug("sync.json: %s", second)

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            _LOG.warning(message)


def _drop(exporter: Exporter | None) -> None:
    if exporter is not None:
        exporter.close()


def brief(error: Exception) -> str:
    """Return an error's first line, shortened, without credentials."""
    lines = str(error).splitlines() or [""]
    return mask_text(f"{type(error).__name__}: {lines[0][:300]}")


def _configured_store(folder: Path, run: RunRecord, uri: str | None, experiment: str | None) -> Store:
    """Return the store that a run is exported to.

    Raises:
        UserError: the run's own store needs credentials, which are not kept.
    """
    tracking = run.config.get("tracking")
    section = tracking if isinstance(tracking, dict) else {}
    target = uri or (str(section["uri"]) if section.get("uri") else None)
    if uri is None and target is not None and MASK in target:
        raise UserError(
            f"{folder}: its MLflow store {target} needs credentials, which are not kept; name it with --uri"
        )
    name = experiment or str(section.get("experiment") or "relief-ray")
    return Store(uri=store_uri(folder, target), experiment=name)


def _remedy(error: Exception) -> str:
    """Return what was expected of a store that failed, and what to do: it refused what was sent, or did not answer."""
    if getattr(error, "error_code", None) == "INVALID_PARAMETER_VALUE":
        return "expected a store without other values under this run; name another with --uri, or delete that run in it"
    return "expected a reachable MLflow store; start it, or name another"


@dataclass(frozen=True, kw_only=True, slots=True)
class Synced:
    """Result of a ``sync``; ``num_points`` were new to the store."""

    uri: str
    run_id: str
    num_points: int


def sync(folder: Path, uri: str | None = None, experiment: str | None = None) -> Synced:
    """Send the points of a run that a store lacks; running it again changes nothing.

    Store and experiment are those that the run was configured with, unless others are named.

    Raises:
        UserError: no run there, its ledger is damaged, another export is at work, or the store cannot be used.
    """
    run = read_run(folder)
    read_rounds(folder)  # refuses a damaged last line; an export alone would leave it out
    store = _configured_store(folder, run, uri, experiment)
    status = run.status
    exporter: Exporter | None = None
    try:
        exporter = Exporter(folder, store)
        num_points = exporter.catch_up()
        exporter.finish(status)
        return Synced(uri=mask_text(store.uri), run_id=exporter.run_id, num_points=num_points)
    except UserError:
        raise
    except Exception as error:
        write_failure(folder, brief(error))
        raise UserError(
            f"{mask_text(store.uri)}: cannot export {folder} ({brief(error)}), {_remedy(error)}, and sync again"
        ) from error
    finally:
        _drop(exporter)
