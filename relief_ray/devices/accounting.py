"""Charges for a round: time, bytes and energy of the work that was done, under every clock (Section VI-A).

``costs.accounting`` decides which work that is: what clients did (``method``), or what Tables I and II imply
(``table``; docs/costs.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from pydantic import Field, field_validator

from relief_ray.core.codec import FLOAT32, Format, Wire, encoded_nbytes, rows_nbytes
from relief_ray.core.groups import GroupLayout, Selection
from relief_ray.core.messages import (
    Assignment,
    ClientCost,
    ClientId,
    ClientInfo,
    Fleet,
    Receipt,
    RoundCost,
    StageTimes,
    Work,
)
from relief_ray.core.stages import CostTable, Engine, Missing, absent_groups, missing_mode, received_rows
from relief_ray.devices.fleet import DeviceType
from relief_ray.devices.time import TimeModel, checked_times, clock_name
from relief_ray.devices.workload import ADAM_FLOPS_PER_VALUE, Footprint, Workload, footprint, num_steps, shares
from relief_ray.support.frozen import FrozenConfig

# ``CostPlanner`` predicts what a round will take; ``CostAccountant`` charges what it took.
#
# Both count through the same ``Counter``, so a prediction and the charge of the same work agree to the bit.


CACHE_LIMIT = 60_000
T = TypeVar("T")


class Counter:
    """Counts FLOPs and payload bytes of a backbone, with a cache.

    The cache never changes a result and is cleared when it grows large.
    """

    def __init__(
        self,
        costs: CostTable,
        layout: GroupLayout,
        missing: Missing,
        optimizer_flops: float = ADAM_FLOPS_PER_VALUE,
        wire: Wire = FLOAT32,
    ) -> None:
        """``costs`` and ``layout`` of one backbone; ``missing``, the optimizer's FLOPs per value and formats as run."""
        self.costs = costs
        self.layout = layout
        self.missing = missing
        self.optimizer_flops = optimizer_flops
        self.wire = wire
        self._cache: dict[Hashable, Any] = {}

    def _once(self, key: Hashable, count: Callable[[], T]) -> T:
        """What ``count`` gives, kept by ``key``."""
        if key not in self._cache:
            if len(self._cache) >= CACHE_LIMIT:
                self._cache.clear()
            self._cache[key] = count()
        kept: T = self._cache[key]
        return kept

    def footprint(self, present: tuple[str, ...], task: Assignment, engine: Engine) -> Footprint:
        """FLOPs per window of ``task`` for a client of these modalities."""
        read = frozenset([task.output, *task.taps])
        missing = missing_mode(self.missing, omit_absent=task.omit_absent)
        receives = self._receives_outputs(task, present)

        def count() -> Footprint:
            share = shares(self.layout, task.train)
            return footprint(self.costs, present, share, engine, missing, read, self.optimizer_flops, receives)

        return self._once(("work", present, engine, missing, frozenset(task.train.items()), read, receives), count)

    def _receives_outputs(self, task: Assignment, present: tuple[str, ...]) -> bool:
        """Whether absent modalities' networks are not at the client, so that it has their outputs from the server.

        That is ``transfer.download=reachable``, unless the task holds the whole model all the same.
        """
        if not self.wire.reachable:
            return False
        read = frozenset([task.output, *task.taps])
        absent = self._once(("absent", present, read), lambda: absent_groups(self.costs.running(read), present))
        return not all(map(task.holds, absent))

    def nbytes_up(self, task: Assignment) -> int:
        """Length of the encoded update; 0 where nothing is sent."""
        return self.nbytes(task.charged_up or task.up, self.wire.up)

    def nbytes_down(self, task: Assignment, present: tuple[str, ...]) -> int:
        """Length of the encoded download to a client of these modalities; 0 where nothing is sent."""
        return self.nbytes(task.down, self.wire.down) + self._rows_nbytes(task, present)

    def _rows_nbytes(self, task: Assignment, present: tuple[str, ...]) -> int:
        """Length of the rows in place of networks of absent modalities (``transfer.download=reachable``)."""
        if task.omit_absent or not self._receives_outputs(task, present):
            return 0

        def count() -> int:
            names = received_rows(self.costs.running(), present, self.layout.blocks, self.missing)
            return rows_nbytes({s: round(self.costs.flops[s].output_bytes / 4) for s in names})

        return self._once(("rows", present), count)

    def nbytes(self, selection: Selection, form: Format = "float32") -> int:
        """Length of the encoded values of ``selection``; 0 where there are none."""
        key = "values", frozenset(selection.items()), form
        return self._once(key, lambda: encoded_nbytes(self.layout, selection, form) if selection else 0)


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
    engine: Engine
    batch_size: int

    def load(self, client: ClientId, assignment: Assignment) -> Workload:
        """FLOPs and bytes of ``assignment`` for the client's windows and modalities."""
        info = self.fleet[client]
        steps = num_steps(info.num_windows, assignment.epochs, self.batch_size)
        down, up = self.nbytes(client, assignment)
        return self.counter.footprint(info.modalities, assignment, self.engine).workload(
            num_windows=info.num_windows,
            epochs=assignment.epochs,
            num_steps=steps,
            bytes_up=up,
            bytes_down=down,
            extra_flops=steps * assignment.step_flops,
        )

    def nbytes(self, client: ClientId, assignment: Assignment) -> tuple[int, int]:
        """Bytes of ``assignment`` that come down to the client, and that go up from it."""
        present = self.fleet[client].modalities
        return self.counter.nbytes_down(assignment, present), self.counter.nbytes_up(assignment)

    def times(self, client: ClientId, assignment: Assignment) -> StageTimes:
        """Predicted stage times of ``assignment`` on the client's device."""
        return checked_times(self.model, self.types[self.fleet[client].device], self.load(client, assignment))


