"""A backbone with what a method adds to it; what was there keeps its values, order and meaning."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import torch
from torch import Tensor, nn

from relief_ray.extra_modules import Addition, Classifier, Connector, Experts
from relief_ray.groups import GroupId, Kind
from relief_ray.models.backbone import Backbone, GroupParameters, Stage, seeded
from relief_ray.models.extra.connector import with_connector
from relief_ray.models.extra.experts import with_experts
from relief_ray.models.extra.rewire import shapes
from relief_ray.stages import StageSpec


class SideBySide(nn.Linear):
    """``Linear([f_1 | .. | f_k])``: a classifier on pooled features."""

    def forward(self, *features_BD: Tensor) -> Tensor:
        """Features (B, D_1) .. (B, D_k) -> (B, K)."""
        return super().forward(torch.cat(features_BD, 1))


def extend(backbone: Backbone, additions: Sequence[Addition], seed: int) -> Backbone:
    """``backbone`` with ``additions`` in their order; each is seeded by ``seed`` and its own id.

    Raises:
        ValueError: an addition names a group that no stage owns, a stage that cannot be pooled, or groups that are no
            layer.
    """
    for addition in additions:
        if isinstance(addition, Experts):
            backbone = with_experts(backbone, addition, seed)
        elif isinstance(addition, Connector):
            backbone = with_connector(backbone, addition, seed)
        else:
            backbone = _with_classifier(backbone, addition, seed)
    return backbone


def _with_classifier(backbone: Backbone, addition: Classifier, seed: int) -> Backbone:
    sources = [_pooled(backbone, group, addition.id) for group in addition.after]
    pools = [s for s in sources if s not in backbone.stages]
    inputs = tuple(s.spec.id for s in sources)
    found = shapes(backbone.plus(pools, []), sources)
    if bad := [(s.spec.id, size) for s, size in zip(sources, found, strict=True) if len(size) != 2]:
        name, size = bad[0]
        raise ValueError(
            f"stage {name!r} gives {size} a window batch, a classifier needs (B, D); declare the stage's `pool`"
        )
    width = sum(size[1] for size in found)
    linear = seeded(lambda: SideBySide(width, backbone.shape.num_classes), (seed + crc32(addition.id.encode())) % 2**31)
    kinds: tuple[tuple[str, Kind], ...] = (("weight", "weight"), ("bias", "bias"))
    spec = StageSpec(id=addition.id, inputs=inputs, groups=frozenset([addition.id]), modality=addition.modality)
    group = GroupParameters(
        id=addition.id,
        role=addition.role,
        modality=addition.modality,
        layer=addition.layer,
        tensors=tuple((name, linear.get_parameter(name), kind) for name, kind in kinds),
    )
    return backbone.plus([*pools, Stage(spec=spec, module=linear)], [group])


def _pooled(backbone: Backbone, group: GroupId, reader: str) -> Stage:
    """The owner of ``group`` where it gives features (B, D) itself, else a new stage that pools what it gives."""
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
