"""Other ways through the same backbone: stages that read something else, with the same parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from relief_ray.groups import Kind, Role
from relief_ray.models.backbone import Backbone, GroupParameters, Stage
from relief_ray.stages import RAW, ancestors


def features_below(backbone: Backbone, stage: str) -> tuple[Stage, ...]:
    """The stages that give the features ``h_m`` on the way to ``stage``, in order."""
    below = ancestors(backbone.specs, {stage})
    return tuple(s for s in backbone.stages if s.spec.feature and s.spec.id in below)


def rerouted(backbone: Backbone, instead: Mapping[str, str], path: str, output: str) -> list[Stage]:
    """Twins of all stages between the keys of ``instead`` and the logits; they read its values and share parameters.

    A twin is called ``<stage>@<path>``, the last one ``output``; a stage that was on no way to the logits has none.
    """
    on_path = ancestors(backbone.specs, {backbone.output})
    named, twins = dict(instead), []
    for stage in backbone.stages:
        spec = stage.spec
        if spec.id in instead or spec.id not in on_path or not named.keys() & set(spec.inputs):
            continue
        named[spec.id] = output if spec.id == backbone.output else f"{spec.id}@{path}"
        inputs = tuple(named.get(i, i) for i in spec.inputs)
        twins.append(replace(stage, spec=replace(spec, id=named[spec.id], inputs=inputs, feature=False)))
    return twins


@torch.no_grad()
def shapes(backbone: Backbone, stages: Sequence[Stage]) -> list[tuple[int, ...]]:
    """What ``stages`` give for one zero window; stages that none of them reads are not run."""
    shape, device = backbone.shape, backbone.device
    values = {RAW + m: backbone.prepare(m, torch.zeros(1, c, shape.window, device=device)) for m, c in shape.channels}
    wanted = ancestors(backbone.specs, {s.spec.id for s in stages})
    for stage in (s for s in backbone.stages if s.spec.id in wanted):
        values[stage.spec.id] = stage.module(*(values[i] for i in stage.spec.inputs))
    return [tuple(values[s.spec.id].shape) for s in stages]


def widths(backbone: Backbone, stages: Sequence[Stage]) -> list[int]:
    """``D_m`` of features (B, D_m).

    Raises:
        ValueError: one of them gives something else.
    """
    found = shapes(backbone, stages)
    if bad := [(s.spec.id, size) for s, size in zip(stages, found, strict=True) if len(size) != 2]:
        raise ValueError(f"features {bad} are not (B, D); a stage marked `feature` must give one vector a window")
    return [size[1] for size in found]


def group_of(stage: Stage, role: Role, member: int | None = None) -> GroupParameters:
    """All parameters of a stage's module as one group of the same name."""
    kinds: Mapping[bool, Kind] = {False: "weight", True: "bias"}
    tensors = tuple((name, p, kinds[name.endswith("bias")]) for name, p in stage.module.named_parameters())
    return GroupParameters(id=stage.spec.id, role=role, modality=None, layer=None, tensors=tensors, member=member)
