"""A backbone for the server's own computations: differentiable in its parameters and in raw windows."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from relief_ray.groups import GroupId, Params
from relief_ray.models.backbone import Backbone
from relief_ray.protocols import Reading
from relief_ray.stages import RAW, Missing, ancestors


class BackboneNetwork:
    """A ``Network`` around a backbone with the run's missing mode."""

    def __init__(self, backbone: Backbone, missing: Missing) -> None:
        """Keeps ``backbone``, whose parameters ``load`` overwrites."""
        self._backbone, self._missing = backbone, missing
        self.channels: Mapping[str, int] = dict(backbone.shape.channels)
        self.window, self.num_classes = backbone.shape.window, backbone.shape.num_classes
        self.parameters: Mapping[GroupId, tuple[nn.Parameter, ...]] = backbone.parameters

    def load(self, params: Params) -> None:
        """Copies all groups' vectors into the parameters."""
        self._backbone.load(params)

    def read(self, windows: Mapping[str, Tensor], outputs: Collection[str | None]) -> dict[str | None, Reading]:
        """Each of ``outputs`` (None: the backbone's own logits) on raw windows (B, C, T), standardised."""
        names = {o: o or self._backbone.output for o in outputs}
        specs = self._backbone.specs
        values = self._inputs(windows)
        running = ancestors(specs, set(names.values()))
        for stage in self._backbone.stages:
            spec = stage.spec
            if spec.id in running:
                found = stage.module(*(values[i] for i in spec.inputs))
                off = self._missing == "zero_feature" and spec.feature and spec.modality not in windows
                values[spec.id] = found * 0.0 if off else found
        reads = {s.id: s.inputs for s in specs}
        return {
            o: Reading(logits=values[name], features=torch.cat([values[i] for i in reads[name]], 1))
            for o, name in names.items()
        }

    def _inputs(self, windows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Prepared inputs of all modalities, zero where one is absent."""
        batch = len(next(iter(windows.values())))
        raw = {m: windows[m] if m in windows else torch.zeros(batch, c, self.window) for m, c in self.channels.items()}
        return {RAW + m: self._backbone.prepare(m, x) for m, x in raw.items()}
