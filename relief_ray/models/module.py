"""A backbone from a plain ``nn.Module``: stages and groups are derived.

Any module that turns windows into logits is the groups ``body`` and ``head``. One with encoders by sensor, a fusion and
a head is ``head(fusion(cat_m encoders[m](x_m)))``. Every layer of its ``nn.Sequential`` encoders and head is a group of
its own. Where the fusion begins with ``nn.Linear``, its columns are split into one block per sensor:
``W [h_1 | .. | h_M] + b = sum_m A_m h_m + b``, the form that the methods speak of (Section III-B).

Legend for shapes: B batch, C channels, T samples, D features, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from relief_ray.core.groups import GroupId, Kind, Role
from relief_ray.core.stages import RAW, Engine, StageSpec
from relief_ray.models.backbone import Backbone, BackboneConfig, GroupParameters, InputShape, Stage, seeded
from relief_ray.models.checks import DeclarationError
from relief_ray.models.cnn import ColumnBlock, FusionSum
from relief_ray.models.modes import in_test_mode, switched_in_training, tested
from relief_ray.models.stage import Computed, in_order, noise_windows
from relief_ray.support.errors import UserError, shown

_Trained = tuple[str, nn.Parameter]


class PlainBackbone(BackboneConfig):
    """Base of a backbone that is a plain ``nn.Module``: define ``module``; all else is derived from it.

    The module turns windows (B, C, T), the sensors' channels side by side in the data's order, into logits (B, K);
    with ``by_sensor = True`` it takes a dict of windows (B, C_m, T) by sensor. Its groups are ``body`` and ``head``;
    the head is the part ``head_at``, or the last layer with weights that runs.

    ``encoders_at``, ``fusion_at``, ``head_at``: the module's attributes that hold encoders (an ``nn.ModuleDict`` by
    sensor, each (B, C_m, T) -> (B, D_m)), the fusion and the head. A module with such encoders has groups by layer and
    by sensor.
    """

    by_sensor: ClassVar[bool] = False
    encoders_at: ClassVar[str] = "encoders"
    fusion_at: ClassVar[str] = "fusion"
    head_at: ClassVar[str] = "head"

    def module(self, shape: InputShape) -> nn.Module:
        """The untrained module for data of ``shape``; torch's generator is seeded before it is called.

        Raises:
            UserError: the class has no ``module`` of its own.
        """
        raise UserError(
            f"class {type(self).__name__} has no module(self, shape), expected one that returns an nn.Module; define it"
        )

    def build(self, shape: InputShape, seed: int, engine: Engine = "naive") -> Backbone:
        """The backbone of the module, initialised from ``seed`` alone."""
        module = seeded(lambda: self.module(shape), seed)
        if not isinstance(module, nn.Module):
            raise UserError(f"module returned {shown(module)}, expected a torch.nn.Module")
        return from_module(
            module,
            shape,
            encoders=self.encoders_at,
            fusion=self.fusion_at,
            head=self.head_at,
            by_sensor=self.by_sensor,
        )


def from_module(
    module: nn.Module,
    shape: InputShape,
    *,
    encoders: str = "encoders",
    fusion: str = "fusion",
    head: str = "head",
    by_sensor: bool = False,
) -> Backbone:
    """Make a backbone of ``module``, whose attributes ``encoders``, ``fusion`` and ``head`` are named.

    Without encoders by sensor its groups are ``body`` and ``head`` (``PlainBackbone``). Of one with them a ``forward``
    is compared: it takes a dict of windows (B, C, T) by sensor and returns logits (B, K). Without a linear layer first
    in the fusion its parameters are one shared group.

    Raises:
        UserError: a part is missing, an output has another shape, the forward pass is another function, or a layer
            keeps statistics that are no batch norm's.
    """
    draft = _Draft(shape=shape)
    if not isinstance(getattr(module, encoders, None), nn.ModuleDict) and encoders == PlainBackbone.encoders_at:
        return _whole(module, draft, head, by_sensor)
    children = _parts(module, shape, encoders, fusion, head)
    features = [draft.add_encoder(m, children[encoders].get_submodule(m)) for m in shape.modalities]
    sums = draft.add_fusion(features, children[fusion])
    draft.add_layers(children[head], "head", None, sums)
    backbone = _finished(module, draft, head)
    _check_forward(module, backbone)
    return backbone


def _finished(module: nn.Module, draft: _Draft, last: str) -> Backbone:
    """The backbone of a draft that covers the module; ``last``: what gives its logits.

    Raises:
        UserError: it gives something else.
    """
    _check_covered(module, draft)
    logits, num_classes = draft.values[draft.stages[-1].spec.id], draft.shape.num_classes
    if logits.shape[1:] != (num_classes,):
        raise UserError(f"module: {last} gives {_sizes(logits)}, expected (B, {num_classes}), one logit a class")
    return Backbone(draft.shape, draft.stages, in_order(draft.groups), warnings=tuple(draft.warnings))


def _whole(module: nn.Module, draft: _Draft, head_at: str, by_sensor: bool) -> Backbone:
    """The backbone of a module without encoders by sensor: its stages are ``body`` and ``head``.

    Where the module goes on after its head, or runs it several times, both groups are of one stage.

    Raises:
        UserError: the module fails on windows, or no layer of it is its head.
    """
    name, shape, raw = type(module).__name__, draft.shape, tuple(RAW + m for m in draft.shape.modalities)
    body, windows = _SideBySide("module", module, shape.modalities if by_sensor else ()), [draft.values[i] for i in raw]
    ran: list[str] = []
    layers = [(n, m) for n, m in module.named_modules() if n and any(p.ndim > 1 for p in m.parameters(recurse=False))]
    hooks = [layer.register_forward_hook(lambda *_, n=n: ran.append(n)) for n, layer in layers]
    takes = "a dict of windows" if by_sensor else f"windows (B, {shape.num_channels}, T)"
    try:
        with draft.naming(f"{name}.forward on {takes}, as by_sensor is {by_sensor},", raw), tested(module):
            logits = body(*windows)
    finally:
        for hook in hooks:
            hook.remove()
    last = head_at if head_at in dict(module.named_children()) else (ran or [""])[-1]
    if not last:
        raise UserError(f"module: {name} runs no layer with weights, expected one that gives logits, as nn.Linear")
    head, holder = module.get_submodule(last), module.get_submodule(last.rpartition(".")[0])
    setattr(holder, last.rpartition(".")[2], nn.Identity())
    try:
        with tested(module), tested(head):
            is_last = torch.equal(head(body(*windows)), logits)
    except Exception:  # without its head it is no function of windows
        is_last = False
    if is_last:
        draft.add("body", raw, body, "encoder", None, 1)
        draft.add("head", ("body",), head, "head", None, 1)
    else:
        rest = _trained(body)
        setattr(holder, last.rpartition(".")[2], head)
        draft.add_stage("model", raw, body, ["body", "head"] if rest else ["head"])
        draft.add_group("body", "encoder", None, 1, rest)
        draft.add_group("head", "head", None, 1, _trained(head))
    return _finished(nn.ModuleList([module, head]), draft, f"{name}.forward")


def _parts(module: nn.Module, shape: InputShape, encoders: str, fusion: str, head: str) -> dict[str, nn.Module]:
    """The module's parts by attribute: encoders by sensor, a fusion, which reads all features side by side, a head."""
    children = dict(module.named_children())
    if missing := [name for name in (encoders, fusion, head) if name not in children]:
        raise UserError(
            f"module: {type(module).__name__} has no part {', '.join(missing)}, only {', '.join(children) or 'none'}; "
            "name its parts by the class variables encoders_at, fusion_at and head_at"
        )
    by_sensor = {name for name, _ in children[encoders].named_children()}
    if by_sensor != set(shape.modalities):
        raise UserError(
            f"module: {encoders} are of {sorted(by_sensor)}, expected one for each sensor of the data, "
            f"{sorted(shape.modalities)}; build them from shape.channels"
        )
    return children


