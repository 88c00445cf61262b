"""The least that a host has to compute for its clients beside training, by torch's own operations and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor


class Arithmetic:
    """Load the model, subtract it, square the difference in float64, add it to a float64 sum; memory is kept."""

    def __init__(self, start: Tensor, num_clients: int) -> None:
        self._start, self._num_clients = start, num_clients
        self._local, self._total = torch.empty_like(start), torch.zeros(start.shape, dtype=torch.float64)
        self._exact = torch.empty_like(self._total)

    def share(self) -> float:
        """A host's clients, one after the other; the sum of all squares."""
        self._total.zero_()
        squares = 0.0
        for _ in range(self._num_clients):
            self._local.copy_(self._start)
            self._local.sub_(self._start)
            self._exact.copy_(self._local)
            squares += float(self._exact.dot(self._exact))
            self._total.add_(self._exact)
        return squares