def assumed_engine(name: str) -> Engine:
    """The engine that a clock without one of its own (``measured``) counts for a run's training engine."""
    return "naive" if name == "naive" else "reuse"


Accounting = Literal["method", "table"]


class CostConfig(FrozenConfig):
    """Simulated time and energy (docs/costs.md)."""

    planning_time: str = "flop_proportional"
    """The time model that allocation plans with, by name or import path."""
    utilisation: float | None = Field(default=None, gt=0.0)
    """Factor on peak FLOP/s in the FLOP-based time models; None: the value fitted for the backbone."""
    profile: str | None = None
    """File with a measured device profile, for time models that need one."""
    accounting: Accounting = "method"
    """``method`` charges what was done, ``table`` what the paper's Tables I and II charge."""
    count_server_time: bool = False
    """Whether a round also lasts as long as the server's aggregation took here."""

    @field_validator("planning_time")
    @classmethod
    def _known_clock(cls, name: str) -> str:
        return clock_name(name)


# Added groups whose bytes Tables I and II add to FedAvg's: adapters (+6.7 %) and routers (+3.3 %).
_ADDED_ROLES = ("connector", "router")


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeRounds:
    """Bill of a method that Tables I and II list with FedAvg's rounds and bytes although it trains or sends less.

    Every participant is charged for training and sending the backbone (``StrategyConfig.paper_accounting``).
    ``own``: the backbone's groups, in the layout of ``counter``, which also has what the method adds.
    """

    counter: Counter
    own: Selection
    epochs: int
    batch_size: int
    engine: str

    def receipts(self, done: Sequence[Receipt], participants: Iterable[ClientInfo]) -> tuple[Receipt, ...]:
        """One receipt per participant, idle or not: FedAvg's work and bytes, and the bytes of added groups sent."""
        sent = {r.assignment.client: r.assignment.up for r in done}
        return tuple(self._receipt(client, sent.get(client.id, {})) for client in participants)

    def _receipt(self, client: ClientInfo, sent: Selection) -> Receipt:
        layout = self.counter.layout
        added = {j: part for j, part in sent.items() if j not in self.own and layout[j].role in _ADDED_ROLES}
        payload = {**self.own, **added}
        payload = {j: payload[j] for j in layout.ids if j in payload}
        task = Assignment(client=client.id, down=payload, train=self.own, up=payload, epochs=self.epochs)
        work = Work(
            num_windows=client.num_windows,
            epochs=self.epochs,
            num_steps=num_steps(client.num_windows, self.epochs, self.batch_size),
            engine=self.engine,
            loss=0.0,
            measured=StageTimes(),
        )
        up, down = self.counter.nbytes_up(task), self.counter.nbytes_down(task, client.modalities)
        return Receipt(assignment=task, work=work, bytes_up=up, bytes_down=down)