@dataclass(kw_only=True, slots=True)
class _Draft:
    """Stages and groups as they are derived, with each stage's output on two windows of noise.

    Attributes:
        shape: the data's shape.
        stages: in topological order.
        groups: of these stages.
        values: outputs (2, ...) in test mode, and the raw windows.
        warnings: what the methods lose with this module.
        split: ids of parameters that column blocks replace.
    """

    shape: InputShape
    stages: list[Stage] = field(default_factory=list)
    groups: list[GroupParameters] = field(default_factory=list)
    values: dict[str, Tensor] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    split: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.values |= {RAW + m: x for m, x in noise_windows(self.shape, 2).items()}

    def add_encoder(self, modality: str, encoder: nn.Module) -> str:
        """Add the layers of a sensor's encoder and return its last stage, whose output is the feature (B, D)."""
        last = self.add_layers(encoder, "encoder", modality, RAW + modality)
        if self.values[last].ndim != 2:
            raise UserError(
                f"module: the encoder of {modality!r} gives {_sizes(self.values[last])}, expected one vector a window "
                "(B, D); end it with nn.Flatten() or a mean over time"
            )
        stage = self.stages[-1]
        self.stages[-1] = replace(stage, spec=replace(stage.spec, feature=True))
        return last

    def add_layers(self, module: nn.Module, role: Role, modality: str | None, source: str) -> str:
        """Add the module's layers one behind the other, each with a group of its own; return the last stage."""
        prefix, number = f"{role}.{modality}" if modality else role, 0
        for layer in _layers(module):
            trained = _trained(layer)
            number += bool(trained)
            name = f"{prefix}.{number}" if trained else f"{prefix}.{number}.frozen"
            self.add(name, (source,), layer, role, modality, number)
            source = name
        return source

    def add_fusion(self, features: Sequence[str], fusion: nn.Module) -> str:
        """Add one column block per sensor and their sum where the fusion begins with a linear layer, else one stage."""
        first, *rest = _steps(fusion) or [fusion]
        widths = [self.values[f].shape[1] for f in features]
        if type(first) is not nn.Linear or not first.weight.requires_grad:
            self.warnings.append(
                f"module: the fusion begins with {type(first).__name__}, not with a trained nn.Linear of the features "
                "side by side, so that it is one shared group without a block per sensor; comparisons of blocks by "
                "pairs are empty"
            )
            inputs = tuple(features)
            shared: nn.Module = _SideBySide("fusion", fusion)
        elif first.in_features != sum(widths):
            raise UserError(
                f"module: the fusion's first layer takes {first.in_features} features, the encoders give "
                f"{' + '.join(map(str, widths))} = {sum(widths)}; make both agree"
            )
        else:
            self.split.add(id(first.weight))
            columns = torch.split(first.weight.detach(), widths, dim=1)
            for m, feature, block in zip(self.shape.modalities, features, columns, strict=True):
                self.add(f"fusion.A.{m}", (feature,), ColumnBlock(block), "fusion_a", m, None)
            inputs = tuple(f"fusion.A.{m}" for m in self.shape.modalities)
            shared = FusionSum(first.bias, nn.Sequential(*rest))
        self.add("fusion", inputs, shared, "fusion_b", None, None, group="fusion.B")
        return "fusion"

    @contextmanager
    def naming(self, name: str, inputs: tuple[str, ...]) -> Iterator[None]:
        """Name the stage and the shapes where a part of the module cannot take its two windows.

        Raises:
            UserError: it cannot.
        """
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            sizes = ", ".join(_sizes(self.values[i]) for i in inputs)
            sensors = ", ".join(f"{m} {c}" for m, c in self.shape.channels)
            raise UserError(
                f"module: {name} fails on an input of the shape {sizes} ({type(error).__name__}: {error}); the sensors "
                f"have these channels: {sensors}"
            ) from error

    def add(
        self,
        name: str,
        inputs: tuple[str, ...],
        module: nn.Module,
        role: Role,
        modality: str | None,
        layer: int | None,
        group: GroupId | None = None,
    ) -> None:
        """Add a stage, and a group of what it trains."""
        trained = _trained(module)
        self.add_stage(name, inputs, module, [group or name] if trained else [], modality)
        self.add_group(group or name, role, modality, layer, trained)

    def add_stage(
        self,
        name: str,
        inputs: tuple[str, ...],
        module: nn.Module,
        groups: Sequence[GroupId],
        modality: str | None = None,
    ) -> None:
        """Add a stage; run it for the shape of its output."""
        spec = StageSpec(id=name, inputs=inputs, groups=frozenset(groups), modality=modality)
        with self.naming(name, inputs), torch.no_grad():
            switched = switched_in_training(name, module, [self.values[i] for i in inputs])
            (stage,) = in_test_mode([Stage(spec=spec, module=module, switched=switched)])
            output = module(*(self.values[i] for i in inputs))
        if not isinstance(output, Tensor) or len(output) != 2:
            raise UserError(f"module: {name} gives {_sizes(output)} for two windows, expected a tensor (B, ...)")
        self.values[name] = output
        self.stages.append(replace(stage, pool=Computed(_mean_of_rest) if output.ndim > 2 else None))

    def add_group(
        self, name: GroupId, role: Role, modality: str | None, layer: int | None, trained: Sequence[_Trained]
    ) -> None:
        """Add a group of parameters by name, where there are any."""
        if trained:
            tensors = tuple((n, p, _kind(n)) for n, p in trained)
            self.groups.append(GroupParameters(id=name, role=role, modality=modality, layer=layer, tensors=tensors))


