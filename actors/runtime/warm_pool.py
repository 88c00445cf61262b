"""Reuses worker processes and coordinator for consecutive runs with equal requirements."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import ray

from actors.runtime.coordinator_client import start_coordinator
from actors.runtime.placement import Resources, WorkerGroup, open_workers
from actors.runtime.worker import Handle
from relief_ray.config.runtime import RuntimeConfig
from relief_ray.training.inputs import InputCache
from relief_ray.training.job import Job

_ALIVE_S = 5.0


class WorkerCache:
    """Keeps workers and coordinator from one run to the next; ``close`` ends them.

    ``inputs``: prepared windows of runs whose clients are in this process.
    """

    def __init__(self, name: str = "run") -> None:
        """Start without processes; ``name`` of the run, study or cell is the first part of their names."""
        self._name = name
        self._needs: object = None
        self._group: WorkerGroup | None = None
        self._coordinator: Handle | None = None
        self.inputs = InputCache()

    def workers(self, job: Job, options: RuntimeConfig, types: Mapping[str, Resources]) -> WorkerGroup:
        """Return workers for this job: those of the last run where they fit and answer, new ones otherwise.

        Raises:
            UserError: the cluster lacks a resource, named with the fix.
        """
        devices = tuple(c.device for c in job.fleet.clients) if options.mode == "actors" else ()
        # Everything that workers depend on at their start; runs with equal needs may share them.
        needs = options, types, devices, job.num_threads, job.trainer.device, job.trainer.stack
        if self._group is not None and self._needs == needs and _alive(self._group):
            self._group = self._group.with_job(job)
        else:
            self._end_workers()
            self._group, self._needs = open_workers(job, options, types, self._name), needs
        return self._group

    def coordinator(self) -> Handle:
        """Return the coordinator's actor; start it the first time."""
        if self._coordinator is None:
            self._coordinator = start_coordinator(self._name)
        return self._coordinator

    def close(self) -> None:
        """End all processes; a later run starts new ones."""
        self._end_workers()
        if self._coordinator is not None and ray.is_initialized():
            with suppress(ray.exceptions.RayError):
                ray.kill(self._coordinator)
        self._coordinator = None

    def _end_workers(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = self._needs = None


def _alive(group: WorkerGroup) -> bool:
    try:
        ray.get([handle.hello.remote() for handle in group.handles], timeout=_ALIVE_S)
    except ray.exceptions.RayError:
        return False
    return True
