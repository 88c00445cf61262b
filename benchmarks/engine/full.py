"""Part 1: the same full FedAvg rounds through the product, bare PyTorch in two processes, Flower and pfl."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import SubprocessError

import torch
from torch import Tensor

from benchmarks.engine.eager import Sequential
from benchmarks.engine.effort import Dataset
from benchmarks.engine.machine import Figures
from benchmarks.engine.orchestration import training_shares
from benchmarks.engine.pairs import Segment, Times, take_turns, timed
from benchmarks.engine.peers import WHEN, Installed, saved_weights, segment
from benchmarks.engine.product import Product, Shares, deviation
from benchmarks.engine.scenario import Scenario, setup, start_of, write
from benchmarks.engine.torch_pool import TorchPool
from relief_ray.experiment.setup import Setup

# A harness whose first round lies further from the reference's trained something else: its speed says nothing.
# Rounding comes to 0.006 at most there (ReLU, Adam and random windows amplify it afterwards, which is measured too);
# without one of a hundred clients it is 0.09, without one of eight 0.3, at 1.2 times the learning rate 0.2.
SAME_WORK = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """``cases``: (clients, windows each)."""

    cases: tuple[tuple[int, int], ...]
    num_turns: int
    num_rounds: int
    peer_turns: int


def measure(dataset: Dataset, sizes: Sizes, peers: Mapping[str, Installed], folder: Path) -> Iterator[Figures]:
    """All figures of one data set, case by case; inside a Ray session."""
    for num_clients, num_windows in sizes.cases:
        scenario = write(
            Scenario(
                dataset=dataset, num_clients=num_clients, num_windows=num_windows, folder=folder / f"full-{num_clients}"
            )
        )
        prefix = f"full_n{num_clients}" if dataset == "pamap2" else f"full_{dataset}_n{num_clients}"
        yield {f"{prefix}_{key}": value for key, value in _case(scenario, sizes, peers).items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """The sequential eager reference: the model it began with, after one round, and after as many as others ran."""

    start: Tensor
    first: Tensor
    last: Tensor


def _case(scenario: Scenario, sizes: Sizes, peers: Mapping[str, Installed]) -> Figures:
    prepared = setup(scenario)
    with ExitStack() as stack:
        product = stack.enter_context(closing(Product(prepared, scenario.folder / "run")))
        pool = stack.enter_context(closing(TorchPool(scenario.folder)))
        figures, expected = agreement(scenario, product, pool, sizes.num_rounds + 1)
        figures |= {"windows": scenario.num_windows, "rounds": sizes.num_rounds, "turns": sizes.num_turns}
        figures["peer_turns"] = sizes.peer_turns
        if note := other_work(figures["first_deviation"]):
            return figures | {"note": note, "vs_torch2": None, **_unmeasured("flower"), **_unmeasured("pfl")}
        shares = Shares.of(product)
        times = take_turns({"ours": product.segment, "torch2": timed(pool.step)}, sizes.num_turns, sizes.num_rounds)
        figures |= rates(scenario, times) | {"vs_torch2": times.ratio("torch2", "ours")} | shares.figures()
        figures |= training_shares(prepared, product.num_hosts, float(figures["hosts_share"] or 0.0))
        for name in ("flower", "pfl"):
            figures |= _against(name, scenario, product, peers, sizes, expected)
    return figures


def other_work(first_deviation: object) -> str:
    """The reason not to compare a harness; empty if its first round equals the reference's but for rounding."""
    if isinstance(first_deviation, float) and first_deviation <= SAME_WORK:
        return ""
    return f"not the same work: its first round deviates by {first_deviation:.2g} from the reference's"


def _unmeasured(name: str) -> Figures:
    return {f"vs_{name}": None, f"{name}_samples_per_s": None, f"{name}_deviation": None}


def _against(
    name: str, scenario: Scenario, product: Product, peers: Mapping[str, Installed], sizes: Sizes, expected: Expected
) -> Figures:
    if name not in peers or not sizes.peer_turns:
        return _unmeasured(name)
    theirs: Segment = partial(segment, peers[name], scenario.folder)
    try:
        times = take_turns({"ours": product.segment, name: theirs}, sizes.peer_turns, sizes.num_rounds)
        first, last = (saved_weights(peers[name].peer, scenario.folder, when) for when in WHEN)
    except (RuntimeError, SubprocessError, OSError, ValueError) as error:
        return _unmeasured(name) | {f"{name}_note": str(error)[-300:]}
    apart = deviation(first, expected.first, expected.start)
    if note := other_work(apart):
        return _unmeasured(name) | {f"{name}_note": note, f"{name}_first_deviation": apart}
    return {
        f"vs_{name}": times.ratio(name, "ours"),
        f"{name}_samples_per_s": scenario.task.samples / times.median_s(name),
        f"{name}_round_s": times.median_s(name),
        f"{name}_spread": times.spread(name),
        f"{name}_first_deviation": apart,
        f"{name}_deviation": deviation(last, expected.last, expected.start),
    }


def rates(scenario: Scenario, times: Times) -> Figures:
    """Samples per second and spread of every harness."""
    figures: Figures = {}
    for name in times.turns:
        figures[f"{name}_samples_per_s"] = scenario.task.samples / times.median_s(name)
        figures[f"{name}_round_s"] = times.median_s(name)
        figures[f"{name}_spread"] = times.spread(name)
    return figures


def agreement(scenario: Scenario, product: Product, pool: TorchPool, num_rounds: int) -> tuple[Figures, Expected]:
    """First rounds of every harness: distance from the sequential eager reference, and a second run of our own.

    The control is the reference against itself from a start that is one rounding away.
    """
    prepared, oracle, nudged = setup(scenario), Sequential(scenario.folder), Sequential(scenario.folder, nudged=True)
    start = start_of(prepared)

    def advance(number: int, when: str) -> Figures:
        product.run(number)
        for _ in range(number):
            oracle.step()
            nudged.step()
            pool.step()
        models = {"": product.flat, "torch2_": pool.flat, "nudged_": nudged.flat}
        return {f"{name}{when}deviation": deviation(flat, oracle.flat, start) for name, flat in models.items()}

    figures, first = advance(1, "first_"), oracle.flat
    figures |= advance(num_rounds - 1, "") | {"deviation_rounds": num_rounds}
    figures["run_to_run_equal"] = torch.equal(_again(prepared, product, scenario, num_rounds), product.flat)
    return figures, Expected(start=start, first=first, last=oracle.flat)


def _again(prepared: Setup, product: Product, scenario: Scenario, num_rounds: int) -> Tensor:
    """The same experiment from the start, on the same hosts."""
    with closing(Product(prepared, scenario.folder / "again", product.executor)) as second:
        second.run(num_rounds)
        return second.flat
