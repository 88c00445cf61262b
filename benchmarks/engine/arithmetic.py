"""The least that a host has to compute for its clients beside training, by library calls and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

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
