"""Parts of groups on a client: what it starts from, and what must not move."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from relief_ray.federated import ClientContext
from relief_ray.groups import GroupId, GroupLayout, Part, Selection
from relief_ray.messages import Assignment
from relief_ray.models.backbone import Backbone


def load_model(theta: Mapping[GroupId, Tensor], context: ClientContext, task: Assignment) -> None:
    """Copies the received model and lays the client's personal parts over it."""
    for j, value in context.start.items():
        theta[j].copy_(value)
    drop_ranks(theta, context.layout, task.down)
    overlay(theta, context, task.keep)


def scale_adapters(backbone: Backbone, factor: float) -> None:
    """Lets every LoRA layer, PEFT's or our own, count ``factor`` times its ``s = alpha / R``."""
    for set_scale in backbone.adapter_scales:
        set_scale("default", factor)


def drop_ranks(theta: Mapping[GroupId, Tensor], layout: GroupLayout, down: Selection) -> None:
    """LoRA that came down at a lower rank has no ranks beyond it: both its factors are zero there."""
    for j, part in down.items():
        for spec in layout[j].tensors if part.rank is not None else ():
            if spec.kind in ("lora_a", "lora_b"):
                axis, number = part.lead(spec)
                whole = theta[j][spec.offset : spec.offset + spec.numel].view(spec.shape)
                whole.narrow(axis, number, spec.shape[axis] - number).zero_()


def overlay(theta: Mapping[GroupId, Tensor], context: ClientContext, keep: Mapping[GroupId, Part]) -> None:
    """Restores the parts that stay with the client, where it has any yet."""
    for j, part in keep.items():
        if j in context.state:
            theta[j][context.layout.indices(j, part)] = context.state[j].to(theta[j].device)


def mask_parts(backbone: Backbone, task: Assignment) -> None:
    """Zeroes gradients outside the assigned ranks and rows: with fresh moments Adam then never moves those entries."""
    for j, part in task.train.items():
        if not part.cuts:
            continue
        for spec, p in zip(backbone.layout[j].tensors, backbone.parameters[j], strict=True):
            if p.grad is not None:
                axis, number = part.lead(spec)
                p.grad.narrow(axis, number, spec.shape[axis] - number).zero_()
