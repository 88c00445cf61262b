"""Descriptions of modules that a method adds to a backbone; built by ``models.extra.with_extra_modules``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from relief_ray.core.groups import GroupId, Role


@dataclass(frozen=True, kw_only=True, slots=True)
class Classifier:
    """A linear classifier on the outputs of the stages that own groups ``after``: an early exit or a unimodal head.

    Each stage's output is pooled to features (B, D_i); ``Linear(sum_i D_i -> K)`` reads their concatenation. The
    backbone's logits do not depend on it.

    Attributes:
        id: name of the new stage and of its one new group.
        after: groups whose stages' outputs are read.
        role: role of the new group.
        modality: modality of the new group; None: shared.
        layer: layer of the new group; None: no layer.
    """

    id: GroupId
    after: tuple[GroupId, ...]
    role: Role = "exit"
    modality: str | None = None
    layer: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """Up to ``most`` experts: copies of one layer, mixed by a router on the features.

    Expert 1 is the backbone's layer, the client's own expert; experts 2, 3, .. have new groups, tagged by ``member``.
    With M experts the router has ``2 M - 1`` slots: M of expert 1 and one of each other expert. ``output(M)`` are the
    logits when the M best slots are mixed; the backbone's logits stay as they are.

    Attributes:
        id: prefix of all new stages and groups.
        of: the groups that make up the layer.
        most: the largest number of experts.
        inside: groups of LoRA layers within one stage each; every such layer has experts and a router of its own, which
            reads each token of the layer's input.
    """

    id: str
    of: tuple[GroupId, ...]
    most: int
    inside: tuple[GroupId, ...] = ()

    def copy(self, expert: int, group: GroupId) -> GroupId:
        """The group of expert 1, 2, .. that corresponds to ``group`` of the backbone."""
        return group if expert == 1 else f"{self.id}.{expert}.{group}"

    def router(self, expert: int, within: GroupId | None = None) -> GroupId:
        """The group of an expert's router rows; with ``within`` those of the routers inside that group's layers."""
        return f"{self.id}.router.{expert}" + (f".{within}" if within else "")

    def groups(self, expert: int) -> tuple[GroupId, ...]:
        """All groups of an expert."""
        return tuple(self.copy(expert, j) for j in (*self.of, *self.inside))

    def routers(self, expert: int) -> tuple[GroupId, ...]:
        """All groups of an expert's router rows."""
        return (self.router(expert), *(self.router(expert, j) for j in self.inside))

    def weights(self, number: int) -> str:
        """The stage whose output is the weights (B, M) of ``number`` experts, the client's own first."""
        return f"{self.id}.weights@{number}"

    def output(self, number: int) -> str | None:
        """The stage whose output is the logits with ``number`` experts; None (the backbone's logits) with one."""
        return None if number == 1 else f"{self.id}.logits@{number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Connector:
    """Residual adapters between the features and the stages that read them; each starts as zero.

    ``h`` (B, D) are all features concatenated. Path ``first``: ``z = h + task_1(h) + own(h)``. Path ``mixed``:
    ``z = h + own(h) + P_1 task_1(h) + sum_{i > 1} P_i (task_i(h) + cross_i(h))``, ``P = softmax(G h)``. The backbone's
    logits stay those without connector.

    Attributes:
        id: prefix of all new stages and groups.
        num_tasks: number of task adapters T.
        bottleneck: inner width W of an adapter D -> W -> D.
        own_in_mix: whether ``own(h)`` is part of path ``mixed``.
    """

    id: str
    num_tasks: int
    bottleneck: int
    own_in_mix: bool = True

    def task(self, number: int) -> GroupId:
        """The adapter of task 1, 2, .. (group and stage)."""
        return f"{self.id}.task.{number}"

    def cross(self, number: int) -> GroupId:
        """The client's addition to another task's adapter 2, 3, .. (group and stage)."""
        return f"{self.id}.cross.{number}"

    @property
    def own(self) -> GroupId:
        """The client's own adapter (group and stage)."""
        return f"{self.id}.own"

    @property
    def router(self) -> GroupId:
        """``G`` (group), and ``G h`` (stage)."""
        return f"{self.id}.router"

    def output(self, path: Literal["first", "mixed"]) -> str:
        """The stage whose output is the logits of a path."""
        return f"{self.id}.logits@{path}"


ExtraModule = Classifier | Experts | Connector
