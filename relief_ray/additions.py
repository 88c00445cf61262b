"""What a method asks of a backbone besides what it has: pure descriptions, built by ``models.extend``."""

from __future__ import annotations

from dataclasses import dataclass

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


Addition = Classifier
