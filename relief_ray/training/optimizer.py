"""Adam over kept buffers: cleared, never reallocated; fresh moments every round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.optim.adam import adam

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


@dataclass(slots=True)
class _Slot:
    """One tensor's moments and how many steps it took: in ``steps`` by torch's function, in ``count`` by its kernel."""

    mean: Tensor
    square: Tensor
    steps: Tensor
    count: int = 0


class Adam:
    """Adam without weight decay (Kingma and Ba 2015); the moments' buffers live as long as the worker.

    ``fused`` on a CPU: torch's kernel without the function around it, which sorts tensors by device and counts steps in
    tensors, which shows where models are small. The numbers are the same.
    """

    def __init__(self, parameters: Sequence[Tensor], fused: bool) -> None:
        """Keeps two moment buffers and a step counter per parameter."""
        self._fused = fused
        self._take = _by_kernel if fused and all(p.device.type == "cpu" for p in parameters) else self._by_function
        self._stale: set[int] = set()
        # Fused kernels count steps where the parameters are.
        self._slots = {
            id(p): _Slot(torch.zeros_like(p), torch.zeros_like(p), torch.zeros((), device=p.device if fused else None))
            for p in parameters
        }

    def reset(self, parameters: Sequence[Tensor]) -> None:
        """Forgets the moments of ``parameters``; their buffers are cleared when they are next used."""
        self._stale.update(id(p) for p in parameters)

    def clear(self, parameters: Sequence[Tensor]) -> None:
        """Clears at once what was forgotten: a step that is recorded must not hold the clearing."""
        slots = [self._slots[id(p)] for p in parameters if id(p) in self._stale]
        self._stale.difference_update(id(p) for p in parameters)
        for slot in slots:
            slot.count = 0
        if slots:
            torch._foreach_zero_([buffer for s in slots for buffer in (s.mean, s.square, s.steps)])

    @torch.no_grad()
    def step(self, parameters: Sequence[Tensor], lr: float) -> None:
        """One step for those that have a gradient; gradients are dropped afterwards."""
        live = [p for p in parameters if p.grad is not None]
        if not live:
            return
        if self._stale:
            self.clear(live)
        self._take(live, [self._slots[id(p)] for p in live], lr)
        for p in live:
            p.grad = None

    def _by_function(self, live: Sequence[Tensor], slots: Sequence[_Slot], lr: float) -> None:
        adam(
            list(live),
            [p.grad for p in live if p.grad is not None],
            [s.mean for s in slots],
            [s.square for s in slots],
            [],
            [s.steps for s in slots],
            foreach=False,
            fused=self._fused,
            amsgrad=False,
            beta1=BETA1,
            beta2=BETA2,
            lr=lr,
            weight_decay=0.0,
            eps=EPS,
            maximize=False,
        )


def _by_kernel(live: Sequence[Tensor], slots: Sequence[_Slot], lr: float) -> None:
    for slot in slots:
        slot.count += 1
    torch._fused_adam_(
        list(live),
        [p.grad for p in live if p.grad is not None],
        [s.mean for s in slots],
        [s.square for s in slots],
        [],
        [_number(s.count) for s in slots],
        lr=lr,
        beta1=BETA1,
        beta2=BETA2,
        weight_decay=0.0,
        eps=EPS,
        amsgrad=False,
        maximize=False,
    )


@lru_cache(maxsize=4096)
def _number(count: int) -> Tensor:
    """The tensor that the kernel reads a step's number from; it does not write to it."""
    return torch.tensor(float(count), dtype=torch.float32, device="cpu")
