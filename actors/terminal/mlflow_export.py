"""Files and summary of a whole study or run for MLflow, and the address to look at."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from relief_ray.config.runtime import TrackingConfig
from relief_ray.records.cells import look
from relief_ray.records.run_folder import RUN_FILE, read_run
from relief_ray.records.sync.mlflow import (
    DATABASE,
    VIEW,
    Store,
    StudySummary,
    log_run,
    log_study,
    sqlite_address,
    store_uri,
)
from relief_ray.records.sync.sender import brief
from relief_ray.report.runs import variant_names
from relief_ray.studies.progress import headline_f1
from relief_ray.support.errors import counted
from relief_ray.support.masking import MASK
from relief_ray.support.table import grouped

# MLflow's interface opens on language-model traces, whatever an experiment's kind, and on a list without metrics: the
# address opens the charts of the first experiment of a file, which is 1, with the runs grouped by method.
PAGE = (
    "http://127.0.0.1:5000/#/experiments/1/runs?workflowType=machine_learning&compareRunsMode=CHART"
    f"&viewStateShareKey={VIEW}"
)


def where_to_look(config: TrackingConfig, out: Path) -> list[str]:
    """Lines that tell the user how to see the curves in MLflow; empty without a local export in ``out``."""
    database = out / DATABASE
    is_ours = config.enabled and config.uri is None and database.exists()
    command = f"MLFLOW_DISABLE_TELEMETRY=true mlflow ui --backend-store-uri {shlex.quote(sqlite_address(database))}"
    return [f"MLflow  {command}", f"        {PAGE}"] if is_ours else []


def export(config: TrackingConfig, run: Path, files: Sequence[Path], study: str) -> list[str]:
    """Copy files to a run in its store, where MLflow is wanted and installed; return a line why not, where it failed.

    ``study``: its name, to whose own run the files go, where ``run`` is a folder in that of the study. Credentials of a
    store are not kept in records, so that a store which needs them is left alone.
    """
    is_known = config.uri is None or MASK not in config.uri
    if not (config.enabled and files and is_known) or importlib.util.find_spec("mlflow") is None:
        return []
    store = Store(uri=store_uri(run, config.uri), experiment=config.experiment)
    try:
        if study:
            log_study(store, study, files, summary_of(run.parent, study))
        else:
            log_run(store, run, files)
    except Exception as error:  # a copy: whatever the store raises, the files are on disk
        return [f"MLflow did not take {', '.join(file.name for file in files)} ({brief(error)})"]
    return []


def summary_of(out: Path, name: str) -> StudySummary:
    """Methods, seeds, runs done, times and best F1 of the runs in a folder, for the line of the study's own run."""
    folders = sorted(path.parent for path in out.glob(f"*/{RUN_FILE}"))
    runs = [read_run(folder) for folder in folders]
    names = variant_names([(run.method.name, run.config) for run in runs], [run.method for run in runs])
    done = {folder: run for folder, run in zip(folders, runs, strict=True) if run.status == "done"}
    scores = grouped(
        (name, f1)
        for folder, name in zip(folders, names, strict=True)
        if folder in done and (f1 := headline_f1(look(folder).last_tested())) is not None
    )
    note = f"{name}: {len(done)} of {counted(len(runs), 'begun run')} done."
    tags = {
        "relief.methods": ", ".join(dict.fromkeys(run.method.name for run in runs)),
        "relief.seeds": ", ".join(dict.fromkeys(str(run.config.get("seed")) for run in runs)),
        "relief.cells_done": str(len(done)),
    }
    if scores:
        best, values = max(scores.items(), key=lambda item: fmean(item[1]))
        best_f1 = fmean(values)
        note += f" Best mean F1: {100 * best_f1:.1f} % ({best})."
        tags["relief.best_method"] = best
        tags["relief.best_f1"] = f"{best_f1:.4f}"
    return StudySummary(
        started=min((run.created for run in runs), default=None),
        finished=max((run.finished for run in done.values() if run.finished), default=None),
        note=f"{note} Records: {out.absolute()}",
        tags=tags,
    )
