"""Experiment tracking: an asynchronous copy of the run folder, never a condition of the run.

The folder is the truth. A background thread is nudged once a round and tells the store what it does not know yet;
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

from relief_ray.errors import UserError
from relief_ray.records.mlflow_store import Exporter, Store, store_uri, write_failure
from relief_ray.records.redact import MASK, mask_text
from relief_ray.records.run_folder import read_run
from relief_ray.records.schema import RoundRecord, RunRecord, Status

LOG = logging.getLogger(__name__)
FINISH_S = 5.0
RETRY_S = 30.0
# Rounds that end within it travel together: the thread shares the interpreter with the run.
INTERVAL_S = 5.0
# MLflow takes seconds of a core to import, which a run's own processes need while they start.
DELAY_S = 10.0


class Tracker(Protocol):
    """Hears about a run; no method may raise, or wait for a network longer than a few seconds."""

    def start(self, run: RunRecord, folder: Path) -> None:
        """The run folder exists."""
        ...

    def round(self, record: RoundRecord) -> None:
        """A round's line is in the ledger."""
        ...

    def finish(self, status: Status) -> None:
        """The run has ended this way."""
        ...

    def close(self) -> None:
        """Releases what is held, also where ``finish`` was never reached."""
        ...


class NullTracker:
    """Tells nobody."""

    def start(self, run: RunRecord, folder: Path) -> None:
        """Nothing."""

    def round(self, record: RoundRecord) -> None:
        """Nothing."""

    def finish(self, status: Status) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _End:
    status: Status | None


class MlflowTracker:
    """Copies the run folder to an MLflow store from a thread of its own; a failure costs one warning, never a round."""

    def __init__(
        self,
        uri: str | None = None,
        experiment: str = "relief-ray",
        *,
        finish_s: float = FINISH_S,
        retry_s: float = RETRY_S,
        interval_s: float = INTERVAL_S,
        delay_s: float = DELAY_S,
    ) -> None:
        """Remembers where to; ``uri`` is by default a SQLite file beside the run folder.

        ``finish_s`` bounds the wait at the end, ``retry_s`` is the pause after a failure, ``interval_s`` the one
        after a success. The store hears of a run with its first round, or ``delay_s`` after its start.
        """
        self._uri, self._experiment, self._finish_s = uri, experiment, finish_s
        self._retry_s, self._interval_s, self._delay_s = retry_s, interval_s, delay_s
        self._nudges: queue.SimpleQueue[_End | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._warned = False

    def start(self, run: RunRecord, folder: Path) -> None:
        """Starts the thread, which also catches up with what an earlier driver left unsaid."""
        store = Store(uri=store_uri(folder, self._uri), experiment=self._experiment)
        self._thread = threading.Thread(target=self._work, args=(folder, store), name="mlflow-export", daemon=True)
        self._thread.start()

    def round(self, record: RoundRecord) -> None:
        """Nudges the thread; the round itself is read from the ledger."""
        self._nudges.put(None)

    def finish(self, status: Status) -> None:
        """Gives the thread ``finish_s`` to complete; what it does not manage is left for ``sync``."""
        self._end(status)

    def close(self) -> None:
        """As ``finish``, but the run goes on being one that has not ended."""
        self._end(None)

    def _end(self, status: Status | None) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._nudges.put(_End(status=status))
            thread.join(self._finish_s)
            if thread.is_alive():
                self._warn(f"MLflow export is not done after {self._finish_s:g} s; `relief-ray sync` completes it")

    def _work(self, folder: Path, store: Store) -> None:
        exporter: Exporter | None = None
        pause_until = 0.0
        end: _End | None = None
        patience_s: float | None = self._delay_s
        while end is None:
            end, patience_s = self._next(patience_s), None
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

    def _next(self, patience_s: float | None) -> _End | None:
        # One export answers all nudges that have piled up; an end is the last thing ever put.
        try:
            nudge = self._nudges.get(timeout=patience_s)
        except queue.Empty:
            return None
        while nudge is None and not self._nudges.empty():
            nudge = self._nudges.get()
        return nudge

    def _failed(self, folder: Path, store: Store, error: Exception) -> None:
        message = brief(error)
        self._warn(f"MLflow export to {mask_text(store.uri)} failed ({message}); `relief-ray sync` completes it later")
        try:
            write_failure(folder, message)
        except UserError as second:
            LOG.debug("sync.json: %s", second)

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            LOG.warning(message)


def _drop(exporter: Exporter | None) -> None:
    if exporter is not None:
        exporter.close()


def brief(error: Exception) -> str:
    """An error's first line, without credentials, short enough for one."""
    lines = str(error).splitlines() or [""]
    return mask_text(f"{type(error).__name__}: {lines[0][:300]}")


def configured_store(folder: Path, run: RunRecord, uri: str | None, experiment: str | None) -> Store:
    """Where a run is to be exported to.

    Raises:
        UserError: the run's own store needs credentials, which are not kept.
    """
    tracking = run.config.get("tracking")
    asked = tracking if isinstance(tracking, dict) else {}
    wanted = uri or (str(asked["uri"]) if asked.get("uri") else None)
    if uri is None and wanted is not None and MASK in wanted:
        raise UserError(
            f"{folder}: its MLflow store {wanted} needs credentials, which are not kept; name it with --uri"
        )
    return Store(uri=store_uri(folder, wanted), experiment=experiment or str(asked.get("experiment") or "relief-ray"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Synced:
    """What a ``sync`` has done; ``num_points`` were new to the store."""

    uri: str
    run_id: str
    num_points: int


def sync(folder: Path, uri: str | None = None, experiment: str | None = None) -> Synced:
    """Tells a store what it does not know of a run yet; running it again changes nothing.

    Store and experiment are those that the run was configured with, unless others are named.

    Raises:
        UserError: no run there, another export is at work, or the store cannot be used.
    """
    run = read_run(folder)
    store = configured_store(folder, run, uri, experiment)
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
            f"{mask_text(store.uri)}: cannot export {folder} ({brief(error)}), expected a reachable MLflow store; "
            "start it, or name another, and sync again"
        ) from error
    finally:
        _drop(exporter)
