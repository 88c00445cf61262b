"""Part 1: the same full FedAvg rounds through the product, bare PyTorch in two processes, Flower and pfl."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import SubprocessError

import torch
from torch import Tensor

from benchmarks.engine.eager import Sequential
from benchmarks.engine.machine import Figures
from benchmarks.engine.pairs import Segment, Times, take_turns, timed
from benchmarks.engine.peers import Installed, final_weights, segment
from benchmarks.engine.product import Product, Shares, deviation
from benchmarks.engine.scene import Dataset, Scene, setup, start_of, write
from benchmarks.engine.torch_pool import TorchPool
from relief_ray.setup import Setup

# A harness whose update is further from the reference trained something else: its speed says nothing. What rounding
# comes to, amplified by ReLU and Adam on random windows, is measured beside it (up to 0.24 so far, and other processors
# round otherwise); a wrong client or batch gives 0.7.
SAME_WORK = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """``cases``: (clients, windows each)."""

    cases: tuple[tuple[int, int], ...]
    num_turns: int
    num_rounds: int
    peer_turns: int


def measure(dataset: Dataset, sizes: Sizes, peers: Mapping[str, Installed], folder: Path) -> Figures:
    """All figures of one data set; inside a Ray session."""
    found: Figures = {}
    for num_clients, num_windows in sizes.cases:
        scene = write(
            Scene(
                dataset=dataset, num_clients=num_clients, num_windows=num_windows, folder=folder / f"full-{num_clients}"
            )
        )
        prefix = f"full_n{num_clients}" if dataset == "pamap2" else f"full_{dataset}_n{num_clients}"
        found |= {f"{prefix}_{key}": value for key, value in _case(scene, sizes, peers).items()}
    return found


def _case(scene: Scene, sizes: Sizes, peers: Mapping[str, Installed]) -> Figures:
    with ExitStack() as stack:
        product = stack.enter_context(closing(Product(setup(scene), scene.folder / "run")))
        pool = stack.enter_context(closing(TorchPool(scene.folder)))
        oracle = Sequential(scene.folder)
        found = agreement(scene, product, pool, oracle, sizes.num_rounds + 1)
        assert float(found["deviation"] or 0.0) <= SAME_WORK, f"ours is not the reference's work: {found}"
        shares = Shares.of(product)
        times = take_turns({"ours": product.segment, "torch2": timed(pool.step)}, sizes.num_turns, sizes.num_rounds)
        found |= rates(scene, times) | {"vs_torch2": times.ratio("torch2", "ours")} | shares.figures()
        found |= {"windows": scene.num_windows, "rounds": sizes.num_rounds, "turns": sizes.num_turns}
        found["peer_turns"] = sizes.peer_turns
        for name in ("flower", "pfl"):
            found |= _against(name, scene, product, peers, sizes, oracle.flat)
    return found


def _against(
    name: str, scene: Scene, product: Product, peers: Mapping[str, Installed], sizes: Sizes, expected: Tensor
) -> Figures:
    missing: Figures = {f"vs_{name}": None, f"{name}_samples_per_s": None, f"{name}_deviation": None}
    if name not in peers or not sizes.peer_turns:
        return missing
    theirs: Segment = partial(segment, peers[name], scene.folder)
    try:
        times = take_turns({"ours": product.segment, name: theirs}, sizes.peer_turns, sizes.num_rounds)
    except (RuntimeError, SubprocessError) as error:
        return missing | {f"{name}_note": str(error)[-300:]}
    weights, start = final_weights(peers[name].peer, scene.folder), start_of(setup(scene))
    if not (gap := deviation(weights, expected, start)) <= SAME_WORK:
        return missing | {f"{name}_note": f"not the same work: its update deviates by {gap:.2g} from the reference"}
    return {
        f"vs_{name}": times.ratio(name, "ours"),
        f"{name}_samples_per_s": scene.task.samples / times.median_s(name),
        f"{name}_round_s": times.median_s(name),
        f"{name}_deviation": gap,
    }


def rates(scene: Scene, times: Times) -> Figures:
    """Samples per second and spread of every harness."""
    found: Figures = {}
    for name in times.turns:
        found[f"{name}_samples_per_s"] = scene.task.samples / times.median_s(name)
        found[f"{name}_round_s"] = times.median_s(name)
        found[f"{name}_spread"] = times.spread(name)
    return found


def agreement(scene: Scene, product: Product, pool: TorchPool, oracle: Sequential, num_rounds: int) -> Figures:
    """First rounds of every harness: distance from the sequential eager reference, and a second run of our own.

    The control is the reference against itself from a start that is one rounding away.
    """
    given, nudged = setup(scene), Sequential(scene.folder, nudged=True)
    start = start_of(given)
    product.run(num_rounds)
    for _ in range(num_rounds):
        oracle.step()
        nudged.step()
        pool.step()
    found: Figures = {
        "deviation": deviation(product.flat, oracle.flat, start),
        "torch2_deviation": deviation(pool.flat, oracle.flat, start),
        "nudged_deviation": deviation(nudged.flat, oracle.flat, start),
        "deviation_rounds": num_rounds,
    }
    return found | {"run_to_run_equal": torch.equal(_again(given, product, scene, num_rounds), product.flat)}


def _again(given: Setup, product: Product, scene: Scene, num_rounds: int) -> Tensor:
    """The same experiment from the start, on the same hosts."""
    with closing(Product(given, scene.folder / "again", product.executor)) as second:
        second.run(num_rounds)
        return second.flat
