"""The seams that the round is cut along: time model, personal state, executor, accountant, server-side backbone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from relief_ray.groups import GroupId, Params
from relief_ray.messages import (
    Assignment,
    ClientId,
    ClientInfo,
    ClientState,
    EvalTarget,
    Fleet,
    Receipt,
    RoundCost,
    StageTimes,
    Trained,
)

Models = Mapping[str, Params]
States = Mapping[ClientId, ClientState]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A classifier at work: its ``logits`` (B, K) and the ``features`` (B, D) that it reads, side by side."""

    logits: Tensor
    features: Tensor


class Planner(Protocol):
    """The time model as strategies see it."""

    def times(self, client: ClientId, assignment: Assignment) -> StageTimes:
        """Predicted stage times of ``assignment`` on the client's device."""


class StateStore(Protocol):
    """Personal state of clients: staged during a round, committed with it."""

    def load(self, client: ClientId) -> ClientState:
        """The last committed state (empty at first)."""

    def stage(self, client: ClientId, state: ClientState) -> None:
        """Remembers a client's new state until the round is committed."""

    def commit(self) -> None:
        """Makes all staged states current."""


class Executor(Protocol):
    """Where clients run: a plain loop or Ray actors, with the same bits."""

    def train(self, round_: int, models: Models, tasks: Sequence[Assignment], states: States) -> Trained:
        """Runs every task; sums blocks of clients as the strategy's reduction allows."""

    def evaluate(
        self, models: Models, targets: Sequence[EvalTarget], states: States, part: str
    ) -> Mapping[str, Tensor]:
        """Confusion matrices of each target, by "label" and "label|modality", on ``part`` ("test" or "validation").

        They are int64 (subjects, classes, classes), rows true, columns predicted.
        """

    def close(self) -> None:
        """Releases workers; called once."""


class Network(Protocol):
    """A backbone that the server computes with: differentiable in its parameters and in raw windows."""

    @property
    def channels(self) -> Mapping[str, int]:
        """Channels by modality, in canonical order."""

    @property
    def window(self) -> int:
        """Samples per window."""

    @property
    def num_classes(self) -> int:
        """``K``."""

    @property
    def parameters(self) -> Mapping[GroupId, tuple[nn.Parameter, ...]]:
        """Every group's tensors, in storage order."""

    def load(self, params: Params) -> None:
        """Copies all groups' vectors into the parameters."""

    def read(self, windows: Mapping[str, Tensor], outputs: Collection[str | None]) -> Mapping[str | None, Reading]:
        """Each of ``outputs`` (None: the backbone's own logits) on raw windows (B, C, T), standardised.

        A modality that is not in ``windows`` is absent as the run's missing mode says.
        """


class Windows(Protocol):
    """Public windows without labels, by reference: nobody trains on them and no test does."""

    def __len__(self) -> int:
        """How many."""

    def take(self, index: Sequence[int]) -> Windows:
        """Those at these places, in this order."""

    def load(self, modalities: Collection[str] | None = None) -> Mapping[str, NDArray[np.float32]]:
        """Modality (None: all) -> (n, C, T), standardised."""


class Accountant(Protocol):
    """Turns receipts into simulated time and energy under every time model."""

    def charged(self, done: Sequence[Receipt], participants: Sequence[ClientInfo]) -> tuple[Receipt, ...]:
        """What the round is charged for: what was ``done``, unless the accounting says otherwise."""

    def cost(self, receipts: Sequence[Receipt], fleet: Fleet, server_s: float = 0.0) -> Mapping[str, RoundCost]:
        """One ``RoundCost`` per time model; clients without receipt wait. ``server_s``: how long aggregation took."""
