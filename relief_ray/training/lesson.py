"""A stack of clients in one round: their sessions, and what they read in every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relief_ray.federated import ClientProgram
from relief_ray.process import casting
from relief_ray.stages import RAW
from relief_ray.training.optimizer import Adam
from relief_ray.training.reuse import ForwardPlan, compute_sources, needed
from relief_ray.training.stack import Key, Stack
from relief_ray.training.steps import LocalRound, Session
from relief_ray.training.trainer import Trainer

LABELS = "labels"


class Pool:
    """What all clients read of one source, one behind the other: a row per window, or one for all of a client's."""

    def __init__(self, sources: Sequence[Tensor], num_windows: Sequence[int]) -> None:
        """One source (r_i, ...) per client."""
        lengths = [len(x) for x in sources]
        self._rows = torch.cat(list(sources))
        first = [sum(lengths[:i]) for i in range(len(lengths))]
        own = [int(length == num) for length, num in zip(lengths, num_windows, strict=True)]
        self._first, self._own = (torch.tensor(x).to(self._rows.device).view(-1, 1) for x in (first, own))

    def take(self, clients: slice, index: Tensor) -> Tensor:
        """The rows (k, b, ...) of their windows ``index`` (k, b)."""
        rows = self._first[clients] + index * self._own[clients]
        return self._rows.index_select(0, rows.flatten()).view(*rows.shape, *self._rows.shape[1:])


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """Clients in falling order of their windows; client i has row i of the stack.

    ``keys``: of each client's trained tensors, by learning rate; ``off``: features that run in every step although some
    clients lack them, (N,), 0 for those and else 1; ``losses``: (N,), summed over the windows of the current epoch.
    """

    program: ClientProgram
    plan: ForwardPlan
    stack: Stack
    adam: Adam
    sessions: tuple[Session, ...]
    keys: tuple[Mapping[float, tuple[Key, ...]], ...]
    pools: Mapping[str, Pool]
    off: Mapping[str, Tensor]
    losses: Tensor

    @property
    def num_windows(self) -> list[int]:
        """Of each client."""
        return [len(s.client.labels) for s in self.sessions]


def open_lesson(trainer: Trainer, stack: Stack, adam: Adam, plan: ForwardPlan, rounds: Sequence[LocalRound]) -> Lesson:
    """Loads the clients' models, computes what no step changes and clears Adam's moments."""
    sessions, sources = [], []
    for i, given in enumerate(rounds):
        session = trainer.open(given)
        stack.flat[i].copy_(trainer.flat)
        sessions.append(session)
        sources.append(_sources(trainer, session, plan))
    num_windows = [len(r.client.labels) for r in rounds]
    lesson = Lesson(
        program=rounds[0].visit.program,
        plan=plan,
        stack=stack,
        adam=adam,
        sessions=tuple(sessions),
        keys=tuple({lr: tuple(map(stack.key, ps)) for lr, ps in s.parameters.items()} for s in sessions),
        pools={s: Pool([x[s] for x in sources], num_windows) for s in sources[0]},
        off=_switched_off(plan, sessions, trainer.device),
        losses=torch.zeros(len(rounds), device=trainer.device),
    )
    moved = [stack.rows[i][key] for i, by_lr in enumerate(lesson.keys) for keys in by_lr.values() for key in keys]
    adam.reset(moved)
    adam.clear(moved)
    return lesson


def _sources(trainer: Trainer, session: Session, plan: ForwardPlan) -> dict[str, Tensor]:
    """What the stack's steps read of one client, with its labels; its model is loaded."""
    zeroed = session.plan.zero_features
    before = needed(trainer.backbone, {s for s in plan.sources if not s.startswith(RAW)}, zeroed)
    own = replace(plan, before=before, absent=session.plan.absent, zero_features=zeroed)
    with casting(session.autocast, trainer.device):
        found = compute_sources(trainer.backbone, own, session.client.inputs, len(session.client.labels))
    held = {s: x for s, x in found.items() if s in plan.sources and isinstance(x, Tensor)}
    return held | {LABELS: session.client.labels}


def _switched_off(plan: ForwardPlan, sessions: Sequence[Session], device: torch.device) -> dict[str, Tensor]:
    lacking = {s.spec.id: [s.spec.id in x.plan.zero_features for x in sessions] for s in plan.every_step}
    return {name: torch.tensor([float(not x) for x in off]).to(device) for name, off in lacking.items() if any(off)}
