"""Hosts (worker processes) of a run: created and ended together by the driver."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.runtime import user_code
from actors.runtime.client_host import ClientHost, Handle
from actors.runtime.placement import HostSpec, Mode, Placement, Plan, Resources, plan_actors, plan_packed, reserve
from actors.runtime.session import process_options
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
        client_timeout_s: seconds that a client may take for its round; None: without limit.
        quorum: share of a round's clients that must answer.
    """

    mode: Mode = "packed"
    num_hosts: int | None = None
    placement: Placement = "auto"
    client_timeout_s: float | None = 600.0
    quorum: float = 1.0


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
    cluster, needs_gpu = ray.cluster_resources(), job.trainer.device == "cuda"
    if options.mode == "actors":
        plan = plan_actors(job.fleet, types or {}, options.placement, cluster, needs_gpu)
    else:
        plan = plan_packed(options.num_hosts, cluster, needs_gpu, job.trainer.stack)
    reservation = reserve(plan, _RESERVE_S)
    actor = ray.remote(ClientHost)
    options_of = [actor_options(spec, i, reservation, job.num_threads) for i, spec in enumerate(plan.hosts)]
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


def actor_options(spec: HostSpec, index: int, reservation: PlacementGroup | None, num_threads: int) -> dict[str, Any]:
    """Ray's options of one host."""
    options: dict[str, Any] = {
        "num_cpus": spec.num_cpus,
        "num_gpus": spec.num_gpus,
        "resources": dict(spec.resources),
        "max_restarts": -1,
        "max_task_retries": 0,
        **process_options(num_threads, hide_gpus=not spec.num_gpus),
    }
    if reservation is not None:
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
            placement_group=reservation, placement_group_bundle_index=index
        )
    return options
