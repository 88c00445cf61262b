"""Adam over kept buffers: cleared, never reallocated; fresh moments every round."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class Adam:
    """Adam without weight decay (Kingma and Ba 2015); the moments' buffers live as long as the worker."""

    def __init__(self, parameters: Sequence[Tensor], fused: bool) -> None:
        """Keeps two moment buffers and a step counter per parameter."""
        self._fused = fused
        self._stale: set[int] = set()
        # Fused kernels count steps where the parameters are.
        self._slots = {
            id(p): (torch.zeros_like(p), torch.zeros_like(p), torch.zeros((), device=p.device if fused else None))
            for p in parameters
        }

    def reset(self, parameters: Sequence[Tensor]) -> None:
        """Forgets the moments of ``parameters``; their buffers are cleared when they are next used."""
        self._stale.update(id(p) for p in parameters)

    def clear(self, parameters: Sequence[Tensor]) -> None:
        """Clears at once what was forgotten: a step that is recorded must not hold the clearing."""
        for p in parameters:
            if id(p) in self._stale:
                self._stale.remove(id(p))
                for buffer in self._slots[id(p)]:
                    buffer.zero_()

    @torch.no_grad()
    def step(self, parameters: Sequence[Tensor], lr: float) -> None:
        """One step for those that have a gradient; gradients are dropped afterwards."""
        live = [p for p in parameters if p.grad is not None]
        if self._stale:
            self.clear(live)
        slots = [self._slots[id(p)] for p in live]
        adam(
            live,
            [p.grad for p in live if p.grad is not None],
            [s[0] for s in slots],
            [s[1] for s in slots],
            [],
            [s[2] for s in slots],
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
        for p in live:
            p.grad = None
