"""A layer in several copies, mixed per window by a router that always keeps the client's own (FedLEASE).

Legend for shapes: B batch, D features of all modalities side by side, M experts, S = 2 M - 1 slots.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from relief_ray.core.extra_modules import Experts
from relief_ray.core.stages import StageSpec, ancestors
from relief_ray.models.backbone import Backbone, GroupParameters, Stage
from relief_ray.models.extra.rewire import feature_stages, feature_widths, rewired_stages
from relief_ray.models.extra.routed_lora import RoutedStage, Router, routed_stages, router_rows


def with_experts(backbone: Backbone, experts: Experts, seed: int) -> Backbone:
    """Return ``backbone`` with copies 2 .. ``most`` of the layer, and one path to the logits per number of experts.

    Raises:
        ValueError: the groups are no layer with one last stage, or those inside of stages are not LoRA layers.
    """
    layer = _layer(backbone, experts)
    last, routed = layer[-1].spec.id, routed_stages(backbone, experts, seed)
    copies = {e: _copies(backbone, experts, layer, e) for e in range(2, experts.most + 1)}
    features = feature_stages(backbone, last)
    rows = router_rows(sum(feature_widths(backbone, features)), experts.most, seed, experts.id)
    routers = [
        GroupParameters(
            id=experts.router(e), role="router", modality=None, layer=None, tensors=(("weight", p, "weight"),), member=e
        )
        for e, p in enumerate(rows, 1)
    ]
    groups = [*(g for pairs in copies.values() for _, declared in pairs for g in declared), *routers]
    stages = [] if routed else [stage for pairs in copies.values() for stage, _ in pairs]
    for number in range(2, experts.most + 1):
        further = [stage for e in range(2, number + 1) for stage, _ in copies[e]]
        mixed = _mixed_inside(experts, routed, [*_stages_up_to(backbone, last), *further], number)
        names = {old: copied.spec.id for old, copied in mixed.items()}
        sources = tuple(names.get(s.spec.id, s.spec.id) for s in features)
        stages += [*mixed.values(), *_mixture(backbone, experts, last, rows[:number], sources, names)]
    return backbone.plus(stages, [*groups, *(g for part in routed.values() for g in part.groups)])


def _stages_up_to(backbone: Backbone, last: str) -> list[Stage]:
    below = ancestors(backbone.specs, {last})
    return [s for s in backbone.stages if s.spec.id in below]


def _mixed_inside(
    experts: Experts, routed: Mapping[str, RoutedStage], stages: Sequence[Stage], number: int
) -> dict[str, Stage]:
    """Copies of the ``routed`` ones of ``stages``, ``number`` experts mixed inside, and of all that read from them."""
    copies: dict[str, Stage] = {}
    for stage in stages:
        name, spec = stage.spec.id, stage.spec
        if name not in routed and not copies.keys() & set(spec.inputs):
            continue
        copied = routed[name].mixed(experts, number) if name in routed else replace(stage, pool=None)
        inputs = tuple(copies[i].spec.id if i in copies else i for i in spec.inputs)
        copies[name] = replace(copied, spec=replace(copied.spec, id=f"{name}@{experts.id}.{number}", inputs=inputs))
    return copies


def _layer(backbone: Backbone, experts: Experts) -> list[Stage]:
    """The stages that own the groups ``experts.of``; all of them lead to the last one."""
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
    """Copies of the layer's stages with new trained parameters, each with its groups; frozen tensors are shared."""
    names = {s.spec.id: f"{experts.id}.{expert}.{s.spec.id}" for s in layer}
    declared = {g.id: g for g in backbone.declared}
    trained = {id(p) for j in experts.of for p in backbone.parameters[j]}
    copies = []
    for stage in layer:
        # Each expert counts for itself: its running statistics are no frozen tensors.
        counted = {id(b) for layer in stage.switched for b in layer.buffers(recurse=False)}
        tensors = [t for t in (*stage.module.parameters(), *stage.module.buffers()) if id(t) not in counted]
        module = copy.deepcopy(stage.module, {id(t): t for t in tensors if id(t) not in trained})
        parameter = {id(p): q for p, q in zip(stage.module.parameters(), module.parameters(), strict=True)}
        groups = [
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
            groups=frozenset(g.id for g in groups),
        )
        twin = {id(old): new for old, new in zip(stage.module.modules(), module.modules(), strict=True)}
        switched = tuple(twin[id(layer)] for layer in stage.switched)
        copies.append((replace(stage, spec=spec, module=module, switched=switched), groups))
    return copies


def _mixture(
    backbone: Backbone,
    experts: Experts,
    last: str,
    rows: Sequence[nn.Parameter],
    sources: tuple[str, ...],
    names: Mapping[str, str],
) -> list[Stage]:
    """The router's weights, the mixture of the experts' outputs, and copies of the stages behind it."""
    number = len(rows)
    output = experts.output(number)
    assert output is not None
    weights = StageSpec(
        id=experts.weights(number),
        inputs=sources,
        groups=frozenset(experts.router(e) for e in range(1, number + 1)),
    )
    ends = [names.get(j, j) for j in (last, *(f"{experts.id}.{e}.{last}" for e in range(2, number + 1)))]
    mixed = output if last == backbone.output else f"{experts.id}.mix@{number}"
    return [
        Stage(spec=weights, module=Router(rows)),
        Stage(spec=StageSpec(id=mixed, inputs=(weights.id, *ends)), module=_Mix()),
        *rewired_stages(backbone, {last: mixed}, f"{experts.id}.{number}", output),
    ]


class _Mix(nn.Module):
    """``sum_e w_e y_e``."""

    def forward(self, weights_BM: Tensor, *outputs: Tensor) -> Tensor:
        """(B, M), then M tensors (B, ..) -> (B, ..)."""
        total = torch.zeros_like(outputs[0])
        for w_B, output in zip(weights_BM.unbind(1), outputs, strict=True):
            total = total + w_B.view(-1, *[1] * (output.ndim - 1)) * output
        return total
