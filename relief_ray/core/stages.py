"""Stages of a backbone and their costs, as models, trainer and time models describe them.

A stage is a piece of the forward pass that runs as one: it reads raw inputs (``x.<modality>``) or other stages' outputs
and owns parameter groups. FLOPs are per window.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from relief_ray.core.groups import GroupId

# Prefix of a stage's input that is a modality's raw window.
RAW = "x."
# How local training is carried out: every stage in every step (reference); unchanged outputs computed once; the latter
# with convolutions as matrix products; the latter with kernels in C.
Engine = Literal["naive", "reuse", "gemm", "fused"]
FLOAT_BYTES = 4
# Largest memory for the outputs that no step changes, per client and round; else they are computed in every step.
MAX_KEPT_BYTES = 2**30
# Largest memory that a step's forward pass keeps for its backward pass; larger batches are split.
MAX_STEP_BYTES = 2**29
# How an absent modality is represented: its raw input is zero (Eq. (2)), or its feature h_m (Section III-B).
Missing = Literal["zero_input", "zero_feature"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSpec:
    """A stage's place in the forward graph.

    Attributes:
        id: the stage's name.
        inputs: names of earlier stages, or ``x.<modality>`` for a raw input.
        groups: parameter groups that the stage computes with.
        modality: the one modality that it belongs to; None: several.
        feature: whether its output is a modality's feature ``h_m``.
        cheap: whether it is cheaper to compute than to keep, so that it runs in every step that reads it.
        varies: whether its output in training differs from step to step whatever is trained: dropout, batch statistics.
    """

    id: str
    inputs: tuple[str, ...]
    groups: frozenset[GroupId] = frozenset()
    modality: str | None = None
    feature: bool = False
    cheap: bool = False
    varies: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StageFlops:
    """FLOPs of one stage for one window.

    Attributes:
        forward_flops: forward pass.
        input_grad_flops: gradient with respect to the stage's inputs.
        weight_grad_flops: gradient with respect to each group's parameters.
        inner_grad_flops: gradient through the stage down to each group's parameters where the inputs need none
            (otherwise it is part of the input gradient).
        frozen_forward_flops: the part of ``forward_flops`` that belongs to parameters of no group.
        frozen_grad_flops: the part of ``input_grad_flops`` that belongs to parameters of no group.
        output_bytes: size of the stage's output.
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
    """Costs of a backbone, counted on its real modules.

    Attributes:
        stages: in topological order.
        flops: each stage's FLOPs per window.
        num_values: each group's number of parameters.
        output: the stage of the logits; None: the last one.
    """

    stages: tuple[StageSpec, ...]
    flops: Mapping[str, StageFlops]
    num_values: Mapping[GroupId, int]
    output: str | None = None

    def running(self, wanted: Collection[str | None] = (None,)) -> tuple[StageSpec, ...]:
        """The stages that have to run for the outputs ``wanted``; None stands for the logits."""
        below = ancestors(self.stages, {s or self.output or self.stages[-1].id for s in wanted})
        return tuple(s for s in self.stages if s.id in below)

    def group_flops(self, group: GroupId, among: Collection[StageSpec] | None = None) -> float:
        """Forward and backward FLOPs of one window that belong to ``group``'s parameters (the paper's time model).

        ``among``: the stages that run; a stage with copies on other paths to the logits counts once per copy that runs.
        By default the stages that ``output`` needs, or for a group of none of them the first stage that owns it.

        A stage with several groups shares its forward and input-gradient FLOPs in proportion to their weight-gradient
        FLOPs; FLOPs of frozen parameters belong to no group.
        """
        total = 0.0
        if among is None:
            owners = tuple(s for s in self.stages if group in s.groups)
            among = tuple(s for s in self.running() if s in owners) or owners[:1]
        for stage in among:
            if group in stage.groups:
                cost = self.flops[stage.id]
                weight_flops, stage_flops = cost.weight_grad_flops[group], sum(cost.weight_grad_flops.values())
                share = weight_flops / stage_flops if stage_flops else 1.0 / len(stage.groups)
                frozen = cost.frozen_forward_flops + cost.frozen_grad_flops
                total += weight_flops + share * (cost.forward_flops + cost.input_grad_flops - frozen)
        return total

    def frozen_forward_flops(self) -> float:
        """Forward FLOPs of one window that no group owns: they are spent whatever is trained."""
        costs = [(s, self.flops[s.id]) for s in self.running()]
        return sum(c.frozen_forward_flops if s.groups else c.forward_flops for s, c in costs)


