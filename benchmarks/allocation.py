"""Compute what RELIEF's budget grants whom, and what its rounds cost, on the paper's fleets and ours, untrained.

``python -m benchmarks.allocation [--doc docs/allocation.md] [--backbone2]`` writes the tables between the markers of
that page, or prints them. Shapes and costs are counted on the real backbones; divergences are not known without
training, so groups are ranked by their number of values, which is how they are mostly ranked in real rounds.
``--backbone2`` adds MOMENT ``small`` (35 million values are built; no download).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from benchmarks.marked import filled, table
from relief_ray.config.experiment import parse
from relief_ray.core.groups import GroupId
from relief_ray.core.messages import Assignment, Receipt, RoundCost, ServerState, StageTimes, Work
from relief_ray.devices.workload import num_steps
from relief_ray.experiment.setup import Model
from relief_ray.report.paper import read_paper
from relief_ray.server.aggregation import to_tensor
from relief_ray.strategies.relief import Relief, budget
from relief_ray.strategies.relief.budget import D_BAR
from relief_ray.strategies.relief.strategy import fleet_loads, planned_round_s, target_s
from relief_ray.studies.what_if import price_fleet

Values = Mapping[str, object]
CLOCKS = ("flop_proportional", "split_naive")
GAPS = (10, 55, 100)
RANDOM_ROUNDS = 200
KIB = 2**10


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetCase:
    """Training windows of all clients together, clients and local epochs of a study."""

    title: str
    data: str
    windows: int
    clients: int
    epochs: int
    fleet: Values
    sizes: tuple[int, ...] = (20, 100)


PAPER = "the paper's protocol: 1,900 windows a client, 5 epochs"
CASES = (
    FleetCase(title=f"PAMAP2, {PAPER}", data="pamap2", windows=15_200, clients=8, epochs=5, fleet={}),
    FleetCase(title=f"MHEALTH, {PAPER}", data="mhealth", windows=19_000, clients=10, epochs=5, fleet={}),
    FleetCase(title="`dsa`, 722 windows a client, 2 epochs", data="dsa", windows=5_776, clients=8, epochs=2, fleet={}),
    FleetCase(title=f"`dsa`, {PAPER}", data="dsa", windows=15_200, clients=8, epochs=5, fleet={}),
    FleetCase(
        title=f"the testbed's devices (C at 15 W) with PAMAP2, {PAPER}",
        data="pamap2",
        windows=15_200,
        clients=8,
        epochs=5,
        fleet={"preset": "testbed"},
    ),
)
RULES: Mapping[str, Values] = {
    "`count` (default)": {},
    "`cover: true`": {"cover": True},
    "`slots_slowest: 2`": {"slots_slowest": 2},
    "`slots_slowest: 3`": {"slots_slowest": 3},
    "`slots_slowest: 4`": {"slots_slowest": 4},
    "`fill: time`": {"fill": "time"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """An allocation of the whole fleet with its price under the clock that planned it.

    Attributes:
        target_s: T*, the budget.
        planned_s: the longest round that this budget allows.
        groups: (allocated, granted, accessible) numbers of groups of the first client of each type.
        slots: (decided by the ranking, all) groups that clients train.
        untrained: groups that no client trains.
        cost: the round.
        fedavg: FedAvg's round.
        up_share: mean upload over FedAvg's.
        up_bytes: mean upload per client.
    """

    target_s: float
    planned_s: float
    groups: dict[str, tuple[int, int, int]]
    slots: tuple[int, int]
    untrained: tuple[GroupId, ...]
    cost: RoundCost
    fedavg: RoundCost
    up_share: float
    up_bytes: float


def hardware_of(
    case: FleetCase,
    clock: str,
    strategy: Values | str,
    gap: float = 55,
    number: int | None = None,
    backbone: Values | str = "cnn",
) -> Model:
    """Build a case's fleet: ``number`` clients share its windows evenly."""
    clients = number or case.clients
    config = parse(
        {
            "data": {"name": case.data},
            "strategy": strategy,
            "backbone": backbone,
            "training": {"epochs": case.epochs},
            "costs": {"planning_time": clock},
            "fleet": {**case.fleet, "gap": gap, "num_clients": clients},
        }
    )
    return price_fleet(config, [case.windows // clients] * clients)


def by_size(hardware: Model) -> ServerState:
    """Build a server state in which a group's divergence is its number of values."""
    size = {g.id: float(g.numel) for g in hardware.layout}
    return ServerState(models={"global": {}}, tensors={D_BAR: to_tensor(size, hardware.layout)})


def allocate(hardware: Model, clock: str) -> Planned:
    """Allocate and price one round of a RELIEF variant."""
    config, context = hardware.config.strategy, hardware.context()
    assert isinstance(config, Relief)
    tasks = hardware.strategy.allocate(by_size(hardware), context)
    loads, target = fleet_loads(config, context), target_s(config, context)
    groups: dict[str, tuple[int, int, int]] = {}
    for task in tasks:
        load = loads[task.client]
        row = (len(task.train), budget.group_budget(load, target), len(load.accessible))
        groups.setdefault(hardware.fleet[task.client].device, row)
    trained = {j for task in tasks for j in task.train}
    cost, fedavg, up_bytes = price(hardware, tasks, clock)
    whole = hardware.accountant.counter.nbytes(hardware.layout.select())
    return Planned(
        target_s=target,
        planned_s=planned_round_s(config, context),
        groups=groups,
        slots=decided(config, tasks, loads, target),
        untrained=tuple(j for j in hardware.layout.ids if j not in trained),
        cost=cost,
        fedavg=fedavg,
        up_share=up_bytes / whole,
        up_bytes=up_bytes,
    )


def price(hardware: Model, tasks: Sequence[Assignment], clock: str) -> tuple[RoundCost, RoundCost, float]:
    """Return the cost of a round, of FedAvg's, and the mean upload in bytes."""
    done = receipts(hardware, tasks)
    up_bytes = sum(r.bytes_up for r in done) / len(hardware.fleet)
    charged = hardware.accountant.charged(done, hardware.fleet.clients)
    return hardware.accountant.cost(charged, hardware.fleet, 0.0)[clock], hardware.fedavg_reference()[clock], up_bytes


def receipts(hardware: Model, tasks: Sequence[Assignment]) -> tuple[Receipt, ...]:
    """Return what clients would hand in that do all that their tasks ask."""
    return tuple(_receipt(hardware, task) for task in tasks)


def _receipt(hardware: Model, task: Assignment) -> Receipt:
    windows, counter = hardware.fleet[task.client].num_windows, hardware.accountant.counter
    steps = num_steps(windows, task.epochs, hardware.config.training.batch_size)
    work = Work(
        num_windows=windows,
        epochs=task.epochs,
        num_steps=steps,
        engine=hardware.engine,
        loss=0.0,
        measured=StageTimes(),
        extra_flops=steps * task.step_flops,
    )
    up, down = counter.nbytes(task.up), counter.nbytes(task.down)
    return Receipt(assignment=task, work=work, bytes_down=down, bytes_up=up)


def decided(
    config: Relief, tasks: Sequence[Assignment], loads: Mapping[int, budget.Load], target: float
) -> tuple[int, int]:
    """Count slots beyond the forced blocks whose group the ranking chose among more candidates than slots; and all."""
    chosen = 0
    for task in tasks:
        load = loads[task.client]
        free = [j for j in load.accessible if not (config.mandatory and j in load.mandatory)]
        filled = sum(j in task.train for j in free)
        chosen += filled if budget.group_budget(load, target) < len(load.accessible) and filled < len(free) else 0
    return chosen, sum(len(task.train) for task in tasks)


# Tables -------------------------------------------------------------------------------------------------------------

HEAD = ("T\\*, s", "longest, s", "A", "B", "C", "ranked", "untrained", "speed", "compute", "link", "upload", "J")


def cells(planned: Planned) -> list[str]:
    """Return one row's figures, in ``HEAD``'s order."""
    cost, fedavg = planned.cost, planned.fedavg
    return [
        f"{planned.target_s:.3f}",
        f"{planned.planned_s:.3f}",
        *(granted(planned.groups.get(device)) for device in "ABC"),
        f"{planned.slots[0]} of {planned.slots[1]}",
        ", ".join(planned.untrained) or "–",
        f"{fedavg.round_s / cost.round_s:.2f}x",
        f"{fedavg.compute_s / cost.compute_s:.2f}x",
        f"{100 * cost.link_share:.0f} % ({100 * fedavg.link_share:.0f} %)",
        f"{planned.up_share:.3f}",
        f"{cost.energy_j:.0f} ({100 * (1 - cost.energy_j / fedavg.energy_j):.0f} %)",
    ]


def granted(row: tuple[int, int, int] | None) -> str:
    """``3 of 8``; with ``fill: time`` the granted number too where fewer fitted: ``1 (2) of 5``."""
    if row is None:
        return "–"
    trained, slots, reach = row
    return f"{trained} of {reach}" if trained == slots else f"{trained} ({slots}) of {reach}"


def fleets() -> str:
    """Return one table per case: gaps, numbers of clients and both clocks, default rule."""
    parts = []
    for case in CASES:
        rows = []
        for clock in CLOCKS:
            for gap in GAPS:
                for number in (case.clients, *case.sizes):
                    planned = allocate(hardware_of(case, clock, "relief", gap, number), clock)
                    rows.append([f"`{clock}`", str(gap), str(number), *cells(planned)])
        parts.append(f"**{case.title}**\n\n{table(['clock', 'gap', 'N', *HEAD], rows)}")
    return "\n\n".join(parts)


def rules() -> str:
    """Return one table per case: the rules for T*, at gaps 10 and 55, by the clock that counts groups' FLOPs."""
    parts = []
    for case in CASES[:3]:
        rows = []
        for gap in (10, 55):
            for name, values in RULES.items():
                planned = allocate(hardware_of(case, CLOCKS[0], {"name": "relief", **values}, gap), CLOCKS[0])
                rows.append([name, str(gap), *cells(planned)])
        parts.append(f"**{case.title}**\n\n{table(['rule', 'gap', *HEAD], rows)}")
    return "\n\n".join(parts)


def ours(case: FleetCase, preset: str, backbone: Values | str) -> tuple[float, float, float]:
    """Return speedup, joules and mean upload of a variant; V3 is the mean of ``RANDOM_ROUNDS`` rounds."""
    hardware, clock = hardware_of(case, CLOCKS[0], preset, backbone=backbone), CLOCKS[0]
    rounds = range(1, RANDOM_ROUNDS + 1 if preset == "v3" else 2)
    state = by_size(hardware)
    priced = [price(hardware, hardware.strategy.allocate(state, hardware.context(r)), clock) for r in rounds]
    round_s, energy_j = mean(p[0].round_s for p in priced), mean(p[0].energy_j for p in priced)
    return priced[0][1].round_s / round_s, energy_j, mean(p[2] for p in priced)


def paper(backbone: Values | str, number: str) -> str:
    """Return V0 to V3 on the paper's PAMAP2 fleet beside Table III's speed; ``number`` is B1 or B2."""
    printed = read_paper()["III"]
    rows = []
    for preset, row in (("relief", "V0"), ("v1", "V1"), ("v2", "V2"), ("v3", "V3")):
        speed, joules, up_bytes = ours(CASES[0], preset, backbone)
        there = printed.get(row, f"{number} speedup")
        assert there is not None
        rows.append([row, f"{speed:.2f}x", f"{there.value}x", f"{joules:.0f}", f"{up_bytes / KIB:,.0f}"])
    return table([number, "speed", "paper", "J", "upload a client, KiB"], rows)


def backbone1() -> str:
    """Return the paper's variants on Backbone 1."""
    return paper("cnn", "B1")


def backbone2() -> str:
    """Return the paper's variants on Backbone 2, MOMENT ``small``."""
    return paper({"name": "moment_lora", "size": "small"}, "B2")


BLOCKS: Mapping[str, Callable[[], str]] = {"fleets": fleets, "rules": rules, "backbone1": backbone1}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--doc", type=Path, help="The page whose marked tables are written; none: print them.")
    parser.add_argument("--backbone2", action="store_true", help="Also the table of Backbone 2: minutes.")
    options = parser.parse_args()
    blocks = {**BLOCKS, **({"backbone2": backbone2} if options.backbone2 else {})}
    if options.doc is None:
        for make in blocks.values():
            print(make(), end="\n\n")
        return
    options.doc.write_text(filled(options.doc.read_text(encoding="utf-8"), blocks), encoding="utf-8")


if __name__ == "__main__":
    main()
