"""Adapters between features and fusion: a client's own, one per task, and the router that mixes them (Pilot).

Legend for shapes: B batch, D features of all modalities side by side, T tasks, W bottleneck.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal
from zlib import crc32

import torch
from torch import Tensor, nn

from relief_ray.core.extra_modules import Connector
from relief_ray.core.groups import GroupId
from relief_ray.core.stages import StageSpec
from relief_ray.models.backbone import Backbone, GroupParameters, Stage, seeded
from relief_ray.models.extra.rewire import feature_stages, feature_widths, module_group, rewired_stages


def with_connector(backbone: Backbone, connector: Connector, seed: int) -> Backbone:
    """Return ``backbone`` with the adapters and two further paths to the logits, ``first`` and ``mixed``."""
    features = feature_stages(backbone, backbone.output)
    sizes, sources = feature_widths(backbone, features), tuple(s.spec.id for s in features)
    width, tasks = sum(sizes), range(1, connector.num_tasks + 1)

    def stage(name: GroupId, build: Callable[[], nn.Module]) -> Stage:
        module = seeded(build, (seed + crc32(name.encode())) % 2**31)
        return Stage(spec=StageSpec(id=name, inputs=sources, groups=frozenset([name])), module=module)

    def adapter(name: GroupId) -> Stage:
        return stage(name, lambda: _Adapter(width, connector.bottleneck))

    task = [adapter(connector.task(i)) for i in tasks]
    cross = [adapter(connector.cross(i)) for i in tasks[1:]]
    personal, gate = adapter(connector.own), stage(connector.router, lambda: _Gate(width, connector.num_tasks))
    mix = StageSpec(id=f"{connector.id}.mix", inputs=(gate.spec.id, *(s.spec.id for s in (*task, *cross))))
    in_mix = (personal.spec.id,) if connector.own_in_mix else ()
    groups: list[GroupParameters] = [
        *(module_group(s, "connector", member) for member, s in enumerate(task, 1)),
        *(module_group(s, "connector", member) for member, s in enumerate(cross, 2)),
        module_group(personal, "connector"),
        module_group(gate, "router"),
    ]
    stages = [
        *task,
        *cross,
        personal,
        gate,
        Stage(spec=mix, module=_Mixed()),
        *_path(backbone, connector, "first", sources, sizes, (task[0].spec.id, personal.spec.id)),
        *_path(backbone, connector, "mixed", sources, sizes, (*in_mix, mix.id)),
    ]
    return backbone.plus(stages, groups)


def _path(
    backbone: Backbone,
    connector: Connector,
    path: Literal["first", "mixed"],
    sources: tuple[str, ...],
    sizes: list[int],
    added: tuple[str, ...],
) -> list[Stage]:
    """Stages of one path: ``z``, its columns by modality, and copies of all stages that read the features."""
    joined = StageSpec(id=f"{connector.id}.z@{path}", inputs=(*sources, *added))
    stages, replaced, start = [Stage(spec=joined, module=_Residual(len(sources)))], {}, 0
    for source, size in zip(sources, sizes, strict=True):
        replaced[source] = f"{source}@{connector.id}.{path}"
        spec = StageSpec(id=replaced[source], inputs=(joined.id,))
        stages.append(Stage(spec=spec, module=_Columns(start, start + size)))
        start += size
    return [*stages, *rewired_stages(backbone, replaced, f"{connector.id}.{path}", connector.output(path))]


class _Adapter(nn.Module):
    """``up(GELU(down(h)))``; zero before training, since ``up`` is."""

    def __init__(self, width: int, bottleneck: int) -> None:
        """D -> W -> D."""
        super().__init__()
        self.down, self.up = nn.Linear(width, bottleneck), nn.Linear(bottleneck, width)
        for p in self.up.parameters():
            nn.init.zeros_(p)

    def forward(self, *features_BD: Tensor) -> Tensor:
        """(B, D_1) .. -> (B, D)."""
        out: Tensor = self.up(nn.functional.gelu(self.down(torch.cat(features_BD, 1))))
        return out


class _Gate(nn.Linear):
    """``G h``, without bias."""

    def __init__(self, width: int, num_tasks: int) -> None:
        """D -> T."""
        super().__init__(width, num_tasks, bias=False)

    def forward(self, *features_BD: Tensor) -> Tensor:
        """(B, D_1) .. -> (B, T)."""
        return super().forward(torch.cat(features_BD, 1))


class _Residual(nn.Module):
    """``h + sum of adapters``."""

    def __init__(self, num_features: int) -> None:
        """``num_features``: inputs that are features; the adapters' outputs follow them."""
        super().__init__()
        self.num_features = num_features

    def forward(self, *parts_BD: Tensor) -> Tensor:
        """Features (B, D_1) .., adapters (B, D) .. -> (B, D)."""
        total = torch.cat(parts_BD[: self.num_features], 1)
        for part in parts_BD[self.num_features :]:
            total = total + part
        return total


class _Mixed(nn.Module):
    """``sum_i P_i h_i`` with ``h_1 = task_1`` and ``h_i = task_i + cross_i``."""

    def forward(self, logits_BT: Tensor, *adapters_BD: Tensor) -> Tensor:
        """Router (B, T), T task adapters, T - 1 cross-task ones (B, D) -> (B, D)."""
        num_tasks = logits_BT.shape[1]
        weights_BT = torch.softmax(logits_BT, 1)
        total = weights_BT[:, :1] * adapters_BD[0]
        for i in range(1, num_tasks):
            total = total + weights_BT[:, i : i + 1] * (adapters_BD[i] + adapters_BD[num_tasks - 1 + i])
        return total


class _Columns(nn.Module):
    """One modality's columns of ``z``."""

    def __init__(self, start: int, stop: int) -> None:
        """Columns ``start`` to ``stop``."""
        super().__init__()
        self.start, self.stop = start, stop

    def forward(self, z_BD: Tensor) -> Tensor:
        """(B, D) -> (B, D_m)."""
        return z_BD[:, self.start : self.stop]
