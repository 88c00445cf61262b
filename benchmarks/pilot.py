"""Pilot's server step with many clients: before, with all models side by side, and now, in tiles.

``python -m benchmarks.pilot [--clients 100] [--turns 9] [--json FILE]`` takes Backbone 1 as on ``dsa_mini``, draws
every client's update at random, and lets both ways mix the models with their nearest in turns. It prints the median
seconds of each (of the clock, then of the processor), the medians of the turns' ratios, the largest difference of what
they give, and the seconds of the whole server step, as JSON. The data are needed for their shapes alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import numpy as np
import torch

from benchmarks.engine.machine import Figures, facts
from benchmarks.engine.pairs import Segment, take_turns, timed
from relief_ray.config.experiment import ExperimentConfig, parse
from relief_ray.core.groups import GroupId, Params
from relief_ray.core.messages import Receipt, Reduced, StageTimes, Update, Work
from relief_ray.experiment.setup import Setup, context_of, prepare
from relief_ray.strategies.pilot import LocalModels, Matrix, Pilot, backbone_of, distances, mix_with_nearest, mixing
from relief_ray.support.process import use_threads

# Length of a random update relative to a random start, as in a run's later rounds.
STEP = 0.05


def side_by_side(local: LocalModels, groups: Collection[GroupId]) -> list[dict[GroupId, torch.Tensor]]:
    """All models of a round in float64, each as it is."""
    return [
        {j: start[j].to(torch.float64) + moved[j].to(torch.float64) for j in groups}
        for start, moved in zip(local.starts, local.deltas, strict=True)
    ]


def distances_before(models: Sequence[Params], groups: Collection[GroupId]) -> Matrix:
    """Distances of all pairs, from one matrix (n, values) per group."""
    squares = torch.zeros(len(models) * (len(models) - 1) // 2, dtype=torch.float64)
    for j in groups:
        squares += torch.pdist(torch.stack([theta[j] for theta in models])).square()
    upper = np.zeros((len(models), len(models)))
    upper[np.triu_indices(len(models), 1)] = squares.sqrt().numpy()
    return upper + upper.T


def mix_before(
    local: LocalModels, sizes: Sequence[float], num_neighbours: int, groups: Collection[GroupId]
) -> list[dict[GroupId, torch.Tensor]]:
    """Mixtures with the nearest, as they were computed before."""
    models = side_by_side(local, groups)
    weights = mixing(distances_before(models, groups), sizes, num_neighbours)
    mixtures = []
    for row in weights.tolist():
        mixtures.append({j: torch.zeros_like(models[0][j], dtype=torch.float64) for j in groups})
        for theta, weight in zip(models, row, strict=True):
            for j in groups if weight else ():
                mixtures[-1][j] += weight * theta[j].to(torch.float64)
    return [{j: total.to(torch.float32) for j, total in mixture.items()} for mixture in mixtures]


def config_of(num_clients: int) -> ExperimentConfig:
    """Pilot on Backbone 1 with so many clients."""
    data = {"name": "dsa_mini", "stride_s": 5.0, "split": "within_subject", "num_clients": num_clients}
    fleet = {"num_clients": num_clients}
    return parse({"strategy": "pilot", "data": data, "fleet": fleet, "runtime": {"mode": "inline"}})


def updates_of(setup: Setup) -> tuple[Update, ...]:
    """A random update of every client, of the groups that a round of stage 2 sends."""
    context = context_of(setup, setup.config.rounds)
    state = setup.strategy.init(setup.layout, setup.fleet, setup.streams, setup.start)
    make = torch.Generator().manual_seed(0)
    work = Work(num_windows=1, epochs=1, num_steps=1, engine="gemm", loss=0.0, measured=StageTimes())
    return tuple(
        Update(
            delta={j: STEP * torch.randn(setup.layout[j].numel, generator=make) for j in task.up},
            receipt=Receipt(assignment=task, work=work, bytes_down=0, bytes_up=0),
        )
        for task in setup.strategy.allocate(state, context)
    )


def differences(
    local: LocalModels, groups: Collection[GroupId], before: Sequence[Params], now: Sequence[Params]
) -> Figures:
    """Largest differences of distances (relative) and mixed values (relative to each model's largest value)."""
    old, new = distances_before(side_by_side(local, groups), groups), distances(local, groups)
    pairs = np.triu_indices(len(local), 1)
    gaps = [
        float((a[j] - b[j]).abs().max() / a[j].abs().max()) for a, b in zip(before, now, strict=True) for j in groups
    ]
    return {
        "distance_relative_difference": float(np.abs(old / np.where(new, new, 1.0) - 1.0)[pairs].max()),
        "value_relative_difference": max(gaps),
    }


def measure(config: ExperimentConfig, num_turns: int) -> Figures:
    """All figures."""
    setup = prepare(config)
    state = setup.strategy.init(setup.layout, setup.fleet, setup.streams, setup.start)
    updates = updates_of(setup)
    starts = [state.models[u.receipt.assignment.view] for u in updates]
    local = LocalModels(starts=starts, deltas=[u.delta for u in updates])
    sizes, groups = [float(c.num_windows) for c in setup.fleet.clients], backbone_of(state.models["global"])
    ways = {
        "before": lambda: mix_before(local, sizes, Pilot().neighbours, groups),
        "now": lambda: mix_with_nearest(local, sizes, Pilot().neighbours, groups),
    }
    gaps = differences(local, groups, ways["before"](), ways["now"]())
    times = take_turns({name: timed(way) for name, way in ways.items()}, num_turns, 1)
    processor = take_turns({name: processor_timed(way) for name, way in ways.items()}, num_turns, 1)
    return {
        **facts(),
        "clients": len(setup.fleet),
        "values": sum(setup.layout[j].numel for j in groups),
        "turns": num_turns,
        "before_s": times.median_s("before"),
        "now_s": times.median_s("now"),
        "ratio": times.ratio("before", "now"),
        "before_processor_s": processor.median_s("before"),
        "now_processor_s": processor.median_s("now"),
        "processor_ratio": processor.ratio("before", "now"),
        "server_step_s": server_step(setup, updates, num_turns),
        **gaps,
    }


def processor_timed(action: Callable[[], object]) -> Segment:
    """A segment like ``timed`` that counts this process's seconds on the processor, which other jobs change less."""

    def run(num_rounds: int) -> list[float]:
        seconds = []
        for _ in range(num_rounds):
            began = process_time()
            action()
            seconds.append(process_time() - began)
        return seconds

    return run


def server_step(setup: Setup, updates: tuple[Update, ...], num_turns: int) -> float:
    """Median seconds of the method's whole aggregation."""
    state = setup.strategy.init(setup.layout, setup.fleet, setup.streams, setup.start)
    reduced = Reduced(sums={}, receipts=tuple(u.receipt for u in updates), updates=updates)
    tools = context_of(setup, setup.config.rounds)
    seconds = []
    for _ in range(num_turns):
        began = perf_counter()
        setup.strategy.aggregate(state, reduced, tools)
        seconds.append(perf_counter() - began)
    return median(seconds)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", type=Path, default=None, help="file to write the figures to")
    options = parser.parse_args()
    use_threads(1)
    text = json.dumps(measure(config_of(options.clients), options.turns), indent=1)
    if options.json is not None:
        options.json.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
