"""The cost model in use: ``CostPlanner`` predicts before a round, ``CostAccountant`` charges after it.

Both go through the same ``footprint``, so a prediction and the bill of the same work agree to the bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from relief_ray.codec import encoded_nbytes
from relief_ray.devices.accounting import WholeRounds
from relief_ray.devices.energy import round_cost
from relief_ray.devices.time import FlopProportional, Measured, Split, TimeModel
from relief_ray.devices.types import DeviceType
from relief_ray.devices.workload import Footprint, Workload, footprint, num_steps, shares
from relief_ray.groups import GroupId, GroupLayout, Part, Selection
from relief_ray.messages import Assignment, ClientId, ClientInfo, Fleet, Receipt, RoundCost, StageTimes
from relief_ray.stages import CostTable, Engine, Missing, missing_mode

CACHE_LIMIT = 20_000
_Parts = frozenset[tuple[GroupId, Part]]
_Read = frozenset["str | None"]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """A time model and the engine it assumes; no engine: the one that the client really used."""

    model: TimeModel
    engine: Engine | None = None


def standard_clocks(
    flop_proportional: FlopProportional, split: Split, measured: Measured | None = None
) -> dict[str, Clock]:
    """The clocks that stand in every record: the paper's, the honest one without and with reuse, and a profile's."""
    clocks = {
        "flop_proportional": Clock(model=flop_proportional, engine="naive"),
        "split_naive": Clock(model=split, engine="naive"),
        "split_reuse": Clock(model=split, engine="reuse"),
    }
    return clocks if measured is None else clocks | {"measured": Clock(model=measured)}


class Counter:
    """Counts footprints and payloads of a backbone, each once.

    Caches are filled as questions come; they never change an answer and are dropped when they grow large.
    """

    def __init__(self, costs: CostTable, layout: GroupLayout, missing: Missing) -> None:
        """``costs`` and ``layout`` of one backbone; ``missing`` as the run has it."""
        self.costs = costs
        self.layout = layout
        self.missing = missing
        self._footprints: dict[tuple[tuple[str, ...], Engine, Missing, _Parts, _Read], Footprint] = {}
        self._bytes: dict[_Parts, int] = {}

    def footprint(self, present: tuple[str, ...], task: Assignment, engine: Engine) -> Footprint:
        """What a client of these modalities spends per window on ``task``."""
        read = frozenset([task.output, *task.taps])
        missing = missing_mode(self.missing, omit_absent=task.omit_absent)
        key = (present, engine, missing, frozenset(task.train.items()), read)
        if key not in self._footprints:
            _make_room(self._footprints)
            share = shares(self.layout, task.train)
            self._footprints[key] = footprint(self.costs, present, share, engine, missing, read)
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
    """The ``Planner`` of a simulated run: what the allocator believes about time."""

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
        return self.model.times(self.types[self.fleet[client].device], self.load(client, assignment))


@dataclass(frozen=True, kw_only=True, slots=True)
class CostAccountant:
    """The ``Accountant``: the same logged work under every clock, so that no second run is needed.

    ``whole``: the bill of a method that ``table`` accounting charges for everything, else None.
    """

    counter: Counter
    types: Mapping[str, DeviceType]
    clocks: Mapping[str, Clock] = field(default_factory=dict)
    whole: WholeRounds | None = None
    count_server_time: bool = False

    def charged(self, done: Sequence[Receipt], participants: Sequence[ClientInfo]) -> tuple[Receipt, ...]:
        """What a round is charged for: what was ``done``, or under ``table`` accounting what that says."""
        return tuple(done) if self.whole is None else self.whole.receipts(done, participants)

    def cost(self, receipts: Sequence[Receipt], fleet: Fleet, server_s: float = 0.0) -> dict[str, RoundCost]:
        """One ``RoundCost`` per clock; clients without receipt wait, with ``count_server_time`` all for the server."""
        waited_s = server_s if self.count_server_time else 0.0
        return {name: self._round(clock, receipts, fleet, waited_s) for name, clock in self.clocks.items()}

    def fedavg_reference(
        self,
        fleet: Fleet,
        *,
        epochs: int,
        batch_size: int = 32,
        engine: Engine,
        participants: Collection[ClientId] | None = None,
    ) -> dict[str, RoundCost]:
        """A FedAvg round under every clock: everyone trains and sends everything; the 1.00x of ``speedup``.

        ``engine`` is the one that a clock without its own assumes.
        """
        chosen = range(len(fleet)) if participants is None else sorted(participants)
        everything = self.counter.layout.select()
        tasks = [Assignment(client=n, down=everything, train=everything, up=everything, epochs=epochs) for n in chosen]
        reference: dict[str, RoundCost] = {}
        for name, clock in self.clocks.items():
            planner = CostPlanner(
                counter=self.counter,
                fleet=fleet,
                types=self.types,
                model=clock.model,
                engine=clock.engine or engine,
                batch_size=batch_size,
            )
            reference[name] = round_cost({t.client: planner.times(t.client, t) for t in tasks}, fleet, self.types)
        return reference

    def _round(self, clock: Clock, receipts: Sequence[Receipt], fleet: Fleet, server_s: float) -> RoundCost:
        times = {r.assignment.client: self._times(clock, r, fleet) for r in receipts}
        return round_cost(times, fleet, self.types, server_s)

    def _times(self, clock: Clock, receipt: Receipt, fleet: Fleet) -> StageTimes:
        info, work = fleet[receipt.assignment.client], receipt.work
        engine = clock.engine or assumed_engine(work.engine)
        load = self.counter.footprint(info.modalities, receipt.assignment, engine).workload(
            num_windows=work.num_windows,
            epochs=work.epochs,
            num_steps=work.num_steps,
            bytes_up=receipt.bytes_up,
            bytes_down=receipt.bytes_down,
        )
        device = self.types[info.device]
        times = clock.model.times(device, replace(load, extra_flops=work.extra_flops) if work.extra_flops else load)
        for trial, num_windows in receipt.probes:
            spent = self.counter.footprint(info.modalities, trial, engine)
            load = spent.workload(num_windows=num_windows, epochs=2, num_steps=1, bytes_up=0, bytes_down=0)
            times = _with_probe(times, clock.model.times(device, replace(load, extra_flops=2 * trial.step_flops)))
        return times


def _with_probe(times: StageTimes, probe: StageTimes) -> StageTimes:
    """A probe is two passes and one optimizer step; its result stays on the device."""
    return replace(
        times,
        forward_s=times.forward_s + probe.forward_s,
        backward_s=times.backward_s + probe.backward_s,
        optimizer_s=times.optimizer_s + probe.optimizer_s,
    )


def assumed_engine(name: str) -> Engine:
    """What a clock without an engine of its own (``measured``) assumes of the run's training engine."""
    return "naive" if name == "naive" else "reuse"


def _make_room(cache: dict[_Key, _Value]) -> None:
    if len(cache) >= CACHE_LIMIT:
        cache.clear()
