"""Prices a fleet without its data: what a method would allocate there, and what rounds would cost.

Shapes come from the dataset's specification, so nothing is read, trained or downloaded. ``fleet whatif`` and the table
of docs/allocation.md are computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from relief_ray.config.experiment import ExperimentConfig
from relief_ray.core.federated import RoundContext, Strategy
from relief_ray.core.groups import GroupLayout
from relief_ray.core.messages import Assignment, Fleet, Receipt, RoundCost, StageTimes, Work
from relief_ray.core.stages import Engine
from relief_ray.core.streams import Streams
from relief_ray.devices.accounting import CostAccountant
from relief_ray.devices.fleet import with_windows
from relief_ray.devices.planner import CostPlanner
from relief_ray.devices.time import TimeModel
from relief_ray.devices.types import DeviceType
from relief_ray.devices.workload import num_steps
from relief_ray.experiment.clocks import make_accountant, make_planner, run_clocks
from relief_ray.experiment.setup import build_backbone, configured_fleet, count, fedavg_reference
from relief_ray.models.backbone import InputShape


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """A fleet with what its rounds cost.

    Attributes:
        config: the experiment whose method, backbone, fleet and costs these are.
        fleet: clients with their numbers of training windows.
        types: device types by name.
        strategy: the method.
        layout: groups of the backbone with the method's additions.
        engine: the training engine that clocks without one of their own count.
        planner: what the allocator asks.
        accountant: what prices finished work.
        plain: the accountant of the backbone without the method's additions, for FedAvg's round.
    """

    config: ExperimentConfig
    fleet: Fleet
    types: dict[str, DeviceType]
    strategy: Strategy
    layout: GroupLayout
    engine: Engine
    planner: CostPlanner
    accountant: CostAccountant
    plain: CostAccountant

    def context(self, round_: int = 1) -> RoundContext:
        """Return the method's input in a round in which everyone takes part."""
        return RoundContext(
            round=round_,
            num_rounds=self.config.rounds,
            fleet=self.fleet,
            layout=self.layout,
            participants=self.fleet.clients,
            planner=self.planner,
            streams=Streams(seed=self.config.seed),
            epochs=self.config.training.epochs,
            batch_size=self.config.training.batch_size,
        )

    def receipts(self, tasks: Sequence[Assignment]) -> tuple[Receipt, ...]:
        """Return what clients would hand in that do all that their tasks ask."""
        return tuple(self._receipt(task) for task in tasks)

    def _receipt(self, task: Assignment) -> Receipt:
        windows, counter = self.fleet[task.client].num_windows, self.accountant.counter
        steps = num_steps(windows, task.epochs, self.config.training.batch_size)
        work = Work(
            num_windows=windows,
            epochs=task.epochs,
            num_steps=steps,
            engine=self.engine,
            loss=0.0,
            measured=StageTimes(),
            extra_flops=steps * task.step_flops,
        )
        up, down = counter.nbytes(task.up), counter.nbytes(task.down)
        return Receipt(assignment=task, work=work, bytes_down=down, bytes_up=up)

    def cost(self, receipts: Sequence[Receipt], server_s: float = 0.0) -> dict[str, RoundCost]:
        """Return the cost of a round by clock; everyone takes part."""
        return self.accountant.cost(self.accountant.charged(receipts, self.fleet.clients), self.fleet, server_s)

    def fedavg(self, participants: Sequence[int] | None = None) -> dict[str, RoundCost]:
        """Return the cost of a FedAvg round by clock, of the whole fleet or of some clients."""
        return fedavg_reference(self.config, self.plain, self.fleet, self.engine, participants)


def price_fleet(
    config: ExperimentConfig,
    windows: Sequence[int],
    engine: Engine = "naive",
    clocks: Mapping[str, TimeModel] | None = None,
) -> Hardware:
    """Build the fleet of a configuration with ``windows`` for each client; ``clocks``: other than the present ones.

    Raises:
        UserError: fleet or costs are wrong; place and fix are named.
    """
    spec, strategy = config.data.spec(), config.strategy.build()
    fleet, types = configured_fleet(config, len(windows))
    fleet = with_windows(fleet, list(windows))
    shape = InputShape(channels=tuple(spec.modalities), window=spec.window, num_classes=len(spec.classes))
    plain = build_backbone(config, shape, engine)
    additions = strategy.adapt(plain.layout, fleet)
    extended = build_backbone(config, shape, engine, additions) if additions else plain
    known = run_clocks(config, engine) if clocks is None else dict(clocks)
    accountant = make_accountant(config, count(extended, config), plain.layout, types, known, engine)
    return Hardware(
        config=config,
        fleet=fleet,
        types=types,
        strategy=strategy,
        layout=extended.layout,
        engine=engine,
        planner=make_planner(config, accountant.counter, fleet, types, known[config.costs.planning_time], engine),
        accountant=accountant,
        plain=replace(accountant, counter=count(plain, config)) if additions else accountant,
    )
