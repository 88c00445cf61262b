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
FLOAT_BYTES = 4
# Outputs that no step changes are kept for a client's round up to so many bytes, else computed again in every step.
MAX_KEPT_BYTES = 2**30
# What a step's forward pass may keep for its backward pass; larger batches go through in parts.
MAX_STEP_BYTES = 2**29
# What an absent modality is: its raw input is zero (Eq. (2)), or its feature h_m (Section III-B).
Missing = Literal["zero_input", "zero_feature"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSpec:
    """A stage's place in the forward graph; ``feature`` marks the stage whose output is ``h_m``.

    ``cheap``: next to nothing to compute and large to keep, so it runs in every step that reads it.
    """

    id: str
    inputs: tuple[str, ...]
    groups: frozenset[GroupId] = frozenset()
    modality: str | None = None
    feature: bool = False
    cheap: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StageFlops:
    """FLOPs of one window: forward, gradient of the input, gradient of each group's weights.

    ``inner_grad_flops``: what the gradient takes inside the stage to reach a group where the stage's input needs none
    (otherwise it is part of the input's gradient). ``frozen_forward_flops`` and ``frozen_grad_flops`` are what of the
    first two belongs to parameters of no group. ``output_bytes``: its output.
    """

    forward_flops: float
    input_grad_flops: float
    weight_grad_flops: Mapping[GroupId, float] = field(default_factory=dict)
    inner_grad_flops: Mapping[GroupId, float] = field(default_factory=dict)
    frozen_forward_flops: float = 0.0
    frozen_grad_flops: float = 0.0
    output_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CostTable:
    """What a backbone costs, counted on its real modules; ``num_values`` is each group's size.

    ``output`` names the stage that gives the logits (the last one by default).
    """

    stages: tuple[StageSpec, ...]
    flops: Mapping[str, StageFlops]
    num_values: Mapping[GroupId, int]
    output: str | None = None

    def running(self, wanted: Collection[str | None] = (None,)) -> tuple[StageSpec, ...]:
        """The stages that run where ``wanted`` outputs are read; None stands for the logits."""
        below = ancestors(self.stages, {s or self.output or self.stages[-1].id for s in wanted})
        return tuple(s for s in self.stages if s.id in below)

    def group_flops(self, group: GroupId, among: Collection[StageSpec] | None = None) -> float:
        """Forward and backward FLOPs of one window that belong to ``group``'s own parameters (the paper's time model).

        ``among``: the stages that run; a stage with twins on other ways to the logits counts where it does. By default
        those behind ``output``, and for a group of none of them the first stage that owns it.

        A stage with several groups shares its forward and input-gradient FLOPs by their weight-gradient FLOPs; what
        frozen parameters take is nobody's.
        """
        total = 0.0
        if among is None:
            owners = tuple(s for s in self.stages if group in s.groups)
            among = tuple(s for s in self.running() if s in owners) or owners[:1]
        for stage in among:
            if group in stage.groups:
                cost = self.flops[stage.id]
                own, everyone = cost.weight_grad_flops[group], sum(cost.weight_grad_flops.values())
                share = own / everyone if everyone else 1.0 / len(stage.groups)
                frozen = cost.frozen_forward_flops + cost.frozen_grad_flops
                total += own + share * (cost.forward_flops + cost.input_grad_flops - frozen)
        return total

    def frozen_forward_flops(self) -> float:
        """Forward FLOPs of one window that no parameter group owns: they are spent whatever is trained."""
        costs = [(s, self.flops[s.id]) for s in self.running()]
        return sum(c.frozen_forward_flops if s.groups else c.forward_flops for s, c in costs)


def missing_mode(usual: Missing, *, omit_absent: bool) -> Missing:
    """What an absent modality is to a task or a target that may leave it out (``Assignment.omit_absent``)."""
    return "zero_feature" if omit_absent else usual


def descendants(stages: tuple[StageSpec, ...], trained: Collection[GroupId]) -> frozenset[str]:
    """Stages that a trained group can change: those that own one and all that read from them.

    This one rule decides what the engine recomputes and what the ``split`` time model charges.
    """
    live: set[str] = set()
    for stage in stages:
        if stage.groups & set(trained) or live & set(stage.inputs):
            live.add(stage.id)
    return frozenset(live)


def read_by(stages: Collection[StageSpec], readers: Collection[str]) -> frozenset[str]:
    """What the stages named ``readers`` read."""
    return frozenset(i for s in stages if s.id in readers for i in s.inputs)


def cheap_reads(stages: Collection[StageSpec], live: Collection[str]) -> frozenset[str]:
    """Cheap stages that a live one reads: they run in every step beside it, in the engine and by the clocks."""
    read = read_by(stages, live)
    return frozenset(s.id for s in stages if s.cheap and s.id in read)


def ancestors(
    stages: tuple[StageSpec, ...], wanted: Collection[str], zeroed: Collection[str] = frozenset()
) -> frozenset[str]:
    """``wanted`` stages and all that they read, but for what lies below a ``zeroed`` one: what has to run at all."""
    found = set(wanted)
    for stage in reversed(stages):
        if stage.id in found and stage.id not in zeroed:
            found.update(i for i in stage.inputs if not i.startswith(RAW))
    return frozenset(found)


def modalities_below(stages: tuple[StageSpec, ...]) -> dict[str, frozenset[str]]:
    """The modalities whose input each stage depends on."""
    below: dict[str, frozenset[str]] = {}
    for stage in stages:
        sources = (frozenset([i.removeprefix(RAW)]) if i.startswith(RAW) else below[i] for i in stage.inputs)
        below[stage.id] = frozenset().union(*sources)
    return below


def most_windows(step_bytes: int) -> int | None:
    """Windows that may go forward and backward together where each keeps so much; None: as many as there are."""
    return max(1, MAX_STEP_BYTES // step_bytes) if step_bytes else None
