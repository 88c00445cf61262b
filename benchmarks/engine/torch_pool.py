"""FedAvg with bare eager PyTorch in two processes of one thread each: weights and sums through shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, multiprocessing

from benchmarks.engine.eager import EagerCnn, read_task, train_clients
from relief_ray.support.process import use_threads


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Memory that a child process shares with its parent."""

    folder: Path
    clients: range
    flat: Tensor
    total: Tensor


def serve(shared: Shared, orders: Connection) -> None:
    """A child: trains its clients whenever a round's number arrives; None ends it.

    Keeps freed memory as our hosts do. By glibc's defaults a fresh child may or may not fetch thousands of pages anew
    for every client, for as long as it lives: the ratio would show that chance.
    """
    use_threads(1)
    task = read_task(shared.folder)
    model = EagerCnn(task)
    while (round_ := orders.recv()) is not None:
        shared.total.copy_(train_clients(model, task, shared.folder, round_, shared.flat, shared.clients))
        orders.send(round_)


class TorchPool:
    """Starts the child processes and averages their sums (the parent's side)."""

    def __init__(self, folder: Path, num_processes: int = 2) -> None:
        self.flat = shared_copy(torch.from_numpy(np.load(folder / "start.npy")))
        self._num_clients, self._round = read_task(folder).num_clients, 0
        self._children = [self._start(folder, share) for share in split(self._num_clients, num_processes)]

    def _start(self, folder: Path, clients: range) -> tuple[SpawnProcess, Connection, Shared]:
        total = shared_copy(torch.zeros(len(self.flat), dtype=torch.float64))
        shared = Shared(folder=folder, clients=clients, flat=self.flat, total=total)
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        child = context.Process(target=serve, args=(shared, theirs), daemon=True)
        child.start()
        return child, mine, shared

    def step(self) -> None:
        """One round."""
        self._round += 1
        for _, orders, _ in self._children:
            orders.send(self._round)
        for _, orders, _ in self._children:
            orders.recv()
        total = torch.stack([shared.total for _, _, shared in self._children]).sum(0)
        self.flat.copy_(self.flat.double() + total / self._num_clients)

    def close(self) -> None:
        """End the children."""
        for child, orders, _ in self._children:
            orders.send(None)
            child.join()


def shared_copy(values: Tensor) -> Tensor:
    """The same values in memory that children see."""
    share: Callable[[], Tensor] = values.clone().share_memory_
    return share()


def split(num_clients: int, parts: int) -> Sequence[range]:
    """Consecutive clients, as even as can be."""
    edges = [num_clients * i // parts for i in range(parts + 1)]
    return [range(a, b) for a, b in pairwise(edges)]
