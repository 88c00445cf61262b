"""Where a plan's records are copied to while its runs go on, as its configuration says: a mirror, an MLflow store."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from relief_ray.experiment.experiment import Stop, never
from relief_ray.records.cells import PLAN_FILE
from relief_ray.records.sync.mirror import Mirror
from relief_ray.records.sync.mlflow import MlflowTarget
from relief_ray.records.sync.sender import Senders, Target
from relief_ray.studies.plan import Plan
from relief_ray.support.table import grouped
from relief_ray.support.text import install

Say = Callable[[str], None]
_NO_MLFLOW = f"MLflow is not installed: nothing is exported ({install('server')}; then: relief-ray sync DIR)"


def _targets(plan: Plan, on_note: Say) -> Iterator[Target]:
    """The targets that the plan's configuration names."""
    uri = next((cell.config.runtime.mirror for cell in plan.cells), None)
    if uri is not None:
        yield Mirror(*_root_of(plan), uri)
    stores = grouped(
        ((store.uri, store.experiment), (plan.out / cell.name).absolute())
        for cell in plan.cells
        if (store := cell.config.tracking).enabled
    )
    if stores and importlib.util.find_spec("mlflow") is None:
        on_note(_NO_MLFLOW)
        return
    for (uri, experiment), runs in stores.items():
        yield MlflowTarget(plan.out, uri, experiment, runs)


def _root_of(plan: Plan) -> tuple[Path, str | None]:
    """The folder that is mirrored, and the one run in it that is at work; None: all of them."""
    folder = plan.out.absolute()
    if plan.is_single and (folder.parent / PLAN_FILE).exists():
        return folder.parent, folder.name
    return folder, None


@contextmanager
def copied(plan: Plan, on_note: Say, is_stopped: Stop = never) -> Iterator[Senders]:
    """Copy the plan's records while the block runs, which says when a run has begun, has a new round, has ended.

    At the end it waits for what is under way; after an error, or where ``is_stopped`` says so then, for seconds only.

    Raises:
        UserError: the mirror's URI is none, its library is not installed, or it holds something else.
    """
    senders, is_whole = Senders(_targets(plan, on_note), on_note), False
    try:
        yield senders
        is_whole = not is_stopped()
    finally:
        senders.finish(is_stopped=not is_whole)
