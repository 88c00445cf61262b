"""LoRA layers inside a stage, each with several experts and a router of its own that mixes them token by token.

Legend for shapes: d_in and d_out of a layer, r its rank, M experts.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import torch
from torch import Tensor, nn

from relief_ray.core.extra_modules import Experts
from relief_ray.core.groups import GroupId
from relief_ray.models.backbone import Backbone, GroupParameters, Stage, seeded

_Factors = tuple[nn.Parameter, nn.Parameter]


def routed_stages(backbone: Backbone, experts: Experts, seed: int) -> dict[str, RoutedStage]:
    """Route the LoRA layers of the groups ``experts.inside``; the result is by stage.

    Raises:
        ValueError: one of the groups is not the only one of a stage, or holds something else than LoRA factors.
    """
    stages = {j: s for s in backbone.stages for j in s.spec.groups if s.spec.groups == {j}}
    if alien := [j for j in experts.inside if j not in stages]:
        raise ValueError(f"{experts.id!r}: groups {alien} have no stages of their own to route the layers of")
    return {stages[j].spec.id: _routed_stage(backbone, experts, stages[j], j, seed) for j in experts.inside}


def _routed_stage(backbone: Backbone, experts: Experts, stage: Stage, group: GroupId, seed: int) -> RoutedStage:
    declared = next(g for g in backbone.declared if g.id == group)
    copies = range(2, experts.most + 1)
    factors = {id(p): [p, *(nn.Parameter(p.detach().clone()) for _ in copies)] for _, p, _ in declared.tensors}
    lora_layers = list(_lora_layers(stage.module))
    if {id(p) for _, a, b, _ in lora_layers for p in (a, b)} != set(factors):
        raise ValueError(f"{experts.id!r}: group {group!r} is more than the factors of PEFT's LoRA layers")
    names = {name: f"{experts.id}.{group}.{name}" for name, *_ in lora_layers}
    rows = {name: router_rows(a.shape[1], experts.most, seed, names[name]) for name, a, _, _ in lora_layers}
    layers = {
        name: (list(zip(factors[id(a)], factors[id(b)], strict=True)), rows[name], scaling)
        for name, a, b, scaling in lora_layers
    }
    groups = [
        replace(
            declared,
            id=experts.copy(e, group),
            role="expert",
            member=e,
            tensors=tuple((name, factors[id(p)][e - 1], kind) for name, p, kind in declared.tensors),
        )
        for e in copies
    ]
    routers = [
        replace(
            declared,
            id=experts.router(e, group),
            role="router",
            member=e,
            tensors=tuple((f"{name}.router", r[e - 1], "weight") for name, r in rows.items()),
        )
        for e in (1, *copies)
    ]
    return RoutedStage(stage=stage, layers=layers, groups=(*groups, *routers))


def _lora_layers(module: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Parameter, float]]:
    """PEFT's layers: name, A, B and scaling of their one adapter."""
    from peft.tuners.lora.layer import Linear as LoraLinear

    for name, layer in module.named_modules():
        if isinstance(layer, LoraLinear):
            a, b = (layer.get_parameter(f"lora_{x}.default.weight") for x in "AB")
            yield name, a, b, float(layer.scaling["default"])


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutedStage:
    """One stage whose LoRA layers have experts.

    Attributes:
        stage: the backbone's stage.
        layers: by module name, each expert's factors (A, B), the router's rows by expert, and the scaling s.
        groups: all new groups, those of the experts' factors first.
    """

    stage: Stage
    layers: dict[str, tuple[list[_Factors], list[nn.Parameter], float]]
    groups: tuple[GroupParameters, ...]

    def mixed(self, experts: Experts, number: int) -> Stage:
        """A copy of the stage with ``number`` experts in every LoRA layer; all other tensors are shared."""
        tensors = [*self.stage.module.parameters(), *self.stage.module.buffers()]
        module = copy.deepcopy(self.stage.module, {id(t): t for t in tensors})
        for name, (factors, rows, scaling) in self.layers.items():
            base = module.get_submodule(f"{name}.base_layer")
            module.set_submodule(name, RoutedLora(base, factors[:number], rows[:number], scaling))
        added = {g.id for g in self.groups if g.member is not None and g.member <= number}
        spec = replace(self.stage.spec, groups=self.stage.spec.groups | added)
        return replace(self.stage, spec=spec, module=module, pool=None)


class RoutedLora(nn.Module):
    """``W_0 x + s sum_e w_e(x) B_e A_e x`` with a router ``w`` on this layer's input."""

    def __init__(
        self, base: nn.Module, factors: Sequence[_Factors], rows: Sequence[nn.Parameter], scaling: float
    ) -> None:
        """``base`` is frozen; ``factors``: ``A_e`` (r, d_in) and ``B_e`` (d_out, r) of M experts, the own first."""
        super().__init__()
        self.base, self.router, self.scaling = base, Router(rows), scaling
        self.lora_A = nn.ParameterList([a for a, _ in factors])
        self.lora_B = nn.ParameterList([b for _, b in factors])

    @property
    def weight(self) -> Tensor:
        """The frozen weight, whose dtype the layers around read."""
        return self.base.get_parameter("weight")

    def forward(self, x: Tensor) -> Tensor:
        """(.., d_in) -> (.., d_out)."""
        out: Tensor = self.base(x)
        linear = nn.functional.linear
        for w, a, b in zip(self.router(x).split(1, -1), self.lora_A, self.lora_B, strict=True):
            out = out + self.scaling * w * linear(linear(x, a), b)
        return out


class Router(nn.Module):
    """Weights of M experts: the M most probable of ``2 M - 1`` slots, renormalised.

    The client's own expert has M slots and every other expert one, so that at least one slot of the own expert is
    always among the M. The choice of slots has no gradient, their weights have. Of equal slots the earlier is taken,
    which is the own expert's.
    """

    def __init__(self, rows: Sequence[nn.Parameter]) -> None:
        """``rows``: (1, D) of the own expert, then (2, D) per further expert: a slot of the own expert, then of it."""
        super().__init__()
        self.rows = nn.ParameterList(rows)

    def forward(self, *features: Tensor) -> Tensor:
        """(.., D_1) .. -> (.., M), summing to 1; the own expert first."""
        most = len(self.rows)
        slots = torch.softmax(nn.functional.linear(torch.cat(features, -1), torch.cat(list(self.rows))), -1)
        taken = torch.sort(slots, dim=-1, descending=True, stable=True).indices[..., :most]
        kept = slots * torch.zeros_like(slots).scatter(-1, taken, 1.0)
        kept = kept / kept.sum(-1, keepdim=True)
        return torch.cat([kept[..., :1] + kept[..., 1::2].sum(-1, keepdim=True), kept[..., 2::2]], -1)


def router_rows(width: int, most: int, seed: int, name: str) -> list[nn.Parameter]:
    """Initial rows of a router by expert, cut from one seeded linear layer without bias."""
    make = (seed + crc32(name.encode())) % 2**31
    weight = seeded(lambda: nn.Linear(width, 2 * most - 1, bias=False), make).get_parameter("weight").detach()
    return [nn.Parameter(part.clone()) for part in torch.split(weight, [1] + [2] * (most - 1))]
