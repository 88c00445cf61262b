"""The copy of a plan's records at a URI (``runtime.mirror``): begun before its runs, waited for at their end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from relief_ray.experiment.experiment import never
from relief_ray.records.cells import PLAN_FILE
from relief_ray.records.sync.sender import PATIENCE_AFTER_STOP_S, PATIENCE_S, Mirroring
from relief_ray.studies.plan import Plan


@dataclass(kw_only=True, slots=True)
class MirrorState:
    """``uri``: of the copy, without credentials; empty without one. ``is_behind``: it lacks something that is here."""

    uri: str = ""
    is_behind: bool = False


def _uri_of(plan: Plan) -> str | None:
    """The URI that the plan's runs are copied to; None: they are not."""
    return next((cell.config.runtime.mirror for cell in plan.cells), None)


def _root_of(plan: Plan) -> tuple[Path, str | None]:
    """The folder that is copied, and the one run in it that is at work; None: all of them."""
    folder = plan.out.absolute()
    if plan.is_single and (folder.parent / PLAN_FILE).exists():
        return folder.parent, folder.name
    return folder, None


@contextmanager
def mirrored(
    plan: Plan, on_note: Callable[[str], None], is_stopped: Callable[[], bool] = never
) -> Iterator[MirrorState]:
    """Copy the plan's folder while the block runs, where its configuration names a URI; wait for it at the end.

    After an error, or where ``is_stopped`` says so at the end, for seconds only.

    Raises:
        UserError: the URI is none, its library is not installed, or it holds something else.
    """
    uri, state = _uri_of(plan), MirrorState()
    if uri is None:
        yield state
        return
    root, only = _root_of(plan)
    mirroring = Mirroring(root, uri, on_note, only=only)
    state.uri, is_whole = mirroring.uri, False
    try:
        yield state
        is_whole = not is_stopped()
    finally:
        if is_whole:
            done = mirroring.close(PATIENCE_S)
        else:
            done = mirroring.close(PATIENCE_AFTER_STOP_S, limit_s=PATIENCE_AFTER_STOP_S)
        state.is_behind = not done
        on_note(f"mirror {state.uri}: {'up to date' if done else f'behind; everything is in {root}'}")
