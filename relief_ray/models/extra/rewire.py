"""Rewires a backbone: further paths to the logits, made of copied stages that share parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from relief_ray.core.groups import Kind, Role
from relief_ray.core.stages import ancestors
from relief_ray.models.backbone import Backbone, GroupParameters, Stage, output_shapes


def feature_stages(backbone: Backbone, stage: str) -> tuple[Stage, ...]:
    """The stages whose outputs are the features ``h_m`` that ``stage`` depends on, in order."""
    below = ancestors(backbone.specs, {stage})
    return tuple(s for s in backbone.stages if s.spec.feature and s.spec.id in below)


def rewired_stages(backbone: Backbone, replaced: Mapping[str, str], path: str, output: str) -> list[Stage]:
    """Copies of all stages between the keys of ``replaced`` and the logits; they read its values instead.

    A copy shares its stage's parameters and is called ``<stage>@<path>``, the last one ``output``. Stages that the
    logits do not depend on are not copied.
    """
    on_path = ancestors(backbone.specs, {backbone.output})
    names, copies = dict(replaced), []
    for stage in backbone.stages:
        spec = stage.spec
        if spec.id in replaced or spec.id not in on_path or not names.keys() & set(spec.inputs):
            continue
        names[spec.id] = output if spec.id == backbone.output else f"{spec.id}@{path}"
        inputs = tuple(names.get(i, i) for i in spec.inputs)
        copies.append(replace(stage, spec=replace(spec, id=names[spec.id], inputs=inputs, feature=False)))
    return copies


def feature_widths(backbone: Backbone, stages: Sequence[Stage]) -> list[int]:
    """``D_m`` of stages whose outputs are features (B, D_m).

    Raises:
        ValueError: an output has another shape.
    """
    sizes = output_shapes(backbone, stages)
    if bad := [(s.spec.id, size) for s, size in zip(stages, sizes, strict=True) if len(size) != 2]:
        raise ValueError(f"features {bad} are not (B, D); a stage marked `feature` must give one vector a window")
    return [size[1] for size in sizes]


def module_group(stage: Stage, role: Role, member: int | None = None) -> GroupParameters:
    """Declare all parameters of a stage's module as one group with the stage's name."""
    kinds: Mapping[bool, Kind] = {False: "weight", True: "bias"}
    tensors = tuple((name, p, kinds[name.endswith("bias")]) for name, p in stage.module.named_parameters())
    return GroupParameters(id=stage.spec.id, role=role, modality=None, layer=None, tensors=tensors, member=member)
