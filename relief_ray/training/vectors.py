"""What the trainer carries through a client's round: the trained groups as vectors, measured seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from relief_ray.groups import GroupId
from relief_ray.messages import StageTimes


class GroupVectors(Mapping[GroupId, Tensor]):
    """The trained groups' vectors ``theta_j`` with their gradient history, built when asked for."""

    def __init__(self, tensors: Mapping[GroupId, Sequence[Tensor]], trained: tuple[GroupId, ...]) -> None:
        """Vectors of the groups in ``trained``, out of the groups' ``tensors``."""
        self._tensors, self._trained = tensors, trained

    def __getitem__(self, group: GroupId) -> Tensor:
        """``theta_j`` (numel,)."""
        if group not in self._trained:
            raise KeyError(group)
        return torch.cat([p.reshape(-1) for p in self._tensors[group]])

    def __iter__(self) -> Iterator[GroupId]:
        """Trained groups in storage order."""
        return iter(self._trained)

    def __len__(self) -> int:
        """How many are trained."""
        return len(self._trained)

    def gradients(self) -> dict[GroupId, Tensor]:
        """Each group's gradient (numel,), zero where nothing reaches it; they are dropped."""
        found = {}
        for j in self._trained:
            parameters = self._tensors[j]
            found[j] = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters])
            for p in parameters:
                p.grad = None
        return found


@dataclass(slots=True)
class Clock:
    """Measured seconds by stage, and the running loss of the last epoch.

    ``waits``: read once the GPU has done what it was given, which it does behind the program's back.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    loss: float = 0.0
    num_steps: int = 0
    waits: bool = False

    def read(self) -> float:
        """Seconds of a monotonic clock."""
        if self.waits:
            torch.cuda.synchronize()
        return perf_counter()

    def stage_times(self) -> StageTimes:
        """What was measured so far."""
        return StageTimes(forward_s=self.forward_s, backward_s=self.backward_s, optimizer_s=self.optimizer_s)
