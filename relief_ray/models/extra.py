"""Builds a backbone with a method's extra modules; existing groups keep their values, order and meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal
from zlib import crc32

import torch
from torch import Tensor, nn

from relief_ray.core.extra_modules import Classifier, Connector, Experts, ExtraModule
from relief_ray.core.groups import GroupId, Role
from relief_ray.core.stages import StageSpec, ancestors
from relief_ray.models.backbone import Backbone, GroupParameters, Stage, output_shapes, seeded
from relief_ray.models.stage import Computed, TrainedStage, apart, copied, trained_stage

# Rewires a backbone: further paths to the logits, made of copied stages that share parameters.


def _rewired_stages(backbone: Backbone, replaced: Mapping[str, str], path: str, output: str) -> list[Stage]:
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


def _widths(backbone: Backbone, stages: Sequence[Stage]) -> list[int]:
    """``D`` of stages whose outputs are vectors (B, D): features, or what a classifier reads.

    Raises:
        ValueError: an output has another shape.
    """
    sizes = output_shapes(backbone, stages)
    for stage, size in zip(stages, sizes, strict=True):
        if len(size) != 2:
            raise ValueError(
                f"stage {stage.spec.id!r} gives {size} for a window, not (B, D): a stage marked `feature` must give "
                "one vector a window, and a classifier needs one; declare the stage's `pool`"
            )
    return [size[1] for size in sizes]


def _expert_group(
    declared: GroupParameters, experts: Experts, expert: int, copies: Mapping[int, nn.Parameter]
) -> GroupParameters:
    """Group of an expert's ``copies``; the keys are the ids of the copied parameters."""
    tensors = tuple((name, copies[id(p)], kind) for name, p, kind in declared.tensors)
    return replace(declared, id=experts.copy(expert, declared.id), role="expert", member=expert, tensors=tensors)


def _seeded_by_name(build: Callable[[], nn.Module], seed: int, name: str) -> nn.Module:
    return seeded(build, (seed + crc32(name.encode())) % 2**31)


# A layer in several copies, mixed per window by a router that always keeps the client's own (FedLEASE).
#
# Legend for shapes: B batch, D features of all modalities side by side, M experts, S = 2 M - 1 slots.


def with_experts(backbone: Backbone, experts: Experts, seed: int) -> Backbone:
    """Return ``backbone`` with copies 2 .. ``most`` of the layer, and one path to the logits per number of experts.

    Raises:
        ValueError: the groups are no layer with one last stage, or those inside of stages are not LoRA layers.
    """
    layer = _layer(backbone, experts)
    last, routed = layer[-1].spec.id, _routed_stages(backbone, experts, seed)
    copies = {e: _copies(backbone, experts, layer, e) for e in range(2, experts.most + 1)}
    below = ancestors(backbone.specs, {last})
    layers = [s for s in backbone.stages if s.spec.id in below]
    features = [s for s in layers if s.spec.feature]
    rows = _router_rows(sum(_widths(backbone, features)), experts.most, seed, experts.id)
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
        mixed = _mixed_inside(experts, routed, [*layers, *further], number)
        names = {old: copied.spec.id for old, copied in mixed.items()}
        sources = tuple(names.get(s.spec.id, s.spec.id) for s in features)
        stages += [*mixed.values(), *_mixture(backbone, experts, last, rows[:number], sources, names)]
    return backbone.plus(stages, [*groups, *(g for part in routed.values() for g in part.groups)])


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
        module = copied(stage.module, trained | counted)
        parameter = {id(p): q for p, q in zip(stage.module.parameters(), module.parameters(), strict=True)}
        groups = [_expert_group(declared[j], experts, expert, parameter) for j in experts.of if j in stage.spec.groups]
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
        Stage(spec=StageSpec(id=mixed, inputs=(weights.id, *ends)), module=Computed(_mix)),
        *_rewired_stages(backbone, {last: mixed}, f"{experts.id}.{number}", output),
    ]


def _mix(weights_BM: Tensor, *outputs: Tensor) -> Tensor:
    """``sum_e w_e y_e``: (B, M), then M tensors (B, ..) -> (B, ..)."""
    total = torch.zeros_like(outputs[0])
    for w_B, output in zip(weights_BM.unbind(1), outputs, strict=True):
        total = total + w_B.view(-1, *[1] * (output.ndim - 1)) * output
    return total


# LoRA layers inside a stage, each with several experts and a router of its own that mixes them token by token.
#
# Legend for shapes: d_in and d_out of a layer, r its rank, M experts.


_Factors = tuple[nn.Parameter, nn.Parameter]


