"""Optimizer steps inside the backward pass: a large gradient is used while it is in the cache, and its memory again.

A step depends on nothing but its own tensor's gradient, so no bit changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from torch import Tensor

from relief_ray.federated import task_loss
from relief_ray.training.optimizer import LARGE, Adam
from relief_ray.training.steps import Session
from relief_ray.training.vectors import Clock


@contextmanager
def stepped_at_once(session: Session, adam: Adam, batch_size: int) -> Iterator[None]:
    """Inside, large trained tensors take their step as soon as a batch's gradient is theirs; the others share one.

    Not where a gradient is not ready then: batches that go in parts, tensors that are trained in parts, objectives that
    may still read what moves.
    """
    has_parts = session.most < batch_size or any(part.cuts for part in session.task.train.values())
    if has_parts or session.visit.program.objective is not task_loss:
        yield
        return
    with ExitStack() as hooks:
        for lr, parameters in session.parameters.items():
            for p in parameters:
                if p.numel() >= LARGE:
                    take = partial(_take, adam, lr, session.visit.clock)
                    hooks.callback(p.register_post_accumulate_grad_hook(take).remove)  # type: ignore[no-untyped-call]
        yield


def _take(adam: Adam, lr: float, clock: Clock, parameter: Tensor) -> None:
    """One tensor's step; what it takes is the optimizer's, not the backward pass'."""
    began = clock.read()
    adam.step([parameter], lr)
    seconds = clock.read() - began
    clock.optimizer_s += seconds
    clock.backward_s -= seconds
