"""FLOPs of a backbone, counted on its real modules with torch's counter.

A multiply-add counts as two. Stages whose operations the counter does not know (a bias, a sum) count one FLOP per
output element and input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from relief_ray.core.stages import RAW, CostTable, StageFlops
from relief_ray.models.backbone import Backbone, PlainMode, Stage
from relief_ray.models.checks import check_windows, run_checked
from relief_ray.models.stage import noise_windows


def count_costs(backbone: Backbone) -> CostTable:
    """Forward, input-gradient and weight-gradient FLOPs per window of every stage.

    Raises:
        UserError: a stage draws random numbers, changes its buffers or its inputs, or windows are mixed.
    """
    values = _two_windows(backbone)
    flops: dict[str, StageFlops] = {}
    for stage in backbone.stages:
        inputs = [values[i] for i in stage.spec.inputs]
        values[stage.spec.id] = run_checked(stage, inputs)
        flops[stage.spec.id] = _stage_flops(backbone, stage, [x[:1] for x in inputs])
    sizes = {g.id: g.numel for g in backbone.layout}
    return CostTable(stages=backbone.specs, flops=flops, num_values=sizes, output=backbone.output)


@torch.no_grad()
def _two_windows(backbone: Backbone) -> dict[str, Tensor]:
    """Prepared inputs of two windows of noise: with zeros, a stage that mixes windows would go unnoticed."""
    prepared = {}
    for m, raw in noise_windows(backbone.shape, 2).items():
        prepare = partial(backbone.prepare, m)
        prepared[RAW + m] = prepare(raw)
        check_windows(f"backbone: preparing modality {m!r}", prepare, [raw], prepared[RAW + m])
    return prepared


def _stage_flops(backbone: Backbone, stage: Stage, inputs: list[Tensor]) -> StageFlops:
    in_groups = {id(p) for ps in backbone.parameters.values() for p in ps}
    parameters = [p for p in stage.module.parameters() if id(p) in in_groups]
    flags = [p.requires_grad for p in parameters]
    with torch.no_grad():
        forward = forward_flops(stage.module, inputs)
        output: Tensor = stage.module(*inputs)
    elements = float(output.numel())
    floor = elements * len(inputs)
    gradient = _backward(stage.module, inputs, (), True)
    weight, inner = {}, {}
    for j in sorted(stage.spec.groups):
        tensors = backbone.parameters[j]
        weight[j] = _backward(stage.module, inputs, tensors, True) - gradient
        inner[j] = max(0.0, _backward(stage.module, inputs, tensors, False) - weight[j])
    for p, flag in zip(parameters, flags, strict=True):
        p.requires_grad_(flag)
    counted = {j: w if w else elements for j, w in weight.items()}
    return StageFlops(
        forward_flops=forward or floor,
        input_grad_flops=gradient or floor,
        weight_grad_flops=counted,
        inner_grad_flops={j: flops for j, flops in inner.items() if flops},
        frozen_forward_flops=forward_flops(stage.frozen, inputs) if stage.frozen else 0.0,
        frozen_grad_flops=_backward(stage.frozen, inputs, (), True) if stage.frozen else 0.0,
        output_bytes=elements * output.element_size(),
    )


@torch.no_grad()
def forward_flops(module: nn.Module, inputs: list[Tensor]) -> float:
    """FLOPs of a module's forward pass by torch's formulas; operations without one count nothing."""
    return _count(lambda: module(*inputs))


def _backward(module: nn.Module, inputs: list[Tensor], trained: tuple[Tensor, ...], to_inputs: bool) -> float:
    """Backward FLOPs where only ``trained`` tensors, and with ``to_inputs`` the inputs, need a gradient."""
    for p in module.parameters():
        p.requires_grad_(any(p is t for t in trained))
    leaves = [x.clone().requires_grad_(to_inputs) for x in inputs]
    output: Tensor = module(*leaves)
    if not output.requires_grad:
        return 0.0
    # A sum, whose gradient costs nothing: torch imports an algebra system to compare shapes with a given gradient's.
    wanted, total = [*trained, *(leaves if to_inputs else ())], output.sum()
    # Not `backward`: it would leave gradients on the backbone's parameters.
    return _count(lambda: torch.autograd.grad(total, wanted, allow_unused=True))


class _Counter(PlainMode):
    """Adds up torch's own formulas, operation by operation.

    ``FlopCounterMode`` does the same, but its first operation imports torch's compiler, which takes over a second.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self._formulas = FlopCounterMode(display=False).flop_registry

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        out, formula = func(*args, **(kwargs or {})), self._formulas.get(func._overloadpacket)
        if formula is not None:
            self.flops += int(formula(*args, **(kwargs or {}), out_val=out))
        return out


def _count(run: Callable[[], object]) -> float:
    with _Counter() as counter:
        run()
    return float(counter.flops)