def _routed_stages(backbone: Backbone, experts: Experts, seed: int) -> dict[str, RoutedStage]:
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
    place = f"{experts.id}.{group}"
    rows = {name: _router_rows(a.shape[1], experts.most, seed, f"{place}.{name}") for name, a, *_ in lora_layers}
    layers = {
        name: (list(zip(factors[id(a)], factors[id(b)], strict=True)), rows[name], scaling)
        for name, a, b, scaling in lora_layers
    }
    groups = [
        _expert_group(declared, experts, e, {of: expert[e - 1] for of, expert in factors.items()}) for e in copies
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
        module = copied(self.stage.module)
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


def _router_rows(width: int, most: int, seed: int, name: str) -> list[nn.Parameter]:
    """Initial rows of a router by expert, cut from one seeded linear layer without bias."""
    linear = _seeded_by_name(lambda: nn.Linear(width, 2 * most - 1, bias=False), seed, name)
    weight = linear.get_parameter("weight").detach()
    return [nn.Parameter(part.clone()) for part in torch.split(weight, [1] + [2] * (most - 1))]


# Adapters between features and fusion: a client's own, one per task, and the router that mixes them (Pilot).
#
# Legend for shapes: B batch, D features of all modalities side by side, T tasks, W bottleneck.


def with_connector(backbone: Backbone, connector: Connector, seed: int) -> Backbone:
    """Return ``backbone`` with the adapters and two further paths to the logits, ``first`` and ``mixed``."""
    below = ancestors(backbone.specs, {backbone.output})
    features = [s for s in backbone.stages if s.spec.feature and s.spec.id in below]  # the ``h_m``, in order
    sizes, sources = _widths(backbone, features), tuple(s.spec.id for s in features)
    width, tasks = sum(sizes), range(1, connector.num_tasks + 1)

    def added(name: GroupId, build: Callable[[], nn.Module], role: Role, member: int | None = None) -> TrainedStage:
        return trained_stage(name, sources, _seeded_by_name(build, seed, name), role, member=member)

    def adapter(name: GroupId, member: int | None = None) -> TrainedStage:
        return added(name, lambda: _Adapter(width, connector.bottleneck), "connector", member)

    mixed = [adapter(connector.task(i), i) for i in tasks] + [adapter(connector.cross(i), i) for i in tasks[1:]]
    gate = added(connector.router, lambda: _ConcatLinear(width, connector.num_tasks, bias=False), "router")
    stages, groups = apart([*mixed, adapter(connector.own), gate])
    mix = StageSpec(id=f"{connector.id}.mix", inputs=(connector.router, *(stage.spec.id for stage, _ in mixed)))
    in_mix = (connector.own,) if connector.own_in_mix else ()
    paths = [
        *_path(backbone, connector, "first", sources, sizes, (connector.task(1), connector.own)),
        *_path(backbone, connector, "mixed", sources, sizes, (*in_mix, mix.id)),
    ]
    return backbone.plus([*stages, Stage(spec=mix, module=Computed(_mixed)), *paths], groups)


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
    stages, replaced, start = [Stage(spec=joined, module=Computed(partial(_residual, len(sources))))], {}, 0
    for source, size in zip(sources, sizes, strict=True):
        replaced[source] = f"{source}@{connector.id}.{path}"
        spec = StageSpec(id=replaced[source], inputs=(joined.id,))
        # One modality's columns of ``z``: (B, D) -> (B, D_m).
        stages.append(Stage(spec=spec, module=Computed(partial(torch.narrow, dim=1, start=start, length=size))))
        start += size
    return [*stages, *_rewired_stages(backbone, replaced, f"{connector.id}.{path}", connector.output(path))]


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


def _residual(num_features: int, *parts_BD: Tensor) -> Tensor:
    """``h + sum of adapters``: features (B, D_1) .., so many, then adapters (B, D) .. -> (B, D)."""
    return sum(parts_BD[num_features:], torch.cat(parts_BD[:num_features], 1))


def _mixed(logits_BT: Tensor, *adapters_BD: Tensor) -> Tensor:
    """``sum_i P_i h_i`` with ``h_1 = task_1`` and ``h_i = task_i + cross_i``.

    Router (B, T), T task adapters, T - 1 cross-task ones (B, D) -> (B, D).
    """
    num_tasks = logits_BT.shape[1]
    weights_BT = torch.softmax(logits_BT, 1)
    total = weights_BT[:, :1] * adapters_BD[0]
    for i in range(1, num_tasks):
        total = total + weights_BT[:, i : i + 1] * (adapters_BD[i] + adapters_BD[num_tasks - 1 + i])
    return total


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
    width = sum(_widths(backbone.plus(pools, []), sources))
    linear = _seeded_by_name(lambda: _ConcatLinear(width, backbone.shape.num_classes), seed, classifier.id)
    inputs = tuple(s.spec.id for s in sources)
    stage, group = trained_stage(
        classifier.id, inputs, linear, classifier.role, modality=classifier.modality, layer=classifier.layer
    )
    return backbone.plus([*pools, stage], [group])


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
    """``Linear([f_1 | .. | f_k])``: a classifier on pooled features, or the router ``G h``."""

    def forward(self, *features_BD: Tensor) -> Tensor:
        """Features (B, D_1) .. (B, D_k) -> (B, K)."""
        return super().forward(torch.cat(features_BD, 1))
