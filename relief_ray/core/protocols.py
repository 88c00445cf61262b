"""Interfaces between the round and its surroundings: time model, personal state, executor, costs, server backbone.

Also the form in which a method explains a client's task to people (``Explanation``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from relief_ray.core.groups import GroupId, GroupLayout, Params
from relief_ray.core.messages import (
    Assignment,
    ClientId,
    ClientInfo,
    ClientState,
    EvalTarget,
    Fleet,
    Models,
    Receipt,
    Reduced,
    RoundCost,
    ServerState,
    StageTimes,
    States,
    Trained,
)

# Groups by name of a server's model.
ModelGroups = Mapping[str, Collection[GroupId]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Output of a classifier on B windows.

    Attributes:
        logits: (B, K).
        features: input of the classifier's last layers (B, D).
    """

    logits: Tensor
    features: Tensor


class Planner(Protocol):
    """Time model as strategies see it."""

    def times(self, client: ClientId, assignment: Assignment) -> StageTimes:
        """Predict the seconds of ``assignment`` on the client's device."""

    def nbytes(self, client: ClientId, assignment: Assignment) -> tuple[int, int]:
        """Return the bytes of ``assignment`` that come down to the client and go up from it."""


class StateStore(Protocol):
    """Personal state of clients: staged during a round, committed with it."""

    def load(self, client: ClientId) -> ClientState:
        """Return the state as last committed; empty at first."""

    def stage(self, client: ClientId, state: ClientState) -> None:
        """Keep a client's new state until the round is committed."""

    def commit(self) -> None:
        """Make all staged states current."""


class Trains(Protocol):
    """Trains clients."""

    def train(self, round_: int, models: Models, tasks: Sequence[Assignment], states: States) -> Trained:
        """Train every task and reduce the updates as the strategy's reduction says."""


class Executor(Trains, Protocol):
    """Runs clients, in a plain loop or on Ray workers, with the same bits."""

    def evaluate(
        self, models: Models, targets: Sequence[EvalTarget], states: States, part: str
    ) -> Mapping[str, Tensor]:
        """Return the confusion matrices of all targets, by "label" and "label|modality".

        They are int64 (subjects, K, K), rows true, columns predicted. ``part`` is "test" or "validation".
        """

    def close(self) -> None:
        """Release the workers; called once."""


class Network(Protocol):
    """Backbone for the server's own computations: differentiable in its parameters and in raw windows."""

    @property
    def channels(self) -> Mapping[str, int]:
        """Number of channels by modality, in canonical order."""

    @property
    def window(self) -> int:
        """Samples per window."""

    @property
    def num_classes(self) -> int:
        """Number of classes, ``K``."""

    @property
    def parameters(self) -> Mapping[GroupId, tuple[nn.Parameter, ...]]:
        """Tensors of every group, in storage order."""

    def load(self, params: Params) -> None:
        """Copy all groups' vectors into the parameters."""

    def params(self) -> dict[GroupId, Tensor]:
        """Return a copy of all groups' vectors."""

    def read(self, windows: Mapping[str, Tensor], outputs: Collection[str | None]) -> Mapping[str | None, Reading]:
        """Compute each of ``outputs`` (None: the backbone's own logits) on raw, standardised windows (B, C, T).

        A modality that is not in ``windows`` is treated as absent, by the run's missing mode.
        """


class Windows(Protocol):
    """Public windows without labels, of neither training nor test data; read when they are needed."""

    def __len__(self) -> int:
        """Return the number of windows."""

    def take(self, index: Sequence[int]) -> Windows:
        """Return the windows at these positions, in this order."""

    def load(self, modalities: Collection[str] | None = None) -> Mapping[str, NDArray[np.float32]]:
        """Read standardised windows (n, C, T) by modality; ``modalities`` None: all."""


class Accountant(Protocol):
    """Turns receipts into simulated time and energy under all time models."""

    def charged(self, done: Sequence[Receipt], participants: Sequence[ClientInfo]) -> tuple[Receipt, ...]:
        """Return the receipts that are charged: what was ``done``, unless the accounting says otherwise."""

    def cost(self, receipts: Sequence[Receipt], fleet: Fleet, server_s: float = 0.0) -> Mapping[str, RoundCost]:
        """Return the round's cost by time model; clients without receipt wait.

        ``server_s``: real seconds of the aggregation.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplanationSection:
    """Part of an explanation: a heading, sentences and a table.

    Attributes:
        heading: summary of the section in one line.
        lines: sentences below it.
        head: headings of the table's columns; empty where there is no table.
        rows: cells of the table as text.
        left: number of columns that are aligned to the left.
    """

    heading: str
    lines: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    left: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """Reasons for one client's task in one round, as `relief-ray explain` prints them.

    Attributes:
        summary: the whole answer where nothing had to be chosen; empty where there are sections.
        sections: what decided the task, step by step.
        groups: groups that the client trains, for comparison with the ledger.
        facts: the figures of the sections by name, for JSON.
    """

    summary: str = ""
    sections: tuple[ExplanationSection, ...] = ()
    groups: tuple[GroupId, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)


class ServerStep(Protocol):
    """Applies an optimizer to what aggregation has made of the server's models."""

    def __call__(self, before: ServerState, after: ServerState, averaged: ModelGroups) -> ServerState:
        """Return the next state; of ``after`` as aggregated, ``averaged`` groups may take another step."""


def as_aggregated(before: ServerState, after: ServerState, averaged: ModelGroups) -> ServerState:
    """Keep the state as it was aggregated: no optimizer on the server."""
    return after


def by_name(state: ServerState) -> Mapping[str, str]:
    """Return each model's name: a model of that name is the same one in every round."""
    return {name: name for name in state.models}


def sent_groups(state: ServerState, reduced: Reduced, layout: GroupLayout, fleet: Fleet) -> ModelGroups:
    """Return the groups that usable updates brought, by the model that their clients began from (``view``)."""
    sent: dict[str, set[GroupId]] = {}
    for receipt in reduced.receipts:
        sent.setdefault(receipt.assignment.view, set()).update(receipt.assignment.up)
    return sent
