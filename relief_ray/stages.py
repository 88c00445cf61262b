"""Stages of a backbone and what they cost: the common language of models, trainer and time models.

A stage is a piece of the forward pass that runs as one: it reads raw inputs (``x.<modality>``) or other stages' outputs
and owns parameter groups. FLOPs are per window.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from relief_ray.groups import GroupId

RAW = "x."
# How local training is carried out (the oracle; features computed once; that with matrix products).
Engine = Literal["naive", "reuse", "gemm"]
# What an absent modality is: its raw input is zero (Eq. (2)), or its feature h_m (Section III-B).
Missing = Literal["zero_input", "zero_feature"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSpec:
    """A stage's place in the forward graph; ``feature`` marks the stage whose output is ``h_m``."""

    id: str
    inputs: tuple[str, ...]
    groups: frozenset[GroupId] = frozenset()
    modality: str | None = None
    feature: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StageFlops:
    """FLOPs of one window: forward, gradient of the input, gradient of each group's weights."""

    forward_flops: float
    input_grad_flops: float
    weight_grad_flops: Mapping[GroupId, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class CostTable:
    """What a backbone costs, counted on its real modules; ``num_values`` is each group's size."""

    stages: tuple[StageSpec, ...]
    flops: Mapping[str, StageFlops]
    num_values: Mapping[GroupId, int]

    def group_flops(self, group: GroupId) -> float:
        """Forward and backward FLOPs of one window that belong to ``group``'s own parameters (the paper's time model).

        A stage with several groups shares its forward and input-gradient FLOPs by their weight-gradient FLOPs.
        """
        total = 0.0
        for stage in self.stages:
            if group in stage.groups:
                cost = self.flops[stage.id]
                own, everyone = cost.weight_grad_flops[group], sum(cost.weight_grad_flops.values())
                share = own / everyone if everyone else 1.0 / len(stage.groups)
                total += own + share * (cost.forward_flops + cost.input_grad_flops)
        return total


def descendants(stages: tuple[StageSpec, ...], trained: Collection[GroupId]) -> frozenset[str]:
    """Stages that a trained group can change: those that own one and all that read from them.

    This one rule decides what the engine recomputes and what the ``split`` time model charges.
    """
    live: set[str] = set()
    for stage in stages:
        if stage.groups & set(trained) or live & set(stage.inputs):
            live.add(stage.id)
    return frozenset(live)


def modalities_below(stages: tuple[StageSpec, ...]) -> dict[str, frozenset[str]]:
    """The modalities whose input each stage depends on."""
    below: dict[str, frozenset[str]] = {}
    for stage in stages:
        sources = (frozenset([i.removeprefix(RAW)]) if i.startswith(RAW) else below[i] for i in stage.inputs)
        below[stage.id] = frozenset().union(*sources)
    return below
