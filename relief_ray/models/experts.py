"""A layer in several copies, mixed per window by a router that always keeps the client's own (FedLEASE).

Legend for shapes: B batch, D features of all modalities side by side, M experts, S = 2 M - 1 slots.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

import torch
from torch import Tensor, nn

from relief_ray.additions import Experts
from relief_ray.models.backbone import Backbone, GroupParameters, Stage, seeded
from relief_ray.models.reroute import features_below, rerouted, widths
from relief_ray.stages import StageSpec, ancestors


class Router(nn.Module):
    """Weights of ``M`` experts: the ``M`` most probable of ``2 M - 1`` slots, renormalised; the own expert has M slots.

    The others have one each, so that at least one own slot is always among them. Which slots are taken has no
    gradient, their weights have; of equal slots the earlier is taken, so the own one.
    """

    def __init__(self, rows: Sequence[nn.Parameter]) -> None:
        """``rows``: (1, D) of the own expert, then (2, D) with each further one: an own slot, then its own."""
        super().__init__()
        self.rows = nn.ParameterList(rows)

    def forward(self, *features_BD: Tensor) -> Tensor:
        """(B, D_1) .. -> (B, M), rows sum to 1."""
        most = len(self.rows)
        slots_BS = torch.softmax(nn.functional.linear(torch.cat(features_BD, 1), torch.cat(list(self.rows))), 1)
        taken = torch.sort(slots_BS, dim=1, descending=True, stable=True).indices[:, :most]
        kept_BS = slots_BS * torch.zeros_like(slots_BS).scatter(1, taken, 1.0)
        kept_BS = kept_BS / kept_BS.sum(1, keepdim=True)
        foreign_BE = kept_BS[:, 2::2]
        return torch.cat([(kept_BS[:, :1] + kept_BS[:, 1::2].sum(1, keepdim=True)), foreign_BE], 1)


class Mix(nn.Module):
    """``sum_e w_e y_e``."""

    def forward(self, weights_BM: Tensor, *outputs: Tensor) -> Tensor:
        """(B, M), then M tensors (B, ..) -> (B, ..)."""
        total = torch.zeros_like(outputs[0])
        for w_B, output in zip(weights_BM.unbind(1), outputs, strict=True):
            total = total + w_B.view(-1, *[1] * (output.ndim - 1)) * output
        return total


def with_experts(backbone: Backbone, experts: Experts, seed: int) -> Backbone:
    """``backbone`` with copies 2 .. ``most`` of the layer, and one way to the logits per number of experts.

    Raises:
        ValueError: the groups are no layer with a single end.
    """
    layer = _layer(backbone, experts)
    last = layer[-1].spec.id
    stages: list[Stage] = []
    groups: list[GroupParameters] = []
    for expert in range(2, experts.most + 1):
        for stage, own in _copies(backbone, experts, layer, expert):
            stages.append(stage)
            groups += own
    rows = _rows(backbone, experts, last, seed)
    sources = tuple(s.spec.id for s in features_below(backbone, last))
    for number in range(2, experts.most + 1):
        stages += _mixture(backbone, experts, last, rows[:number], sources)
    routers = [
        GroupParameters(
            id=experts.router(e), role="router", modality=None, layer=None, tensors=(("weight", p, "weight"),), member=e
        )
        for e, p in enumerate(rows, 1)
    ]
    return backbone.plus(stages, [*groups, *routers])


def _layer(backbone: Backbone, experts: Experts) -> list[Stage]:
    layer = [s for s in backbone.stages if s.spec.groups & set(experts.of)]
    owned = {j for s in layer for j in s.spec.groups}
    if not layer or owned != set(experts.of):
        raise ValueError(f"{experts.id!r}: stages of groups {sorted(experts.of)} own {sorted(owned)}; they must agree")
    below = ancestors(backbone.specs, {layer[-1].spec.id})
    if loose := [s.spec.id for s in layer if s.spec.id not in below]:
        raise ValueError(f"{experts.id!r}: {loose} do not lead to {layer[-1].spec.id!r}; a layer has one end")
    return layer


def _copies(
    backbone: Backbone, experts: Experts, layer: Sequence[Stage], expert: int
) -> list[tuple[Stage, list[GroupParameters]]]:
    """The layer's stages with parameters of their own; what is frozen in them is shared."""
    names = {s.spec.id: f"{experts.id}.{expert}.{s.spec.id}" for s in layer}
    declared = {g.id: g for g in backbone.declared}
    trained = {id(p) for j in experts.of for p in backbone.parameters[j]}
    copies = []
    for stage in layer:
        tensors = [*stage.module.parameters(), *stage.module.buffers()]
        twin = copy.deepcopy(stage.module, {id(t): t for t in tensors if id(t) not in trained})
        parameter = {id(p): q for p, q in zip(stage.module.parameters(), twin.parameters(), strict=True)}
        own = [
            replace(
                declared[j],
                id=experts.copy(expert, j),
                role="expert",
                member=expert,
                tensors=tuple((name, parameter[id(p)], kind) for name, p, kind in declared[j].tensors),
            )
            for j in experts.of
            if j in stage.spec.groups
        ]
        spec = replace(
            stage.spec,
            id=names[stage.spec.id],
            inputs=tuple(names.get(i, i) for i in stage.spec.inputs),
            groups=frozenset(g.id for g in own),
        )
        copies.append((replace(stage, spec=spec, module=twin), own))
    return copies


def _rows(backbone: Backbone, experts: Experts, last: str, seed: int) -> list[nn.Parameter]:
    """The router's rows by expert, of one seeded linear layer without bias."""
    width, num_slots = sum(widths(backbone, features_below(backbone, last))), 2 * experts.most - 1
    make = (seed + crc32(experts.id.encode())) % 2**31
    weight_SD = seeded(lambda: nn.Linear(width, num_slots, bias=False), make).get_parameter("weight").detach()
    sizes = [1] + [2] * (experts.most - 1)
    return [nn.Parameter(part.clone()) for part in torch.split(weight_SD, sizes)]


def _mixture(
    backbone: Backbone, experts: Experts, last: str, rows: Sequence[nn.Parameter], sources: tuple[str, ...]
) -> list[Stage]:
    number = len(rows)
    output = experts.output(number)
    assert output is not None
    weights = StageSpec(
        id=experts.weights(number),
        inputs=sources,
        groups=frozenset(experts.router(e) for e in range(1, number + 1)),
    )
    ends = (last, *(f"{experts.id}.{e}.{last}" for e in range(2, number + 1)))
    mixed = output if last == backbone.output else f"{experts.id}.mix@{number}"
    return [
        Stage(spec=weights, module=Router(rows)),
        Stage(spec=StageSpec(id=mixed, inputs=(weights.id, *ends)), module=Mix()),
        *rerouted(backbone, {last: mixed}, f"{experts.id}.{number}", output),
    ]
