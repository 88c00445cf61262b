"""Plans which stages of a forward pass run once per client and round, and which run in every step.

A stage is *live* when a trained group can change its output, or when it varies by itself (dropout, batch norm). The
output of any other stage is computed once per window and round; a stage that depends on absent modalities alone always
reads the same zero window and is computed on one row. Both are exact.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from relief_ray.core.groups import GroupId
from relief_ray.core.stages import (
    FLOAT_BYTES,
    RAW,
    Missing,
    ancestors,
    cheap_reads,
    descendants,
    modalities_below,
    only_for,
    read_by,
    recomputed,
)
from relief_ray.models.backbone import Backbone, Stage, output_shapes, zero_input
from relief_ray.training.inputs import LazyRows, Rows

Values = dict[str, Tensor]

CHUNK = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardPlan:
    """A backbone's stages by when they run, for one set of trained groups and present modalities.

    Attributes:
        before: stages that run once per client and round, in order.
        every_step: stages that run in every optimizer step, in order.
        sources: what the steps read: raw inputs ``x.<modality>`` and outputs computed once.
        absent: stages that depend on absent modalities alone.
        zero_features: feature stages whose output is replaced by zeros (``missing = zero_feature``).
        shared_absent: whether absent stages are computed on a single row, or received; not by the engine ``naive``.
        step_bytes: bytes that a step keeps of each window for its backward pass, as the stages declare them.
    """

    before: tuple[Stage, ...]
    every_step: tuple[Stage, ...]
    sources: tuple[str, ...]
    absent: frozenset[str]
    zero_features: frozenset[str]
    shared_absent: bool
    step_bytes: int = 0


def plan_forward(
    backbone: Backbone,
    present: Collection[str],
    trained: Collection[GroupId],
    missing: Missing,
    reuse: bool,
    taps: Collection[str] = (),
    output: str | None = None,
    keep: bool = True,
    receives: bool = False,
) -> ForwardPlan:
    """Split the stages that ``output`` and ``taps`` need into those before the first step and those of every step.

    ``reuse=False`` (the engine ``naive``) runs every stage in every step on the whole batch: the reference.
    ``keep=False`` runs all stages but those of absent modalities in every step: their outputs need too much memory.
    ``receives``: the client has no networks of absent modalities, but a row of each output (``absent_rows``).
    """
    specs = backbone.specs
    below = modalities_below(specs)
    wanted = {output or backbone.output, *taps}
    steps = stages_for(backbone, wanted, frozenset())
    absent = frozenset(s for s, sources in below.items() if not sources & set(present))
    off = absent if missing == "zero_feature" else frozenset[str]()
    zeroed = frozenset(s.spec.id for s in steps if s.spec.feature and s.spec.id in off)
    moved = descendants(specs, trained)
    live = recomputed(specs, trained, absent) if reuse else frozenset(below) - (absent if receives else frozenset())
    if reuse:
        live |= frozenset(below) - absent if not keep else cheap_reads(specs, live) - absent
    if reuse and zeroed:
        live -= only_for([s.spec for s in steps], zeroed, wanted)
    every = _joined(backbone, [s for s in steps if s.spec.id in live], trained, wanted)
    sources = tuple(sorted(({i for s in every for i in s.spec.inputs} | wanted) - live))
    is_shared = reuse or receives
    before = stages_for(backbone, {s for s in sources if not s.startswith(RAW)}, zeroed if is_shared else frozenset())
    return ForwardPlan(
        before=before,
        every_step=tuple(every),
        sources=sources,
        absent=absent,
        zero_features=zeroed,
        shared_absent=is_shared,
        step_bytes=sum(s.step_bytes for s in every if s.spec.id in (moved - absent if reuse else moved)),
    )


def _joined(
    backbone: Backbone, steps: Sequence[Stage], trained: Collection[GroupId], wanted: Collection[str]
) -> list[Stage]:
    """``steps`` with joined stages: one stage replaces several that all train and that no other stage reads within."""
    for whole in backbone.joined:
        within = ancestors(backbone.specs, {whole.spec.id}) - ancestors(backbone.specs, set(whole.spec.inputs))
        inner, others = within - {whole.spec.id}, [s for s in steps if s.spec.id not in within]
        read = {i for s in others for i in s.spec.inputs} | set(wanted)
        if len(steps) - len(others) == len(within) and whole.spec.groups <= set(trained) and not inner & read:
            steps = [whole if s.spec.id == whole.spec.id else s for s in steps if s.spec.id not in inner]
    return list(steps)


def stages_for(backbone: Backbone, wanted: Collection[str], zeroed: frozenset[str]) -> tuple[Stage, ...]:
    """The stages that have to run for the outputs ``wanted``, without those that only a zeroed feature reads."""
    below = ancestors(backbone.specs, wanted, zeroed)
    return tuple(s for s in backbone.stages if s.spec.id in below)


@torch.no_grad()
def compute_sources(
    backbone: Backbone, plan: ForwardPlan, inputs: Mapping[str, Rows], num_windows: int, received: Values | None = None
) -> dict[str, Rows]:
    """Compute the sources of all steps: (n, ...) in chunks, or (1, ...) for absent modalities with reuse.

    ``received``: outputs of absent modalities' networks, where these are not here (``absent_rows``).
    """
    zeros = _zero_values(backbone, plan)
    present: dict[str, Rows] = {RAW + m: x for m, x in inputs.items()}
    absent = {RAW + m: zero_input(backbone, m) for m in backbone.shape.modalities if m not in inputs}
    fixed = {s: x for s, x in present.items() if s in plan.sources} | zeros
    once = [s for s in plan.before if plan.shared_absent and s.spec.id in plan.absent]
    if received:
        shared = {s.spec.id: received[s.spec.id] for s in once if s.spec.id in received}
    else:
        shared = run_stages(once, absent | zeros, plan, 1)
    computed: Values = {s: shared[s] for s in plan.sources if s in shared}
    each = [s for s in plan.before if s not in once]
    if not each:
        return fixed | computed
    chunk = backbone.chunk or CHUNK
    inputs_read = read_by(backbone.specs, {s.spec.id for s in each})
    for start in range(0, num_windows, chunk):
        stop = min(start + chunk, num_windows)
        values: Values = {s: x[start:stop] for s, x in present.items() if s in inputs_read} | shared
        run_stages(each, values, plan, stop - start)
        for s in (s for s in plan.sources if s not in shared and not s.startswith(RAW)):
            if s not in computed:
                computed[s] = values[s].new_empty(num_windows, *values[s].shape[1:])
            computed[s][start:stop] = values[s]
    return fixed | computed


@torch.no_grad()
def absent_rows(backbone: Backbone, missing: Missing) -> Values:
    """One row of the output of every stage that does not read all modalities, where all of them are absent.

    What depends on absent modalities alone has this output, whatever the others are.
    """
    below, everything = modalities_below(backbone.specs), frozenset(backbone.shape.modalities)
    stages = [s for s in backbone.stages if below[s.spec.id] < everything]
    values: Values = {RAW + m: zero_input(backbone, m) for m in everything}
    for stage in stages:
        output = stage.module(*(values[i] for i in stage.spec.inputs))
        is_zero = stage.spec.feature and missing == "zero_feature"
        values[stage.spec.id] = torch.zeros_like(output) if is_zero else output
    return {s.spec.id: values[s.spec.id] for s in stages}


def run_stages(stages: Collection[Stage], values: Values, plan: ForwardPlan, batch: int) -> Values:
    """Run ``stages`` in order on top of ``values``; one-row values are expanded to ``batch`` rows where needed."""
    for stage in stages:
        name = stage.spec.id
        if name in plan.zero_features and plan.shared_absent:
            values[name] = values[_zero_key(name)]
            continue
        inputs = [values[i] for i in stage.spec.inputs]
        if not stage.takes_single_rows and not (plan.shared_absent and name in plan.absent):
            inputs = [spread(x, batch) for x in inputs]
        output = stage.module(*inputs)
        values[name] = output * 0.0 if name in plan.zero_features else output
    return values


def spread(values: Tensor, batch: int) -> Tensor:
    """Expand ``values`` of one row (an absent modality's) to (batch, ...); others are returned as they are."""
    return values if len(values) == batch else values.expand(batch, *values.shape[1:])


def _zero_values(backbone: Backbone, plan: ForwardPlan) -> Values:
    """One row of zeros, in its true shape, for every feature that ``zero_feature`` replaces."""
    if not (plan.zero_features and plan.shared_absent):
        return {}
    stages = [s for s in backbone.stages if s.spec.id in plan.zero_features]
    sizes = zip(stages, output_shapes(backbone, stages), strict=True)
    return {_zero_key(stage.spec.id): torch.zeros(size, device=backbone.device) for stage, size in sizes}


def _zero_key(stage: str) -> str:
    return f"zero:{stage}"


def kept_bytes(plan: ForwardPlan, output_bytes: Mapping[str, int]) -> int:
    """Bytes per window of the outputs that are computed once and kept for the whole round."""
    return sum(output_bytes[s] for s in plan.sources if not s.startswith(RAW) and s not in plan.absent)


def output_bytes(backbone: Backbone) -> dict[str, int]:
    """Bytes per window of every stage's output."""
    ids = [s.spec.id for s in backbone.stages]
    return {i: FLOAT_BYTES * prod(size) for i, size in zip(ids, output_shapes(backbone, backbone.stages), strict=True)}


class BatchBuffers:
    """Gathers a mini-batch from every source into buffers that are allocated once per round."""

    def __init__(self, sources: Mapping[str, Rows], num_windows: int, batch_size: int) -> None:
        """``sources``: (n, ...), or one row for an absent modality, which every batch gets as it is."""
        held = {s: x for s, x in sources.items() if isinstance(x, Tensor)}
        self._lazy = {s: x for s, x in sources.items() if isinstance(x, LazyRows)}
        self._sources = {s: x for s, x in held.items() if len(x) == num_windows}
        self._fixed = {s: x for s, x in held.items() if len(x) != num_windows}
        size = min(batch_size, num_windows)
        self._buffers = {s: x.new_empty(size, *x.shape[1:]) for s, x in self._sources.items()}

    def take(self, index: Tensor) -> Values:
        """Gather the rows ``index`` (b,) of every source."""
        values = self._fixed | {s: x[index] for s, x in self._lazy.items()}
        for s, x in self._sources.items():
            values[s] = torch.index_select(x, 0, index, out=self._buffers[s][: len(index)])
        return values
