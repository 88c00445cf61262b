"""The client's half of a federated method: what it reads, computes and sends in one round (Algorithm 1, green box)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from relief_ray.core.groups import GroupLayout, Params
from relief_ray.core.messages import Assignment, ClientInfo, ClientState, Update
from relief_ray.core.protocols import Planner
from relief_ray.core.streams import Streams


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """Result of a probe: one plain gradient step on one batch, taken back afterwards.

    The run's optimizer has no part in it: the first step of a fresh Adam is the gradient's sign times the learning
    rate, which says nothing about size.

    Attributes:
        step: ``w' - w = -lr g`` by group, with the gradient ``g`` at ``w`` and the group's learning rate.
        gradient: gradient at ``w'`` by group.
    """

    step: Params
    gradient: Params


def no_probe(trial: Assignment) -> Probed:
    """Default of ``probe``: raises, because there is no data outside of a client's training."""
    raise NotImplementedError("this context cannot probe; only a client in training can")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientContext:
    """Input of a client's program.

    Attributes:
        info: the client.
        round: number of the round.
        layout: parameter groups of the model.
        start: model that it received, by group.
        state: its personal state as last committed.
        streams: random generators by purpose, round and client.
        planner: time model that predicts a task's seconds; None where the run has none.
        probe: takes one plain gradient step of a trial task on one batch and takes it back; its cost is charged.
    """

    info: ClientInfo
    round: int
    layout: GroupLayout
    start: Params
    state: ClientState
    streams: Streams
    planner: Planner | None = None
    probe: Callable[[Assignment], Probed] = no_probe


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalStep:
    """Mini-batch of b windows, as the objective sees it.

    Attributes:
        logits: (b, K).
        labels: class indices (b,).
        taps: outputs (b, ...) of the task's tapped stages, absent sensors' too.
        params: current parameters by group.
        start: parameters that the round began with, by group.
        args: the task's ``args``.
        cross_entropy: the engine's, (logits (b, K), labels (b,)) -> the batch's mean.
    """

    logits: Tensor
    labels: Tensor
    taps: Mapping[str, Tensor]
    params: Params
    start: Params
    args: Mapping[str, float]
    cross_entropy: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy


def keep_assignment(context: ClientContext, assignment: Assignment) -> Assignment:
    """Keep the task as the server sent it."""
    return assignment


def task_loss(step: LocalStep) -> Tensor:
    """Cross-entropy of Eq. (2), mean over the batch."""
    return step.cross_entropy(step.logits, step.labels)


def observe_nothing(step: LocalStep) -> Mapping[str, Tensor]:
    """Report no statistics."""
    return {}


def send_all(context: ClientContext, update: Update) -> Update:
    """Send the update unchanged."""
    return update


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientProgram:
    """Client's half of a method, the green box of Algorithm 1.

    Its functions are of a module, or partials of such, so that they can be sent to other processes.

    Attributes:
        refine: changes the task on the client, before training.
        objective: loss of a mini-batch, a scalar.
        observe: rows about each batch of the last epoch, before its step; together they are ``Receipt.stats``.
        after: changes the update before it is sent.
        is_mean: whether ``objective`` is a mean over windows plus terms of the parameters alone, so that the gradients
            of micro-batches add up.
    """

    refine: Callable[[ClientContext, Assignment], Assignment] = keep_assignment
    objective: Callable[[LocalStep], Tensor] = task_loss
    observe: Callable[[LocalStep], Mapping[str, Tensor]] = observe_nothing
    after: Callable[[ClientContext, Update], Update] = send_all
    is_mean: bool = False
