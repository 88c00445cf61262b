"""What a method asks of a backbone besides what it has: pure descriptions, built by ``models.extend``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from relief_ray.groups import GroupId, Role


@dataclass(frozen=True, kw_only=True, slots=True)
class Classifier:
    """A linear classifier on what the stages behind groups ``after`` say: an early exit, or a unimodal head.

    Each stage's output is pooled to features (B, D_i); ``Linear(sum_i D_i -> K)`` reads them side by side. The new
    stage and its one new group are both called ``id``; they are on no path to the backbone's own logits.
    """

    id: GroupId
    after: tuple[GroupId, ...]
    role: Role = "exit"
    modality: str | None = None
    layer: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """Up to ``most`` copies of the layer that groups ``of`` make up, mixed by a router on the features.

    Copy 1 is the backbone's own layer; copies 2, 3, .. own groups of their own, tagged by ``member``. With ``M``
    experts the router has ``2 M - 1`` slots: one for the own expert, and with every further one another own slot and
    one of its. ``output(M)`` are the logits when the ``M`` best slots are mixed; the backbone's own logits stay.

    ``inside``: groups of LoRA layers within a stage each; every such layer has copies and a router of its own, which
    looks at each token of the layer's input.
    """

    id: str
    of: tuple[GroupId, ...]
    most: int
    inside: tuple[GroupId, ...] = ()

    def copy(self, expert: int, group: GroupId) -> GroupId:
        """The group of expert 1, 2, .. that stands for ``group``."""
        return group if expert == 1 else f"{self.id}.{expert}.{group}"

    def router(self, expert: int, within: GroupId | None = None) -> GroupId:
        """The router's rows that come with an expert; those of the layers of a group ``within``."""
        return f"{self.id}.router.{expert}" + (f".{within}" if within else "")

    def own(self, expert: int) -> tuple[GroupId, ...]:
        """All groups of an expert."""
        return tuple(self.copy(expert, j) for j in (*self.of, *self.inside))

    def routers(self, expert: int) -> tuple[GroupId, ...]:
        """All routers' rows that come with an expert."""
        return (self.router(expert), *(self.router(expert, j) for j in self.inside))

    def weights(self, number: int) -> str:
        """The stage that gives the weights (B, M) of so many experts, the own one first."""
        return f"{self.id}.weights@{number}"

    def output(self, number: int) -> str | None:
        """The stage that gives the logits of so many experts; with one the backbone's own."""
        return None if number == 1 else f"{self.id}.logits@{number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Connector:
    """Residual adapters between the features and all that reads them; each is D -> ``bottleneck`` -> D, zero at first.

    ``h`` (B, D) are all features side by side. ``first``: ``z = h + task_1(h) + own(h)``. ``mixed``:
    ``z = h + own(h) + P_1 task_1(h) + sum_{i > 1} P_i (task_i(h) + cross_i(h))``, ``P = softmax(G h)``; ``own`` counts
    there with ``own_in_mix``. The backbone's own logits stay those without connector.
    """

    id: str
    num_tasks: int
    bottleneck: int
    own_in_mix: bool = True

    def task(self, number: int) -> GroupId:
        """The adapter of task 1, 2, .. (group and stage)."""
        return f"{self.id}.task.{number}"

    def cross(self, number: int) -> GroupId:
        """What a client adds to another task's adapter 2, 3, .. (group and stage)."""
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
        """The stage that gives the logits behind either connector."""
        return f"{self.id}.logits@{path}"


Addition = Classifier | Experts | Connector
