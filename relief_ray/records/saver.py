"""Checkpoints off the critical path: the next round trains while the last one's state is written."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from relief_ray.records import checkpoint
from relief_ray.records.checkpoint import Binding, Checkpoint


class Saver:
    """Saves one checkpoint at a time in a thread of its own; what went wrong is raised by the next call.

    A run killed meanwhile goes on from the generation before: the same bits, one round more to compute.
    """

    def __init__(self) -> None:
        """Nothing is under way."""
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[Path] | None = None

    def save(self, run_folder: Path, point: Checkpoint, binding: Binding) -> None:
        """Begins to save ``point``, whose tensors nobody may change any more, once the last one is done.

        Raises:
            UserError: the last one failed.
        """
        self.wait()
        self._pending = self._pool.submit(checkpoint.save, run_folder, point, binding)

    def wait(self) -> None:
        """Returns when everything is on disk.

        Raises:
            UserError: it could not be saved; the older generations stay.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
