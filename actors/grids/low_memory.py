"""A trial whose process Ray ends because its node is low on memory: Tune knows no such end and would stop with it.

Ray reports it as an ``OutOfMemoryError``, which is no ``RayActorError``: Tune raises in the driver, and with one cell
the whole grid ends. Here it counts as the death of that trial's process, which is tried once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.air.execution._internal import RayActorManager
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.tune.execution import tune_controller


class _ActorManager(RayActorManager):
    """Tune's manager of trials' processes, for which an end by lack of memory is the death of one process."""

    def _actor_start_failed(self, tracked_actor: Any, exception: Exception) -> None:
        super()._actor_start_failed(tracked_actor, _as_death(exception))

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        super()._actor_task_failed(tracked_actor_task, _as_death(exception))


def _as_death(error: Exception) -> Exception:
    """The death of a process, with Ray's words, for its end by lack of memory; any other error as it is."""
    return RayActorError(error_msg=f"OutOfMemoryError: {error}") if isinstance(error, OutOfMemoryError) else error


@contextmanager
def low_memory_ends_one_trial() -> Iterator[None]:
    """Inside the block, tuners take a trial whose node is low on memory for one whose process died.

    Tune has no setting for it. Checked with a real end by Ray's memory monitor (``tests/actors/grids/test_killed.py``).
    """
    module: Any = tune_controller
    module.RayActorManager = _ActorManager
    try:
        yield
    finally:
        module.RayActorManager = RayActorManager
