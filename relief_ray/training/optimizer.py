"""Local optimizers with fresh state every round, in buffers that are cleared and never reallocated.

With gradient ``g`` of tensor ``theta``, learning rate ``a``, decay ``l`` and momentum ``b``:
``adam``: Kingma and Ba 2015 on ``g + l theta`` (betas 0.9 and 0.999, epsilon 1e-8); ``adamw``: Adam on ``g`` after
``theta <- (1 - a l) theta`` (Loshchilov and Hutter 2019); ``sgd``: ``u <- b u + g + l theta`` from ``u = 0``, then
``theta <- theta - a u``. Every trained tensor decays, also one that the loss does not reach (its ``g`` is then zero).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn.utils import clip_grad_norm_
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from relief_ray.kernels.library import Kind, Rule, squares, steps

OptimizerName = Literal["adam", "adamw", "sgd"]
Kernel = Literal["torch", "torch_fused", "own"]

_ADAM: Mapping[str, Any] = MappingProxyType(
    {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False, "maximize": False}
)
_SGD: Mapping[str, Any] = MappingProxyType({"dampening": 0.0, "nesterov": False, "maximize": False})
# Size from which a tensor takes its step within the backward pass, and size of the pieces of a single-step update: the
# kernel then touches 1 MiB of float32, half of a core's own cache on the machine where it was chosen (ADR 17).
LARGE = 2**16


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateRule:
    """The rule by which a client's optimizer changes its tensors.

    Attributes:
        name: ``adam``, ``adamw`` or ``sgd``.
        momentum: ``b`` of SGD; 0: none.
        weight_decay: ``l``; 0: none.
    """

    name: OptimizerName = "adam"
    momentum: float = 0.0
    weight_decay: float = 0.0

    @property
    def num_buffers(self) -> int:
        """Number of buffers per tensor: two moments of Adam, one velocity of SGD with momentum, else none."""
        return 2 if self.name != "sgd" else int(self.momentum > 0.0)


ADAM = UpdateRule()


@dataclass(slots=True)
class _Slot:
    """One tensor's optimizer state.

    Attributes:
        buffers: first and second moment, or the velocity, each in the tensor's shape.
        steps: number of steps, for torch's function (a tensor).
        count: number of steps, for the fused kernel on a CPU.
    """

    buffers: tuple[Tensor, ...]
    steps: Tensor
    count: int = 0


@lru_cache(maxsize=64)
def _numbers(rule: UpdateRule, lr: float, t: int, is_first: bool, is_kept: bool) -> Rule:
    """The numbers of a tensor's ``t``-th step, for our kernels."""
    name, momentum, decay = rule.name, rule.momentum, rule.weight_decay
    decoupled = name == "adamw"
    made = Rule(
        kind=Kind.ADAM if name != "sgd" else Kind.VELOCITY if momentum else Kind.SGD,
        first=is_first,
        kept=is_kept,
        decay=0.0 if decoupled else decay,
        shrink=1.0 - lr * decay if decoupled else 1.0,
    )
    if name == "sgd":
        made.rate, made.keep1 = lr, momentum
        return made
    beta1, beta2 = _ADAM["beta1"], _ADAM["beta2"]
    made.rate, made.root, made.eps = lr / (1.0 - beta1**t), (1.0 - beta2**t) ** -0.5, _ADAM["eps"]
    made.keep1, made.new1, made.keep2, made.new2 = beta1, 1.0 - beta1, beta2, 1.0 - beta2
    return made


