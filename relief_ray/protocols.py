"""The seams that the round is cut along: time model, personal state, executor, accountant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from relief_ray.groups import Params
from relief_ray.messages import (
    Assignment,
    ClientId,
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


class Accountant(Protocol):
    """Turns receipts into simulated time and energy under every time model."""

    def cost(self, receipts: Sequence[Receipt], fleet: Fleet) -> Mapping[str, RoundCost]:
        """One ``RoundCost`` per time model; clients without receipt wait."""
