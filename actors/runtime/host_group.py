"""Hosts (worker processes) of a run: created and ended together by the driver."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.runtime import user_code
from actors.runtime.nodes import look_around
from actors.runtime.placement import HostSpec, Mode, Placement, Plan, Resources, plan_actors, plan_packed, reserve
from actors.runtime.session import process_options
from actors.runtime.worker import ClientHost, Handle
from actors.runtime.worker_data import DataMode
from relief_ray.training.job import Job

_RESERVE_S = 60.0
_MAX_NAMESAKES = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeOptions:
    """Layout of clients over the cluster; none of it changes a result.

    Attributes:
        mode: packed or an actor per client.
        num_hosts: number of packed worker processes; None: one per core.
        placement: typed, virtual, or auto.
        data: windows on other nodes than the driver's: their own data, or rows that are sent (``runtime.data``).
        client_timeout_s: seconds that a client may take for its round; ``auto``: ``limits.Limits`` says.
        on_timeout: whether clients whose time was over are sent once more while the round's time lasts.
        lost_wait_s: seconds that a lost host is waited for, once per loss.
        physical: whether hosts are devices: measured, each with a model object of its own (``runtime.physical``).
    """

    mode: Mode = "packed"
    num_hosts: int | None = None
    placement: Placement = "auto"
    data: DataMode = "auto"
    client_timeout_s: float | Literal["auto"] = "auto"
    on_timeout: Literal["retry", "drop"] = "retry"
    lost_wait_s: float = 60.0
    physical: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class HostGroup:
    """Actor handles in host order; holding the group keeps the job alive for hosts that restart."""

    plan: Plan
    handles: tuple[Handle, ...]
    job: ray.ObjectRef[Job]
    reservation: PlacementGroup | None

    def with_job(self, job: Job) -> HostGroup:
        """The same hosts for another job; they change over with its first call."""
        return replace(self, job=user_code.put(job, job.modules))

    def close(self) -> None:
        """End all hosts and give their places back."""
        if not ray.is_initialized():
            return
        for handle in self.handles:
            with suppress(ray.exceptions.RayError):
                ray.kill(handle)
        if self.reservation is not None:
            remove_placement_group(self.reservation)


def open_hosts(
    job: Job, options: RuntimeOptions, types: Mapping[str, Resources] | None = None, run: str = "run"
) -> HostGroup:
    """Place and start the hosts; ``types``: device type -> Ray resources. Does not wait for them.

    ``run`` is the first part of their names in Ray's dashboard.

    Raises:
        UserError: the cluster lacks a resource, named with the fix.
    """
    nodes, needs_gpu = look_around(), job.trainer.device == "cuda" and not job.device_by_host
    if options.mode == "actors":
        plan = plan_actors(job.fleet, types or {}, options.placement, nodes.each, needs_gpu)
    else:
        plan = plan_packed(options.num_hosts, nodes.total, needs_gpu, job.trainer.stack)
    reservation = reserve(plan, _RESERVE_S)
    actor = ray.remote(ClientHost)
    hides = not job.device_by_host
    options_of = [actor_options(spec, i, reservation, job.num_threads, hides) for i, spec in enumerate(plan.hosts)]
    names = [f"{run}/{spec.name}{_type_of(spec, job)}" for spec in plan.hosts]
    handles = tuple(start_named(actor, name, chosen) for name, chosen in zip(names, options_of, strict=True))
    return HostGroup(plan=plan, handles=handles, job=user_code.put(job, job.modules), reservation=reservation)


def _type_of(spec: HostSpec, job: Job) -> str:
    """`` type C`` of the one client that a host trains; empty where any may go there."""
    return "" if spec.client is None else f" type {job.fleet[spec.client].device}"


def start_named(actor: Handle, name: str, options: Mapping[str, Any]) -> Handle:
    """Start an actor under a name for Ray's dashboard, which its ``repr`` gives too.

    Names are used once in a namespace, and that of an actor that is being ended is taken still: then a number follows.
    """
    for number in range(1, _MAX_NAMESAKES):
        chosen = name if number == 1 else f"{name} ({number})"
        try:
            return actor.options(**options, name=chosen).remote(chosen)
        except ray.exceptions.ActorAlreadyExistsError:
            continue
    return actor.options(**options).remote(name)


def actor_options(
    spec: HostSpec, index: int, reservation: PlacementGroup | None, num_threads: int, hides_gpus: bool = True
) -> dict[str, Any]:
    """Ray's options of one host; ``hides_gpus``: it sees none that it did not ask for."""
    options: dict[str, Any] = {
        "num_cpus": spec.num_cpus,
        "num_gpus": spec.num_gpus,
        "resources": dict(spec.resources),
        "max_restarts": -1,
        "max_task_retries": 0,
        **process_options(num_threads, hide_gpus=hides_gpus and not spec.num_gpus),
    }
    if reservation is not None:
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
            placement_group=reservation, placement_group_bundle_index=index
        )
    return options
