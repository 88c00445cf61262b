"""Builds a backbone with a method's extra modules; existing groups keep their values, order and meaning."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import torch
from torch import Tensor, nn

from relief_ray.core.extra_modules import Classifier, Connector, Experts, ExtraModule
from relief_ray.core.groups import GroupId, Kind
from relief_ray.core.stages import StageSpec
from relief_ray.models.backbone import Backbone, GroupParameters, Stage, output_shapes, seeded
from relief_ray.models.extra.connector import with_connector
from relief_ray.models.extra.experts import with_experts


def with_extra_modules(backbone: Backbone, extra_modules: Sequence[ExtraModule], seed: int) -> Backbone:
    """Return ``backbone`` with ``extra_modules`` added in their order; each is seeded by ``seed`` and its own id.

    Raises:
        ValueError: a module names a group that no stage owns, a stage that cannot be pooled, or groups that are no
            layer.
    """
    for extra in extra_modules:
        if isinstance(extra, Experts):
            backbone = with_experts(backbone, extra, seed)
        elif isinstance(extra, Connector):
            backbone = with_connector(backbone, extra, seed)
        else:
            backbone = _with_classifier(backbone, extra, seed)
    return backbone


def _with_classifier(backbone: Backbone, classifier: Classifier, seed: int) -> Backbone:
    sources = [_pooled(backbone, group, classifier.id) for group in classifier.after]
    pools = [s for s in sources if s not in backbone.stages]
    inputs = tuple(s.spec.id for s in sources)
    sizes = output_shapes(backbone.plus(pools, []), sources)
    if bad := [(s.spec.id, size) for s, size in zip(sources, sizes, strict=True) if len(size) != 2]:
        name, size = bad[0]
        raise ValueError(
            f"stage {name!r} gives {size} a window batch, a classifier needs (B, D); declare the stage's `pool`"
        )
    width = sum(size[1] for size in sizes)
    linear = seeded(
        lambda: _ConcatLinear(width, backbone.shape.num_classes), (seed + crc32(classifier.id.encode())) % 2**31
    )
    kinds: tuple[tuple[str, Kind], ...] = (("weight", "weight"), ("bias", "bias"))
    spec = StageSpec(id=classifier.id, inputs=inputs, groups=frozenset([classifier.id]), modality=classifier.modality)
    group = GroupParameters(
        id=classifier.id,
        role=classifier.role,
        modality=classifier.modality,
        layer=classifier.layer,
        tensors=tuple((name, linear.get_parameter(name), kind) for name, kind in kinds),
    )
    return backbone.plus([*pools, Stage(spec=spec, module=linear)], [group])


def _pooled(backbone: Backbone, group: GroupId, reader: str) -> Stage:
    """The stage that owns ``group`` if its output is (B, D), else a new stage that pools its output."""
    owner = next((s for s in backbone.stages if group in s.spec.groups), None)
    if owner is None:
        owned = sorted(j for s in backbone.stages for j in s.spec.groups)
        raise ValueError(f"{reader!r} reads group {group!r}, which no stage owns; there are {owned}")
    if owner.pool is None:
        return owner
    spec = StageSpec(
        id=f"{reader}<{owner.spec.id}", inputs=(owner.spec.id,), modality=owner.spec.modality, feature=True
    )
    return Stage(spec=spec, module=owner.pool)


class _ConcatLinear(nn.Linear):
    """``Linear([f_1 | .. | f_k])``: a classifier on pooled features."""

    def forward(self, *features_BD: Tensor) -> Tensor:
        """Features (B, D_1) .. (B, D_k) -> (B, K)."""
        return super().forward(torch.cat(features_BD, 1))
