"""Adam with fresh moments every round, in buffers that are cleared and never reallocated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

_RULE: Mapping[str, Any] = MappingProxyType(
    {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False, "maximize": False}
)
# Size from which a tensor takes its step within the backward pass, and size of the pieces of a single-step update: the
# kernel then touches 1 MiB of float32, half of a core's own cache on the machine where it was chosen (ADR 17).
LARGE = 2**16


@dataclass(slots=True)
class _Slot:
    """One tensor's optimizer state.

    Attributes:
        mean: first moment, in the tensor's shape.
        square: second moment, in the tensor's shape.
        steps: number of steps, for torch's function (a tensor).
        count: number of steps, for the fused kernel on a CPU.
    """

    mean: Tensor
    square: Tensor
    steps: Tensor
    count: int = 0


class Adam:
    """Adam without weight decay (Kingma and Ba 2015); the moments' buffers live as long as the worker.

    ``fused`` on a CPU calls torch's kernel directly. The function around it sorts tensors by device and counts steps in
    tensors, which takes noticeable time with small models. The numbers are the same.
    """

    def __init__(self, parameters: Sequence[Tensor], fused: bool) -> None:
        """Keep two moment buffers and a step counter per parameter."""
        self._fused, self._is_direct = fused, fused and all(p.device.type == "cpu" for p in parameters)
        self._stale: set[int] = set()
        self._is_once = False
        self._temporary: dict[tuple[torch.dtype, int], tuple[Tensor, Tensor, Tensor]] = {}
        # Fused kernels count steps where the parameters are.
        self._slots = {
            id(p): _Slot(torch.zeros_like(p), torch.zeros_like(p), torch.zeros((), device=p.device if fused else None))
            for p in parameters
        }

    def reset(self, parameters: Sequence[Tensor], *, once: bool = False) -> None:
        """Drop gradients and moments of ``parameters``; the moments' buffers are cleared when they are next used.

        ``once``: each takes at most one step until the next reset, so that its moments need not be kept. An assertion
        holds this where they are not: large tensors on a CPU.
        """
        for p in parameters:
            p.grad = None  # left by a step that was broken off
        self._stale.update(id(p) for p in parameters)
        self._is_once = once

    def clear(self, parameters: Sequence[Tensor]) -> None:
        """Clear dropped moments now and not in the next step: a recorded step must not contain the clearing."""
        slots = [self._slots[id(p)] for p in parameters if id(p) in self._stale]
        self._stale.difference_update(id(p) for p in parameters)
        for slot in slots:
            slot.count = 0
        if slots:
            torch._foreach_zero_([buffer for s in slots for buffer in (s.mean, s.square, s.steps)])

    @torch.no_grad()
    def step(self, parameters: Sequence[Tensor], lr: float) -> None:
        """One step of the parameters that have a gradient; their gradients are dropped afterwards."""
        live = [p for p in parameters if p.grad is not None]
        if self._is_once and self._is_direct:
            live = [p for p in live if not self._single_step(p, lr)]
        if not live:
            return
        if self._stale:
            self.clear(live)
        slots = [self._slots[id(p)] for p in live]
        gradients = [p.grad for p in live if p.grad is not None]
        moved = live, gradients, [s.mean for s in slots], [s.square for s in slots], list[Tensor]()
        if self._is_direct:
            for slot in slots:
                slot.count += 1
            torch._fused_adam_(*moved, [_step_number(s.count) for s in slots], lr=lr, **_RULE)
        else:
            adam(*moved, [s.steps for s in slots], foreach=False, fused=self._fused, lr=lr, **_RULE)
        for p in live:
            p.grad = None

    def _single_step(self, p: Tensor, lr: float) -> bool:
        """Take a large tensor's only step with temporary moments, piece by piece; False for a small tensor.

        Clearing and writing kept moments would take as long as the step. The kernel on pieces gives the same bits as on
        the whole tensor.
        """
        if p.numel() < LARGE or p.grad is None:
            return False
        assert id(p) in self._stale, "a second step where one at most was announced"
        self._stale.discard(id(p))
        pieces = zip(torch.split(p.view(-1), LARGE), torch.split(p.grad.reshape(-1), LARGE), strict=True)
        for values, gradient in pieces:
            mean, square = self._zero_moments(values)
            torch._fused_adam_([values], [gradient], [mean], [square], [], [_step_number(1)], lr=lr, **_RULE)
        p.grad = None
        return True

    def _zero_moments(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Zero moments in the shape of ``values``, in memory that all pieces share."""
        key = values.dtype, values.numel()
        if key not in self._temporary:
            both = values.new_empty(2, values.numel())
            self._temporary[key] = both, both[0], both[1]
        both, mean, square = self._temporary[key]
        both.zero_()
        return mean, square


@lru_cache(maxsize=4096)
def _step_number(count: int) -> Tensor:
    """The step number as a tensor, which the kernel reads and never writes."""
    return torch.tensor(float(count), dtype=torch.float32, device="cpu")
