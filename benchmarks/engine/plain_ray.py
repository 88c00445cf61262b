"""The least that Ray can do: put the model, two host actors each take their clients in turn, get two sums, average.

No records, no checks, no checkpoints, no failures handled: the reference for what the product's orchestration adds.
Its hosts copy the model and add it up in float32. With ``exact`` they compute what the product's hosts have to: the
difference, its squares, and a float64 sum.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import Tensor

from relief_ray.support.process import use_threads

Flat = NDArray[np.float32]
Sum = NDArray[np.float32] | NDArray[np.float64]


class PlainHost:
    """An actor for many clients, with one model buffer and one sum, which are reused."""

    def __init__(self, num_values: int) -> None:
        self._local = np.zeros(num_values, np.float32)
        self._sum = np.zeros(num_values, np.float32)

    def round(self, flat: Flat, num_clients: int) -> Sum:
        """Weights out, nothing trained, weights back, for each client; their sum."""
        self._sum[:] = 0.0
        for _ in range(num_clients):
            self._local[:] = flat
            self._sum += self._local
        return self._sum


class ExactHost:
    """A ``PlainHost`` with the product's arithmetic."""

    def __init__(self, num_values: int) -> None:
        use_threads(1)
        self._least = Arithmetic(num_values)

    def round(self, flat: Flat, num_clients: int) -> Sum:
        """The float64 sum of what the clients changed, which is nothing; every client's squares are summed too."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It is read-only, and read only.
            start = torch.from_numpy(flat)
        self._least.share(start, num_clients)
        return self._least.total.numpy()


class PlainRay:
    """Rounds of two bare Ray actors."""

    def __init__(self, start: Flat, num_clients: int, num_hosts: int = 2, *, exact: bool = False) -> None:
        actor: Any = ray.remote(ExactHost if exact else PlainHost)
        host = actor.options(num_cpus=0, runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}})
        self.flat, self._num_clients, self._exact = start.copy(), num_clients, exact
        self._total: Sum = np.zeros(len(start), np.float64) if exact else np.zeros(len(start), np.float32)
        self._hosts = [host.remote(len(start)) for _ in range(num_hosts)]
        self._shares = shares(num_clients, num_hosts)

    def step(self) -> None:
        """One round."""
        model = ray.put(self.flat)
        sums = ray.get([h.round.remote(model, n) for h, n in zip(self._hosts, self._shares, strict=True)])
        mean(sums, self._num_clients, out=self._total)
        if self._exact:
            np.add(self.flat, self._total, out=self.flat, casting="same_kind")
        else:
            self.flat[:] = self._total

    def close(self) -> None:
        """End the hosts."""
        for host in self._hosts:
            ray.kill(host)


def shares(num_clients: int, num_hosts: int) -> Sequence[int]:
    """Clients per host, as even as can be."""
    return [num_clients // num_hosts + (i < num_clients % num_hosts) for i in range(num_hosts)]


def mean(sums: Sequence[Sum], num_clients: int, out: Sum) -> None:
    """The hosts' sums over all clients; nothing is allocated."""
    out[:] = sums[0]
    for other in sums[1:]:
        np.add(out, other, out=out)
    np.divide(out, num_clients, out=out)


# Values at a time, so that a piece stays in a core's own cache from the first operation to the last.
CHUNK = 2**16


class Arithmetic:
    """Load the model, subtract it, square the difference in float64, add it to a float64 sum; memory is kept."""

    def __init__(self, num_values: int) -> None:
        self.total = torch.zeros(num_values, dtype=torch.float64)
        self._local = torch.empty(num_values)
        self._exact = torch.empty(min(CHUNK, num_values), dtype=torch.float64)

    def share(self, start: Tensor, num_clients: int) -> float:
        """A host's clients, one after the other: ``total`` is their sum; returns the sum of all squares."""
        self.total.zero_()
        squares = 0.0
        pieces = list(zip(_pieces(start), _pieces(self._local), _pieces(self.total), strict=True))
        for _ in range(num_clients):
            self.load(start)
            for sent, local, total in pieces:
                local.sub_(sent)
                exact = self._exact[: len(local)].copy_(local)
                squares += float(exact.dot(exact))
                total.add_(exact)
        return squares

    def load(self, start: Tensor) -> None:
        """A client's model, which it would train."""
        self._local.copy_(start)


def _pieces(values: Tensor) -> Sequence[Tensor]:
    return torch.split(values, CHUNK)
