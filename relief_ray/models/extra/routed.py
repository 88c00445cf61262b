"""LoRA layers inside a stage, each in several copies with a router of its own that mixes them token by token.

Legend for shapes: d_in and d_out of a layer, r its rank, M experts.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import torch
from torch import Tensor, nn

from relief_ray.extra_modules import Experts
from relief_ray.groups import GroupId
from relief_ray.models.backbone import Backbone, GroupParameters, Stage, seeded

Factors = tuple[nn.Parameter, nn.Parameter]


class Router(nn.Module):
    """Weights of ``M`` experts: the ``M`` most probable of ``2 M - 1`` slots, renormalised; the own expert has M slots.

    The others have one each, so that at least one own slot is always among them. Which slots are taken has no
    gradient, their weights have; of equal slots the earlier is taken, so the own one.
    """

    def __init__(self, rows: Sequence[nn.Parameter]) -> None:
        """``rows``: (1, D) of the own expert, then (2, D) with each further one: an own slot, then its own."""
        super().__init__()
        self.rows = nn.ParameterList(rows)

    def forward(self, *features: Tensor) -> Tensor:
        """(.., D_1) .. -> (.., M), which sum to 1."""
        most = len(self.rows)
        slots = torch.softmax(nn.functional.linear(torch.cat(features, -1), torch.cat(list(self.rows))), -1)
        taken = torch.sort(slots, dim=-1, descending=True, stable=True).indices[..., :most]
        kept = slots * torch.zeros_like(slots).scatter(-1, taken, 1.0)
        kept = kept / kept.sum(-1, keepdim=True)
        return torch.cat([kept[..., :1] + kept[..., 1::2].sum(-1, keepdim=True), kept[..., 2::2]], -1)


def router_rows(width: int, most: int, seed: int, name: str) -> list[nn.Parameter]:
    """A router's rows by expert, of one seeded linear layer without bias."""
    make = (seed + crc32(name.encode())) % 2**31
    weight = seeded(lambda: nn.Linear(width, 2 * most - 1, bias=False), make).get_parameter("weight").detach()
    return [nn.Parameter(part.clone()) for part in torch.split(weight, [1] + [2] * (most - 1))]


class RoutedLora(nn.Module):
    """``W_0 x + s sum_e w_e(x) B_e A_e x``, ``w`` a router's on this very layer's input."""

    def __init__(
        self, base: nn.Module, factors: Sequence[Factors], rows: Sequence[nn.Parameter], scaling: float
    ) -> None:
        """``base`` is frozen; ``factors``: ``A_e`` (r, d_in) and ``B_e`` (d_out, r) of M experts, the own first."""
        super().__init__()
        self.base, self.router, self.scaling = base, Router(rows), scaling
        self.lora_A = nn.ParameterList([a for a, _ in factors])
        self.lora_B = nn.ParameterList([b for _, b in factors])

    @property
    def weight(self) -> Tensor:
        """The frozen weight, whose type the layers around ask for."""
        return self.base.get_parameter("weight")

    def forward(self, x: Tensor) -> Tensor:
        """(.., d_in) -> (.., d_out)."""
        out: Tensor = self.base(x)
        linear = nn.functional.linear
        for w, a, b in zip(self.router(x).split(1, -1), self.lora_A, self.lora_B, strict=True):
            out = out + self.scaling * w * linear(linear(x, a), b)
        return out


@dataclass(frozen=True, kw_only=True, slots=True)
class Inside:
    """One stage's LoRA layers by module name: their experts' factors, routers' rows and scaling; and all new groups."""

    stage: Stage
    layers: dict[str, tuple[list[Factors], list[nn.Parameter], float]]
    groups: tuple[GroupParameters, ...]

    def mixed(self, experts: Experts, number: int) -> Stage:
        """The stage with ``number`` experts in every layer; everything but the layers is shared with the old one."""
        tensors = [*self.stage.module.parameters(), *self.stage.module.buffers()]
        module = copy.deepcopy(self.stage.module, {id(t): t for t in tensors})
        for name, (factors, rows, scaling) in self.layers.items():
            base = module.get_submodule(f"{name}.base_layer")
            module.set_submodule(name, RoutedLora(base, factors[:number], rows[:number], scaling))
        added = {g.id for g in self.groups if g.member is not None and g.member <= number}
        spec = replace(self.stage.spec, groups=self.stage.spec.groups | added)
        return replace(self.stage, spec=spec, module=module, pool=None)


def inside(backbone: Backbone, experts: Experts, seed: int) -> dict[str, Inside]:
    """What routes the layers of ``experts.inside``, by stage.

    Raises:
        ValueError: one of the groups is not the only one of a stage, or holds something else than LoRA factors.
    """
    stages = {j: s for s in backbone.stages for j in s.spec.groups if s.spec.groups == {j}}
    if alien := [j for j in experts.inside if j not in stages]:
        raise ValueError(f"{experts.id!r}: groups {alien} have no stages of their own to route the layers of")
    return {stages[j].spec.id: _inside(backbone, experts, stages[j], j, seed) for j in experts.inside}


def _inside(backbone: Backbone, experts: Experts, stage: Stage, group: GroupId, seed: int) -> Inside:
    own = next(g for g in backbone.declared if g.id == group)
    copies = range(2, experts.most + 1)
    twins = {id(p): [p, *(nn.Parameter(p.detach().clone()) for _ in copies)] for _, p, _ in own.tensors}
    found = list(_lora_layers(stage.module))
    if {id(p) for _, *factors, _ in found for p in factors} != set(twins):
        raise ValueError(f"{experts.id!r}: group {group!r} is more than the factors of PEFT's LoRA layers")
    names = {name: f"{experts.id}.{group}.{name}" for name, *_ in found}
    rows = {name: router_rows(a.shape[1], experts.most, seed, names[name]) for name, a, _, _ in found}
    layers = {
        name: (list(zip(twins[id(a)], twins[id(b)], strict=True)), rows[name], scaling) for name, a, b, scaling in found
    }
    groups = [
        replace(
            own,
            id=experts.copy(e, group),
            role="expert",
            member=e,
            tensors=tuple((name, twins[id(p)][e - 1], kind) for name, p, kind in own.tensors),
        )
        for e in copies
    ]
    routers = [
        replace(
            own,
            id=experts.router(e, group),
            role="router",
            member=e,
            tensors=tuple((f"{name}.router", r[e - 1], "weight") for name, r in rows.items()),
        )
        for e in (1, *copies)
    ]
    return Inside(stage=stage, layers=layers, groups=(*groups, *routers))


def _lora_layers(module: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Parameter, float]]:
    """PEFT's layers: name, A, B and scaling of their one adapter."""
    from peft.tuners.lora.layer import Linear as LoraLinear

    for name, layer in module.named_modules():
        if isinstance(layer, LoraLinear):
            a, b = (layer.get_parameter(f"lora_{x}.default.weight") for x in "AB")
            yield name, a, b, float(layer.scaling["default"])