# Stages of a probe's two passes and one optimizer step.
_COMPUTED = ("forward_s", "backward_s", "optimizer_s")


def round_cost(
    times: Mapping[ClientId, StageTimes], fleet: Fleet, types: Mapping[str, DeviceType], server_s: float = 0.0
) -> RoundCost:
    """Cost of a synchronous round, which lasts as long as its slowest client; clients without work wait all the time.

    ``round_s = max_n busy_s + server_s``; ``energy_j`` sums over the fleet. Clients stand in fleet order.
    """
    assert all(0 <= n < len(fleet) for n in times), f"times of clients {sorted(times)} in a fleet of {len(fleet)}"
    round_s = max((t.busy_s for t in times.values()), default=0.0) + server_s
    costs = []
    for client in fleet.clients:
        spent = times.get(client.id, StageTimes())
        wait_s = round_s - spent.busy_s
        energy_j = types[client.device].power.energy_j(spent, wait_s)
        costs.append(ClientCost(client=client.id, times=spent, wait_s=wait_s, energy_j=energy_j))
    return RoundCost(clients=tuple(costs), round_s=round_s, energy_j=sum(c.energy_j for c in costs))


@dataclass(frozen=True, kw_only=True, slots=True)
class CostAccountant:
    """The ``Accountant``: charges the same recorded work under every clock, so that no second run is needed.

    Attributes:
        counter: counts FLOPs and bytes of the backbone.
        types: the fleet's device types by name.
        clocks: time models by name.
        whole: the rule of ``table`` accounting where it applies to the method, else None.
        count_server_time: whether a round also lasts as long as the server's aggregation took here.
    """

    counter: Counter
    types: Mapping[str, DeviceType]
    clocks: Mapping[str, TimeModel] = field(default_factory=dict)
    whole: WholeRounds | None = None
    count_server_time: bool = False

    def charged(self, done: Sequence[Receipt], participants: Sequence[ClientInfo]) -> tuple[Receipt, ...]:
        """The receipts to charge: those of the work ``done``, or of the work that ``table`` accounting assumes."""
        return tuple(done) if self.whole is None else self.whole.receipts(done, participants)

    def cost(self, receipts: Sequence[Receipt], fleet: Fleet, server_s: float = 0.0) -> dict[str, RoundCost]:
        """One ``RoundCost`` per clock; clients without receipt wait, with ``count_server_time`` all for the server."""
        waited_s = server_s if self.count_server_time else 0.0
        return {
            name: round_cost(
                {r.assignment.client: self._times(clock, r, fleet) for r in receipts}, fleet, self.types, waited_s
            )
            for name, clock in self.clocks.items()
        }

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
                model=clock,
                engine=clock.engine or engine,
                batch_size=batch_size,
            )
            reference[name] = round_cost({t.client: planner.times(t.client, t) for t in tasks}, fleet, self.types)
        return reference

    def _times(self, clock: TimeModel, receipt: Receipt, fleet: Fleet) -> StageTimes:
        info, work = fleet[receipt.assignment.client], receipt.work
        engine = clock.engine or assumed_engine(work.engine)
        load = self.counter.footprint(info.modalities, receipt.assignment, engine).workload(
            num_windows=work.num_windows,
            epochs=work.epochs,
            num_steps=work.num_steps,
            bytes_up=receipt.bytes_up,
            bytes_down=receipt.bytes_down,
            extra_flops=work.extra_flops,
        )
        device = self.types[info.device]
        times = checked_times(clock, device, load)
        for trial, num_windows in receipt.probes:
            spent = self.counter.footprint(info.modalities, trial, engine)
            load = spent.workload(num_windows=num_windows, epochs=2, num_steps=1, extra_flops=2 * trial.step_flops)
            probe = checked_times(clock, device, load)
            # Its result stays on the device and is not sent.
            times = replace(times, **{s: getattr(times, s) + getattr(probe, s) for s in _COMPUTED})
        return times
