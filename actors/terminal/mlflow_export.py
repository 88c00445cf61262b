"""MLflow exports while runs go on: sent from the driver's process, waited for only at the end."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import fmean

from relief_ray.config.runtime import TrackingConfig
from relief_ray.experiment.experiment import never
from relief_ray.records.run_folder import RUN_FILE, read_rounds, read_run
from relief_ray.records.schema import RoundRecord
from relief_ray.records.sync.mlflow import Store, StudySummary, log_run, log_study, store_uri
from relief_ray.records.tracking import MlflowTracker, NullTracker, Tracker, brief
from relief_ray.studies.loop import headline_f1
from relief_ray.studies.progress import Callback, End, Facts
from relief_ray.studies.spec import Cell
from relief_ray.support.errors import UserError, counted
from relief_ray.support.masking import MASK
from relief_ray.support.text import install

# Default store, beside the run folders.
DATABASE = "mlflow.db"
# How long all unfinished exports together may hold the command up at its end, and after a stop.
PATIENCE_S, PATIENCE_AFTER_STOP_S = 30.0, 3.0
_MISSING = f"MLflow is not installed: nothing is exported ({install('server')}; then: relief-ray sync DIR)"

# MLflow's interface opens on language-model traces, whatever an experiment's kind, and on a list without metrics: the
# address opens the charts of the first experiment of a file, which is 1.
PAGE = "http://127.0.0.1:5000/#/experiments/1/runs?workflowType=machine_learning&compareRunsMode=CHART"


def where_to_look(config: TrackingConfig, out: Path) -> list[str]:
    """Lines that tell the user how to see the curves in MLflow; empty without a local export in ``out``."""
    database = out / DATABASE
    is_ours = config.enabled and config.uri is None and database.exists()
    command = f"MLFLOW_DISABLE_TELEMETRY=true mlflow ui --backend-store-uri sqlite:///{database}"
    return [f"MLflow  {command}", f"        {PAGE}"] if is_ours else []


def export_study(config: TrackingConfig, out: Path, name: str, files: Sequence[Path]) -> str | None:
    """Copy a study's files to its store, as artifacts of the run of that name; return why not, where it failed."""
    store = Store(uri=store_uri(out / "run", config.uri), experiment=config.experiment)
    return _export(config, files, lambda: log_study(store, name, files, summary_of(out, name)))


def summary_of(out: Path, name: str) -> StudySummary:
    """Methods, seeds, runs done, times and best F1 of the runs in a folder, for the line of the study's own run."""
    runs = {folder: read_run(folder) for folder in sorted(path.parent for path in out.glob(f"*/{RUN_FILE}"))}
    done = {folder: run for folder, run in runs.items() if run.status == "done"}
    scores: dict[str, list[float]] = {}
    for folder, run in done.items():
        rounds = read_rounds(folder)
        if rounds and (f1 := headline_f1(rounds[-1])) is not None:
            scores.setdefault(run.method.name, []).append(f1)
    best = max(scores, key=lambda method: fmean(scores[method]), default=None)
    best_f1 = {} if best is None else {"best_f1": fmean(scores[best])}
    named = "" if best is None else f" Best mean F1: {100 * best_f1['best_f1']:.1f} % ({best})."
    seeds = dict.fromkeys(str(run.config.get("seed")) for run in runs.values())
    return StudySummary(
        started=min((run.created for run in runs.values()), default=None),
        finished=max((run.finished for run in done.values() if run.finished), default=None),
        note=f"{name}: {len(done)} of {counted(len(runs), 'begun run')} done.{named} Records: {out.absolute()}",
        tags={
            "relief.methods": ", ".join(dict.fromkeys(run.method.name for run in runs.values())),
            "relief.seeds": ", ".join(seeds),
            **({} if best is None else {"relief.best_method": best}),
        },
        metrics={"cells_done": float(len(done)), **best_f1},
    )


def export_report(config: TrackingConfig, folder: Path, files: Sequence[Path]) -> str | None:
    """Copy the report of a single run to that run in its store, if it is there; return why not, where it failed."""
    store = Store(uri=store_uri(folder, config.uri), experiment=config.experiment)
    return _export(config, files, lambda: log_run(store, folder, files))


def _export(config: TrackingConfig, files: Sequence[Path], log: Callable[[], object]) -> str | None:
    """Log files where MLflow is wanted and installed; return why not, where it failed.

    Credentials of a store are not kept in records, so that a store which needs them is left alone.
    """
    is_known = config.uri is None or MASK not in config.uri
    if not (config.enabled and files and is_known) or importlib.util.find_spec("mlflow") is None:
        return None
    try:
        log()
    except Exception as error:  # a copy: whatever the store raises, the files are on disk
        return f"MLflow did not take {', '.join(file.name for file in files)} ({brief(error)})"
    return None


class Exports(Callback):
    """Trackers of the runs of a plan, woken by their rounds; the end of each is exported in a thread."""

    def __init__(self, on_note: Callable[[str], None], is_stopped: Callable[[], bool] = never) -> None:
        """``on_note`` hears, once, where MLflow is wanted but missing; ``is_stopped``: the end waits for less then."""
        self._on_note, self._noted_missing, self._is_stopped = on_note, False, is_stopped
        self._folders: dict[str, Path] = {}
        self._trackers: dict[str, Tracker] = {}
        self._endings: list[threading.Thread] = []

    def begin(self, cell: Cell, facts: Facts) -> None:
        """Start the run's tracker where its folder is there; a trial's folder is made later."""
        self._folders[cell.name] = facts.folder
        self._start(cell)

    def _start(self, cell: Cell) -> Tracker | None:
        """The tracker of the run, which has heard of it; None where its folder is not there."""
        folder = self._folders.get(cell.name)
        if cell.name not in self._trackers and folder is not None and (folder / RUN_FILE).exists():
            tracker = self._choose(cell.config.tracking)
            tracker.start(read_run(folder), folder)
            self._trackers[cell.name] = tracker
        return self._trackers.get(cell.name)

    def round(self, cell: Cell, record: RoundRecord, alerts: Sequence[str]) -> None:
        """Wake the run's tracker."""
        if (tracker := self._start(cell)) is not None:
            tracker.round(record)

    def _choose(self, config: TrackingConfig) -> Tracker:
        if not config.enabled:
            return NullTracker()
        if importlib.util.find_spec("mlflow") is not None:
            return MlflowTracker(config.uri, config.experiment, finish_s=PATIENCE_S)
        if not self._noted_missing:
            self._noted_missing = True
            self._on_note(_MISSING)
        return NullTracker()

    def end(self, cell: Cell, end: End) -> None:
        """Tell the store how the run ended, without waiting for it."""
        with suppress(UserError):
            self._start(cell)
        self._finish(cell.name)

    def _finish(self, name: str) -> None:
        """End a run's tracker in a thread; nothing, where its folder is gone or damaged: the run itself says so."""
        tracker, folder = self._trackers.pop(name, None), self._folders.pop(name, None)
        if tracker is None or folder is None:
            return
        try:
            finish = partial(tracker.finish, read_run(folder).status)
        except UserError:
            finish = partial(tracker.close)
        thread = threading.Thread(target=finish, daemon=True, name="mlflow-finish")
        thread.start()
        self._endings.append(thread)

    def close(self) -> None:
        """Wait for exports under way; the rest is left for `relief-ray sync`."""
        for name in tuple(self._trackers):
            self._finish(name)
        until = time.monotonic() + (PATIENCE_AFTER_STOP_S if self._is_stopped() else PATIENCE_S)
        for thread in self._endings:
            thread.join(max(0.0, until - time.monotonic()))