def _kind(name: str) -> Kind:
    return "bias" if name.rpartition(".")[2] == "bias" else "weight"


def _trained(module: nn.Module) -> list[_Trained]:
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def _steps(module: nn.Module) -> list[nn.Module]:
    """The modules that an ``nn.Sequential`` runs one behind the other; none for any other module."""
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        return [module[i] for i in range(len(module))]
    return []


def _layers(module: nn.Module) -> list[nn.Module]:
    """The layers of an ``nn.Sequential``: each begins with weights of two dimensions or more; else the whole module.

    Norms, activations and pools belong to the layer before them. Frozen parameters are apart from trained ones, so that
    what they compute can be kept for a round.
    """
    layers: list[list[nn.Module]] = [[]]
    for child in _steps(module) or [module]:
        before, has_weights = nn.Sequential(*layers[-1]), any(p.ndim > 1 for _, p in _trained(child))
        is_frozen = any(True for _ in before.parameters()) and not _trained(before)
        if (has_weights and any(p.ndim > 1 for _, p in _trained(before))) or (_trained(child) and is_frozen):
            layers.append([])
        layers[-1].append(child)
    parameters = [{id(p) for p in nn.Sequential(*layer).parameters()} for layer in layers]
    if sum(map(len, parameters)) != len(set().union(*parameters)):
        return [module]  # layers that share parameters are trained together
    return [layer[0] if len(layer) == 1 else nn.Sequential(*layer) for layer in layers]


