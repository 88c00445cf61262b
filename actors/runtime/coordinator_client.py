"""The driver's side of a separate coordinator: starts it, follows it, restarts its run where the process died."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from actors.runtime.client_host import Handle
from actors.runtime.coordinator import Coordinator, Progress, RunRequest
from actors.runtime.host_group import start_named
from actors.runtime.session import process_options
from relief_ray.errors import UserError
from relief_ray.experiment.experiment import OnRound
from relief_ray.records.schema import RunRecord

# Where a process dies while Ray starts it, Ray notices after a minute, and others may wait for its place until then.
_MAX_STARTS, _START_S, _POLL_S = 3, 180.0, 0.25


@dataclass(kw_only=True)
class ProgressRelay:
    """Passes every round and every repair of a run on to callbacks, once each."""

    path: Path
    on_round: OnRound
    on_note: Callable[[str], None]
    seen: int = -1
    noted: set[str] = field(default_factory=set)

    def pass_on(self, progress: Progress) -> None:
        """Pass on what is new; the coordinator may still speak of the run before this one."""
        if progress.path != self.path:
            return
        for repair in progress.repairs:
            if repair not in self.noted:
                self.noted.add(repair)
                self.on_note(f"repaired: {repair}")
        for record in progress.records:
            self.on_round(record)
            self.seen = record.round


def start_coordinator(run: str = "run") -> Handle:
    """The coordinator's actor, ``RUN/coordinator``, on the ``server`` node where the cluster has one."""
    # Ray's typing does not know this option of actors.
    remote = cast(Any, ray.remote)
    options = {
        "resources": {"server": 0.001} if "server" in ray.cluster_resources() else {},
        "max_restarts": -1,
        "max_task_retries": 0,
        **process_options(1, hide_gpus=False),
    }
    actor = remote(num_cpus=0, concurrency_groups={"control": 2})(Coordinator)
    return start_named(actor, f"{run}/coordinator", options)


def follow(
    coordinator: Handle,
    request: RunRequest,
    on_round: OnRound,
    on_note: Callable[[str], None],
    should_stop: Callable[[], bool],
) -> RunRecord:
    """Wait for a coordinator's run and pass its rounds on; where it dies, the run goes on from its checkpoint.

    Raises:
        UserError: the coordinator's process did not start in time.
        UserError, RoundVoid, ClientFailed: as the run raised them.
        RayActorError: the coordinator died again and again.
    """
    starts, relay = 1, ProgressRelay(path=request.path, on_round=on_round, on_note=on_note)
    run = coordinator.run.remote(request)
    while True:
        try:
            if should_stop():
                coordinator.stop.remote()
            done = bool(ray.wait([run], timeout=_POLL_S)[0])
            relay.pass_on(_progress(coordinator, relay))
            if done:
                return cast(RunRecord, ray.get(run))
        except RayTaskError as error:
            raise _cause(error) from error
        except RayActorError as error:
            if starts == _MAX_STARTS:
                raise
            starts += 1
            on_note("the coordinator's process died; it goes on from the last checkpoint")
            _await(coordinator, error)
            run = coordinator.run.remote(replace(request, reported=relay.seen if relay.seen >= 0 else None))


def _progress(coordinator: Handle, relay: ProgressRelay) -> Progress:
    try:
        return cast(Progress, ray.get(coordinator.progress.remote(relay.seen), timeout=_START_S))
    except GetTimeoutError as error:
        raise UserError(
            f"the coordinator did not answer for {_START_S:g} s; `ray status` shows what it waits for; what is done "
            f"is kept: relief-ray resume {relay.path}"
        ) from error


def _await(coordinator: Handle, error: RayActorError) -> None:
    """Wait until Ray has started the process anew."""
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        try:
            ray.get(coordinator.progress.remote(0), timeout=_START_S)
            return
        except RayActorError:
            time.sleep(_POLL_S)
    raise error


def _cause(error: RayTaskError) -> BaseException:
    """Exception that the coordinator raised, as it would have been raised here."""
    cause = error.cause
    assert isinstance(cause, BaseException)
    errno = getattr(cause, "errno", None)
    if isinstance(cause, ValueError) and isinstance(errno, int):
        cause.__cause__ = OSError(errno, str(cause))
    return cause