def missing_mode(usual: Missing, *, omit_absent: bool) -> Missing:
    """The missing mode of a task or an evaluation target: ``zero_feature`` with ``Assignment.omit_absent``."""
    return "zero_feature" if omit_absent else usual


def descendants(stages: tuple[StageSpec, ...], trained: Collection[GroupId]) -> frozenset[str]:
    """Stages whose output a trained group can change: those that own one, and all that read from them.

    The engine propagates gradients through exactly these stages, and the ``split`` time model charges for them.
    """
    return _downstream(stages, {s.id for s in stages if s.groups & set(trained)})


def recomputed(
    stages: tuple[StageSpec, ...], trained: Collection[GroupId], absent: Collection[str] = frozenset()
) -> frozenset[str]:
    """Stages whose output differs between two steps: ``descendants``, stages that vary, and all that read from these.

    The engine runs exactly these stages in every step, and the ``split`` time model charges for exactly them. Stages of
    ``absent`` sensors alone are always in test mode and do not vary.
    """
    changing = {s.id for s in stages if s.groups & set(trained) or (s.varies and s.id not in absent)}
    return _downstream(stages, changing)


def _downstream(stages: tuple[StageSpec, ...], first: Collection[str]) -> frozenset[str]:
    """The stages ``first`` and all that read from them."""
    below = set(first)
    for stage in stages:
        if below & set(stage.inputs):
            below.add(stage.id)
    return frozenset(below)


def read_by(stages: Collection[StageSpec], readers: Collection[str]) -> frozenset[str]:
    """The inputs of the stages named ``readers``."""
    return frozenset(i for s in stages if s.id in readers for i in s.inputs)


def cheap_reads(stages: Collection[StageSpec], live: Collection[str]) -> frozenset[str]:
    """Cheap stages that a live stage reads: they run in every step, in the engine and in the time models."""
    read = read_by(stages, live)
    return frozenset(s.id for s in stages if s.cheap and s.id in read)


def ancestors(
    stages: tuple[StageSpec, ...], wanted: Collection[str], zeroed: Collection[str] = frozenset()
) -> frozenset[str]:
    """The stages that have to run for ``wanted`` ones: they and all that they read, except below a ``zeroed`` one."""
    needed = set(wanted)
    for stage in reversed(stages):
        if stage.id in needed and stage.id not in zeroed:
            needed.update(i for i in stage.inputs if not i.startswith(RAW))
    return frozenset(needed)


def only_for(stages: Sequence[StageSpec], dead: Collection[str], kept: Collection[str] = frozenset()) -> frozenset[str]:
    """The stages ``dead``, and those but for ``kept`` that only such stages read: none of them needs to run."""
    off = set(dead)
    for stage in reversed(stages):
        readers = {s.id for s in stages if stage.id in s.inputs}
        if stage.id not in kept and readers and readers <= off:
            off.add(stage.id)
    return frozenset(off)


def modalities_below(stages: tuple[StageSpec, ...]) -> dict[str, frozenset[str]]:
    """The modalities whose input each stage depends on."""
    below: dict[str, frozenset[str]] = {}
    for stage in stages:
        sources = (frozenset([i.removeprefix(RAW)]) if i.startswith(RAW) else below[i] for i in stage.inputs)
        below[stage.id] = frozenset().union(*sources)
    return below


def absent_groups(stages: tuple[StageSpec, ...], present: Collection[str]) -> frozenset[GroupId]:
    """Groups of those of the ``stages`` that depend on absent modalities alone."""
    below = modalities_below(stages)
    return frozenset(j for s in stages if below[s.id].isdisjoint(present) for j in s.groups)


def received_rows(
    stages: tuple[StageSpec, ...], present: Collection[str], blocks: Collection[GroupId], missing: Missing
) -> tuple[str, ...]:
    """Stages of absent modalities alone that other stages read: without these networks, a client needs their outputs.

    ``blocks``: groups of blocks ``A_m h_m`` without a bias: with ``zero_feature`` their outputs are 0, as features are.
    """
    below = modalities_below(stages)
    absent = {s.id for s in stages if below[s.id].isdisjoint(present)}
    read = read_by(stages, {s.id for s in stages} - absent) & absent
    are_zero = {s.id for s in stages if s.feature or (s.groups and s.groups <= set(blocks))}
    return tuple(s.id for s in stages if s.id in read and not (missing == "zero_feature" and s.id in are_zero))


def most_windows(step_bytes: int) -> int | None:
    """Windows that may go through a step together if each keeps ``step_bytes`` (0: negligible); None: no limit."""
    return max(1, MAX_STEP_BYTES // step_bytes) if step_bytes else None
