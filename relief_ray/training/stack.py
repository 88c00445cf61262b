"""Several clients' models side by side: every tensor has a first axis over clients, and one pass is a pass of each.

A batch of one client is too little work for a GPU, which then waits for the next kernel to be launched. Batched, the
matrix products of all clients are one, with the numbers that each would have on its own (up to summation order).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from relief_ray.groups import GroupId
from relief_ray.models.backbone import Backbone, Stage
from relief_ray.training.reuse import Values

# A tensor of the model: its group and its place there.
Key = tuple[GroupId, int]
Leaves = Mapping[Key, Tensor]


class Stack:
    """``size`` models of one backbone in one buffer ``flat`` (size, numel): client i's is row i."""

    def __init__(self, backbone: Backbone, size: int) -> None:
        """All zero."""
        self.size = size
        self.flat = torch.zeros(size, backbone.layout.numel, device=backbone.device)
        self._tensors = {
            (group.id, i): columns[:, t.offset : t.offset + t.numel].view(size, *t.shape)
            for group in backbone.layout
            for columns in [self.flat[:, backbone.layout.span(group.id)]]
            for i, t in enumerate(group.tensors)
        }
        # Contiguous views: what an optimizer moves.
        self.rows = [{key: tensor[i] for key, tensor in self._tensors.items()} for i in range(size)]
        keys = self._keys = {
            id(p): (j, i) for j, parameters in backbone.parameters.items() for i, p in enumerate(parameters)
        }
        self._own = {
            stage.spec.id: {name: keys[id(p)] for name, p in stage.module.named_parameters() if id(p) in keys}
            for stage in backbone.stages
        }

    def key(self, parameter: Tensor) -> Key:
        """Where a parameter of the backbone belongs."""
        return self._keys[id(parameter)]

    def leaves(self, clients: slice, trained: Collection[Key]) -> Leaves:
        """The tensors (k, ...) of ``clients``, views that gather gradients of their own where they are ``trained``."""
        return {key: x[clients].detach().requires_grad_(key in trained) for key, x in self._tensors.items()}

    def run(self, stages: Collection[Stage], values: Values, leaves: Leaves, off: Mapping[str, Tensor]) -> Values:
        """Runs ``stages`` on top of ``values`` (k, b, ...); ``off``: features that are 0 for the clients of a 0."""
        for stage in stages:
            name = stage.spec.id
            own = {parameter: leaves[key] for parameter, key in self._own[name].items()}
            found = _each(stage, own, [values[i] for i in stage.spec.inputs])
            values[name] = found * off[name].view(-1, *[1] * (found.ndim - 1)) if name in off else found
        return values


def _each(stage: Stage, own: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """``module_i(inputs_i)`` of every client i at once."""

    def one(parameters: dict[str, Tensor], given: tuple[Tensor, ...]) -> Tensor:
        output: Tensor = functional_call(stage.module, parameters, given)
        return output

    output: Tensor = torch.vmap(one)(dict(own), tuple(inputs))
    return output