class LocalOptimizer:
    """Take the steps of one client's training; its buffers live as long as the worker.

    ``kernel``: torch's functions, torch's fused kernels, or ours (``kernels.c``), whose bits no processor changes.
    ``torch_fused`` on a CPU calls torch's kernel directly. The function around it sorts tensors by device and counts
    steps in tensors, which takes noticeable time with small models. The numbers are the same.
    """

    def __init__(self, parameters: Sequence[Tensor], kernel: Kernel, rule: UpdateRule = ADAM) -> None:
        """Keep the rule's buffers and a step counter per parameter."""
        self._rule, self._is_own, fused = rule, kernel == "own", kernel == "torch_fused"
        self._fused, self._is_direct = fused, fused and all(p.device.type == "cpu" for p in parameters)
        self._stale: set[int] = set()
        self._is_once = False
        self._temporary: dict[tuple[torch.dtype, int], tuple[Tensor, Tensor, Tensor]] = {}
        # Fused kernels count steps where the parameters are.
        self._slots = {
            id(p): _Slot(
                tuple(torch.zeros_like(p) for _ in range(rule.num_buffers)),
                torch.zeros((), device=p.device if fused else None),
            )
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
            torch._foreach_zero_([buffer for s in slots for buffer in (*s.buffers, s.steps)])

    @torch.no_grad()
    def step(self, parameters: Sequence[Tensor], lr: float) -> None:
        """One step of the parameters that have a gradient (with decay: of all); their gradients are dropped."""
        if self._rule.weight_decay:
            for p in parameters:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        live = [p for p in parameters if p.grad is not None]
        if self._is_own:
            self._own_steps(live, lr)
            return
        if self._is_once and self._is_direct and self._rule.name != "sgd":
            live = [p for p in live if not self._single_step(p, lr)]
        if not live:
            return
        if self._stale:
            self.clear(live)
        slots = [self._slots[id(p)] for p in live]
        gradients = [p.grad for p in live if p.grad is not None]
        if self._rule.name == "sgd":
            self._sgd_step(live, gradients, slots, lr)
        else:
            self._adam_step(live, gradients, slots, lr)
        for p in live:
            p.grad = None

    def _own_steps(self, live: Sequence[Tensor], lr: float) -> None:
        together: dict[int, tuple[Rule, list[tuple[Tensor | None, Tensor | None, Tensor, Tensor]]]] = {}
        for p in live:
            rule, mean, square = self.begin(p, lr)
            assert p.grad is not None
            together.setdefault(id(rule), (rule, []))[1].append((mean, square, p.grad, p))
        for rule, moved in together.values():
            steps(rule, moved)
        increment_version(live)
        for p in live:
            p.grad = None

    def begin(self, p: Tensor, lr: float) -> tuple[Rule, Tensor | None, Tensor | None]:
        """Begin a tensor's next step by our kernels: the step's numbers, and the moments that it keeps."""
        slot, is_first = self._slots[id(p)], id(p) in self._stale
        assert is_first or not self._is_once, "a second step where one at most was announced"
        self._stale.discard(id(p))
        slot.count = t = 1 if is_first else slot.count + 1
        mean, square = (*slot.buffers, None, None)[:2]
        return _numbers(self._rule, lr, t, is_first, not self._is_once), mean, square

    def _adam_step(self, live: list[Tensor], gradients: list[Tensor], slots: Sequence[_Slot], lr: float) -> None:
        moved = live, gradients, [s.buffers[0] for s in slots], [s.buffers[1] for s in slots], list[Tensor]()
        if self._is_direct:
            for slot in slots:
                slot.count += 1
            self._kernel(lr, *moved, [_step_number(s.count) for s in slots])
        else:
            function = adam if self._rule.name == "adam" else adamw
            steps, decay = [s.steps for s in slots], self._rule.weight_decay
            function(*moved, steps, foreach=False, fused=self._fused, lr=lr, weight_decay=decay, **_ADAM)

    def _kernel(self, lr: float, *moved: list[Tensor]) -> None:
        """Call the fused kernel of Adam or AdamW on values, gradients, means, squares, largest squares and steps."""
        kernel = torch._fused_adam_ if self._rule.name == "adam" else torch._fused_adamw_
        kernel(*moved, lr=lr, weight_decay=self._rule.weight_decay, **_ADAM)

    def _sgd_step(self, live: list[Tensor], gradients: list[Tensor], slots: Sequence[_Slot], lr: float) -> None:
        """Take a step of SGD; velocities that begin at zero give the same first step as none."""
        velocities = [s.buffers[0] for s in slots if s.buffers]
        rates: dict[str, Any] = {"lr": lr, "momentum": self._rule.momentum, "weight_decay": self._rule.weight_decay}
        if self._is_direct:
            torch._fused_sgd_(live, gradients, velocities, is_first_step=False, **rates, **_SGD)
        else:
            kept: list[Tensor | None] = [*velocities] if velocities else [None] * len(live)
            sgd(live, gradients, kept, foreach=False, fused=self._fused, **rates, **_SGD)

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
            self._kernel(lr, [values], [gradient], [mean], [square], [], [_step_number(1)])
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


def clip_gradients(parameters: Sequence[Tensor], largest: float, kernel: Kernel = "torch") -> None:
    """Multiply all gradients by ``min(1, largest / (|g| + 1e-6))``, ``|g|`` the norm of all of them together."""
    if kernel != "own":
        clip_grad_norm_(parameters, largest, foreach=False)
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    factor = largest / (sum(map(squares, gradients), 0.0) ** 0.5 + 1e-6)
    if not factor >= 1.0:  # NaN reaches the gradients, as in torch
        for grad in gradients:
            grad.mul_(factor)