def _check_covered(module: nn.Module, draft: _Draft) -> None:
    """Refuse trained parameters outside of the parts.

    Raises:
        DeclarationError: names them.
    """
    held = {id(p) for g in draft.groups for _, p, _ in g.tensors} | draft.split
    if outside := [n for n, p in _trained(module) if id(p) not in held]:
        raise DeclarationError(
            f"module: what is trained is in encoders, fusion and head, but parameters {outside} are in none of them: "
            "move them into a part, or freeze them (requires_grad_(False))"
        )


@torch.no_grad()
def _check_forward(module: nn.Module, backbone: Backbone) -> None:
    """Compare the module's own forward pass, where it has one, with the stages' on two windows of noise.

    Raises:
        UserError: it fails, or gives other logits.
    """
    if type(module).forward is nn.Module.forward:
        return
    windows = noise_windows(backbone.shape, 2, seed=1)
    expected = backbone.forward(windows)
    try:
        with tested(module):
            logits = module(windows)
    except Exception as error:
        raise UserError(
            f"module: {type(module).__name__}.forward fails on a dict of windows (B, C, T) by sensor "
            f"({type(error).__name__}: {error}); let it take one, or leave forward out"
        ) from error
    for layer in (layer for s in backbone.stages for layer in s.switched):
        layer.training = False
    gap = float((logits - expected).abs().max()) if logits.shape == expected.shape else float("inf")
    if not gap <= 1e-4 * max(1.0, float(expected.abs().max())):
        raise UserError(
            f"module: {type(module).__name__}.forward gives other logits than head(fusion(encoders side by side)), by "
            f"{gap:.2g}; move what it does between the parts (an activation, a sum) into one of them"
        )


def _sizes(output: object) -> str:
    if not isinstance(output, Tensor):
        return f"a {type(output).__name__}"
    return f"(B, {', '.join(map(str, output.shape[1:]))})"


class _SideBySide(nn.Module):
    """``of([x_1 | .. | x_M])``, or of a dict of them by sensor."""

    def __init__(self, name: str, of: nn.Module, sensors: tuple[str, ...] = ()) -> None:
        """Keep ``of`` as it is, under the name with which its tensors' names begin."""
        super().__init__()
        self.add_module(name, of)
        self.sensors = sensors

    def forward(self, *inputs: Tensor) -> Tensor:
        """M inputs (B, D_m, ...) -> what the module gives."""
        (of,) = self.children()
        out: Tensor = of(dict(zip(self.sensors, inputs, strict=True)) if self.sensors else torch.cat(inputs, 1))
        return out


def _mean_of_rest(values: Tensor) -> Tensor:
    """Mean over all dimensions behind the second, for classifiers that read the model early: (B, D, ...) -> (B, D)."""
    return values.flatten(2).mean(2)
