"""``CostPlanner`` predicts what a round will take; ``accounting.CostAccountant`` charges what it took.

Both count through the same ``Counter``, so a prediction and the charge of the same work agree to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from relief_ray.core.codec import encoded_nbytes
from relief_ray.core.groups import GroupId, GroupLayout, Part, Selection
from relief_ray.core.messages import Assignment, ClientId, Fleet, StageTimes
from relief_ray.core.stages import CostTable, Engine, Missing, missing_mode
from relief_ray.devices.time import TimeModel, checked_times
from relief_ray.devices.types import DeviceType
from relief_ray.devices.workload import (
    ADAM_FLOPS_PER_VALUE,
    Footprint,
    Workload,
    footprint,
    num_steps,
    shares,
)

CACHE_LIMIT = 20_000
_Parts = frozenset[tuple[GroupId, Part]]
_Read = frozenset["str | None"]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Counter:
    """Counts FLOPs and payload bytes of a backbone, with a cache.

    The caches never change a result and are cleared when they grow large.
    """

    def __init__(
        self,
        costs: CostTable,
        layout: GroupLayout,
        missing: Missing,
        optimizer_flops: float = ADAM_FLOPS_PER_VALUE,
    ) -> None:
        """``costs`` and ``layout`` of one backbone; ``missing`` and the optimizer's FLOPs per value as the run has."""
        self.costs = costs
        self.layout = layout
        self.missing = missing
        self.optimizer_flops = optimizer_flops
        self._footprints: dict[tuple[tuple[str, ...], Engine, Missing, _Parts, _Read], Footprint] = {}
        self._bytes: dict[_Parts, int] = {}

    def footprint(self, present: tuple[str, ...], task: Assignment, engine: Engine) -> Footprint:
        """FLOPs per window of ``task`` for a client of these modalities."""
        read = frozenset([task.output, *task.taps])
        missing = missing_mode(self.missing, omit_absent=task.omit_absent)
        key = (present, engine, missing, frozenset(task.train.items()), read)
        if key not in self._footprints:
            _make_room(self._footprints)
            share = shares(self.layout, task.train)
            self._footprints[key] = footprint(self.costs, present, share, engine, missing, read, self.optimizer_flops)
        return self._footprints[key]

    def nbytes(self, selection: Selection) -> int:
        """Length of the encoded payload; 0 where nothing is sent."""
        key = frozenset(selection.items())
        if key not in self._bytes:
            _make_room(self._bytes)
            self._bytes[key] = encoded_nbytes(self.layout, selection) if selection else 0
        return self._bytes[key]


@dataclass(frozen=True, kw_only=True, slots=True)
class CostPlanner:
    """The ``Planner`` of a simulated run: predicts stage times for the allocator, with one clock.

    Attributes:
        counter: counts FLOPs and bytes of the backbone.
        fleet: the clients, with their windows and sensors.
        types: the fleet's device types by name.
        model: the time model that planning goes by.
        engine: the training engine whose FLOPs are counted.
        batch_size: windows per optimizer step.
    """

    counter: Counter
    fleet: Fleet
    types: Mapping[str, DeviceType]
    model: TimeModel
    engine: Engine = "naive"
    batch_size: int = 32

    def load(self, client: ClientId, assignment: Assignment) -> Workload:
        """FLOPs and bytes of ``assignment`` for the client's windows and modalities."""
        info = self.fleet[client]
        steps = num_steps(info.num_windows, assignment.epochs, self.batch_size)
        load = self.counter.footprint(info.modalities, assignment, self.engine).workload(
            num_windows=info.num_windows,
            epochs=assignment.epochs,
            num_steps=steps,
            bytes_up=self.counter.nbytes(assignment.up),
            bytes_down=self.counter.nbytes(assignment.down),
        )
        return replace(load, extra_flops=steps * assignment.step_flops) if assignment.step_flops else load

    def times(self, client: ClientId, assignment: Assignment) -> StageTimes:
        """Predicted stage times of ``assignment`` on the client's device."""
        return checked_times(self.model, self.types[self.fleet[client].device], self.load(client, assignment))


def assumed_engine(name: str) -> Engine:
    """The engine that a clock without one of its own (``measured``) counts for a run's training engine."""
    return "naive" if name == "naive" else "reuse"


def _make_room(cache: dict[_Key, _Value]) -> None:
    if len(cache) >= CACHE_LIMIT:
        cache.clear()
