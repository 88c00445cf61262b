"""A backbone: stages in topological order whose parameters are organised into groups; its configuration's base.

Legend for shapes: B batch, C channels, T samples, D features, K classes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from relief_ray.core.groups import GroupId, GroupLayout, Params
from relief_ray.core.protocols import Reading
from relief_ray.core.stages import RAW, Engine, Missing, StageSpec, ancestors
from relief_ray.models.checks import DeclarationError, check_modules, check_owners
from relief_ray.models.modes import Statistics, in_test_mode
from relief_ray.models.stage import GroupParameters as GroupParameters
from relief_ray.models.stage import InputShape as InputShape
from relief_ray.models.stage import Stage as Stage
from relief_ray.models.stage import noise_windows
from relief_ray.support.errors import UserError, shown
from relief_ray.support.frozen import FrozenConfig
from relief_ray.support.process import memory_bytes

Facts = Mapping[str, str | int]

_NO_FACTS: Facts = MappingProxyType({})
# The fact that names a frozen part: the hash of its weights.
SHA256 = "weights_sha256"


def raw_windows(modality: str, windows_BCT: Tensor) -> Tensor:
    """Return the windows unchanged: the default ``prepare``."""
    return windows_BCT


class Backbone:
    """Stages, parameters and layout of one model.

    Attributes:
        shape: the data's shape.
        stages: in topological order.
        declared: the groups with their parameters, in storage order.
        layout: the groups' shapes, without values.
        parameters: each group's tensors, in storage order.
        prepare: (modality, raw windows (B, C, T)) -> the first stage's input; applied once per client.
        chunk: windows per pass without gradient; None: the usual number.
        facts: identity of frozen parts, recorded with every run.
        warnings: recorded with every run.
        output: the stage whose output is the logits (B, K).
        joined: stages that compute several of ``stages`` together, from the first one's inputs, called as the last one.
        adapter_scales: ``set_scale(adapter, factor)`` of every LoRA layer.
        statistics: running statistics of its BatchNorm layers, which are every client's own.
    """

    def __init__(
        self,
        shape: InputShape,
        stages: Sequence[Stage],
        groups: Iterable[GroupParameters],
        prepare: Callable[[str, Tensor], Tensor] = raw_windows,
        chunk: int | None = None,
        facts: Facts = _NO_FACTS,
        warnings: tuple[str, ...] = (),
        output: str | None = None,
        joined: Sequence[Stage] = (),
    ) -> None:
        """Check that stages are topologically ordered and that groups and stages fit; put all layers into test mode.

        ``chunk``: set where the usual number of windows needs too much memory; ``output`` is the last stage by default.

        Raises:
            UserError: a stage reads what no earlier one writes, or names an unknown group; a group has no stage, a
                trainable parameter no group; a layer is no function of its inputs.
        """
        declared = tuple(groups)
        self.shape, self.stages, self.prepare = shape, in_test_mode(stages), prepare
        self.chunk, self.facts, self.warnings = chunk, facts, warnings
        self.declared, self.output = declared, output or self.stages[-1].spec.id
        self.joined = tuple(joined)
        self.layout = GroupLayout(g.group() for g in declared)
        self.parameters = {g.id: tuple(p for _, p, _ in g.tensors) for g in declared}
        known = {RAW + m for m in shape.modalities}
        for stage in self.stages:
            if missing := [i for i in stage.spec.inputs if i not in known]:
                raise UserError(
                    f"backbone: stage {stage.spec.id!r} reads {missing}; earlier stages and inputs are {sorted(known)}"
                )
            if unknown := stage.spec.groups - set(self.layout.ids):
                raise DeclarationError(
                    f"backbone: stage {stage.spec.id!r} owns unknown groups {sorted(unknown)}; declare them"
                )
            known.add(stage.spec.id)
        check_owners(self.stages, declared)
        check_modules(self.stages)
        # PEFT's layers and our own multiply their ``s = alpha / R``.
        scales = (getattr(layer, "set_scale", None) for stage in self.stages for layer in stage.module.modules())
        self.adapter_scales = tuple(set_scale for set_scale in scales if set_scale is not None)
        self.statistics = Statistics(self.stages)

    @property
    def specs(self) -> tuple[StageSpec, ...]:
        """The stages without their modules."""
        return tuple(s.spec for s in self.stages)

    def running(self, wanted: Collection[str] = ()) -> tuple[StageSpec, ...]:
        """Those that run for the outputs ``wanted``, by default for the logits."""
        below = ancestors(self.specs, wanted or {self.output})
        return tuple(s for s in self.specs if s.id in below)

    @property
    def device(self) -> torch.device:
        """The device of its parameters."""
        return next(iter(self.parameters.values()))[0].device

    def params(self) -> dict[GroupId, Tensor]:
        """A copy of all groups' vectors."""
        return {j: torch.cat([p.detach().reshape(-1) for p in ps]) for j, ps in self.parameters.items()}

    def load(self, params: Params) -> None:
        """Copy the groups' vectors into the parameters."""
        for j, parameters in self.parameters.items():
            for p, value in zip(parameters, self.layout.unflatten(j, params[j]).values(), strict=True):
                p.data.copy_(value)

    def forward(self, windows: dict[str, Tensor]) -> Tensor:
        """Logits (B, K) from prepared inputs of all modalities: the plain definition, which tests compare with."""
        return run_stages(self, windows)[self.output]

    def plus(self, stages: Sequence[Stage], groups: Sequence[GroupParameters]) -> Backbone:
        """This backbone with ``stages`` and ``groups`` appended: same parameters, same logits."""
        return Backbone(
            self.shape,
            (*self.stages, *stages),
            (*self.declared, *groups),
            self.prepare,
            self.chunk,
            self.facts,
            self.warnings,
            self.output,
            self.joined,
        )


def run_stages(
    backbone: Backbone,
    inputs: Mapping[str, Tensor],
    wanted: Collection[str] | None = None,
    compute: Callable[[Stage, list[Tensor]], Tensor] = lambda stage, inputs: stage.module(*inputs),
) -> dict[str, Tensor]:
    """Prepared ``inputs`` by name (``RAW``), and the outputs of the stages on them.

    ``wanted``: run these and what they read alone; None: all. ``compute`` gives a stage's output for its inputs.
    """
    specs = backbone.specs
    running = {s.id for s in specs} if wanted is None else ancestors(specs, set(wanted))
    values = {RAW + m: x for m, x in inputs.items()}
    for stage in backbone.stages:
        if stage.spec.id in running:
            values[stage.spec.id] = compute(stage, [values[i] for i in stage.spec.inputs])
    return values


def noise_inputs(backbone: Backbone, shape: InputShape, num: int, seed: int = 0) -> dict[str, Tensor]:
    """``noise_windows`` of ``shape`` as the backbone prepares them."""
    return {m: backbone.prepare(m, x) for m, x in noise_windows(shape, num, seed).items()}


def zero_input(backbone: Backbone, modality: str) -> Tensor:
    """The prepared input (1, ...) of one standardised zero window."""
    channels = dict(backbone.shape.channels)[modality]
    return backbone.prepare(modality, torch.zeros(1, channels, backbone.shape.window, device=backbone.device))


@torch.no_grad()
def output_shapes(backbone: Backbone, stages: Sequence[Stage]) -> list[tuple[int, ...]]:
    """Output shapes (1, ...) of ``stages`` for one zero window; only stages that they read are run."""
    zeros = {m: zero_input(backbone, m) for m in backbone.shape.modalities}
    values = run_stages(backbone, zeros, {s.spec.id for s in stages})
    return [tuple(values[s.spec.id].shape) for s in stages]


def move_frozen(backbone: Backbone, device: torch.device) -> None:
    """Replace the stages' frozen tensors by copies on ``device``, one each; the groups' parameters are left alone.

    Copies, because other backbones of this process share the frozen tensors, and the server's own stays on the CPU.
    """
    if device.type == "cpu":
        return
    in_groups = {id(p) for parameters in backbone.parameters.values() for p in parameters}
    moved: dict[int, tuple[Tensor, Tensor]] = {}
    roots = [root for stage in backbone.stages for root in (stage.module, stage.pool) if root is not None]
    for module in (m for root in roots for m in root.modules()):
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if id(tensor) in in_groups or tensor.device.type == device.type:
                continue
            # The old tensor is kept beside the new one: an id is unique only while its tensor lives.
            if id(tensor) not in moved:
                moved[id(tensor)] = (tensor, _copy(tensor, device))
            setattr(module, name, moved[id(tensor)][1])


def _copy(tensor: Tensor, device: torch.device) -> Tensor:
    new = tensor.detach().to(device)
    return nn.Parameter(new, requires_grad=False) if isinstance(tensor, nn.Parameter) else new


class BackboneNetwork:
    """A backbone for the server's computations (a ``Network``): differentiable in parameters and raw windows."""

    def __init__(self, backbone: Backbone, missing: Missing) -> None:
        """``missing``: how an absent modality is represented; ``load`` overwrites the parameters of ``backbone``.

        Raises:
            UserError: the backbone has BatchNorm layers, whose statistics no server has.
        """
        if backbone.statistics:
            raise UserError(
                "backbone: this method computes with the model on the server, which has no running statistics for "
                f"{len(backbone.statistics.layers)} BatchNorm layers: they stay on the clients; take GroupNorm"
            )
        self._backbone, self._missing = backbone, missing
        self.channels: Mapping[str, int] = dict(backbone.shape.channels)
        self.window, self.num_classes = backbone.shape.window, backbone.shape.num_classes
        self.parameters: Mapping[GroupId, tuple[nn.Parameter, ...]] = backbone.parameters

    def load(self, params: Params) -> None:
        """Copy all groups' vectors into the parameters."""
        self._backbone.load(params)

    def params(self) -> dict[GroupId, Tensor]:
        """A copy of all groups' vectors."""
        return self._backbone.params()

    def read(self, windows: Mapping[str, Tensor], outputs: Collection[str | None]) -> dict[str | None, Reading]:
        """Each of ``outputs`` (None: the backbone's logits) on raw standardised windows (B, C, T) by modality."""
        names = {o: o or self._backbone.output for o in outputs}

        def compute(stage: Stage, inputs: list[Tensor]) -> Tensor:
            output: Tensor = stage.module(*inputs)
            is_absent = stage.spec.feature and stage.spec.modality not in windows
            return output * 0.0 if is_absent and self._missing == "zero_feature" else output

        values = run_stages(self._backbone, self._inputs(windows), names.values(), compute)
        reads = {s.id: s.inputs for s in self._backbone.specs}
        return {
            o: Reading(logits=values[name], features=torch.cat([values[i] for i in reads[name]], 1))
            for o, name in names.items()
        }

    def _inputs(self, windows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Prepared inputs of all modalities, zero where one is absent."""
        batch = len(next(iter(windows.values())))
        raw = {m: windows[m] if m in windows else torch.zeros(batch, c, self.window) for m, c in self.channels.items()}
        return {m: self._backbone.prepare(m, x) for m, x in raw.items()}


class BackboneConfig(FrozenConfig):
    """Base of every backbone's configuration: frozen, no unknown keys. A subclass has at least ``build``.

    ``engines``: those for which ``build`` has stages of its own, beside ``naive`` and ``reuse``; others are refused.
    ``has_lora``: whether clients train LoRA factors of frozen weights; without them methods for LoRA are stand-ins.
    ``same_speed``: keys that change what is computed and not how long it takes; device profiles hold for all of them.
    """

    engines: ClassVar[tuple[Engine, ...]] = ()
    has_lora: ClassVar[bool] = False
    same_speed: ClassVar[frozenset[str]] = frozenset()

    def build(self, shape: InputShape, seed: int, engine: Engine = "naive") -> Backbone:
        """The backbone, initialised from ``seed`` alone: same values, layout and function for every ``engine``.

        Raises:
            UserError: the class has no ``build`` of its own.
        """
        raise UserError(f"class {type(self).__name__} has no build(); define one that returns a Backbone")

    def frozen_here(self) -> Facts:
        """``Backbone.facts`` of the weights now on this machine, without loading a model; empty if there are none."""
        return {}


# Copies of a model, at least, in a process that trains it: its parameters, the round's start, gradients.
_COPIES = 3
_BYTES = 4


def require_memory(config: BackboneConfig, num_values: int) -> None:
    """Check that a model of so many float32 values can be trained within this machine's memory.

    Raises:
        UserError: it cannot; the backbone's keys are named.
    """
    needed, here = _COPIES * _BYTES * num_values, memory_bytes()
    if needed > here:
        values, others = config.model_dump(), {"name", *config.same_speed}
        keys = ", ".join(f"backbone.{key}={shown(value)}" for key, value in values.items() if key not in others)
        raise UserError(
            f"{keys}: a model of {num_values} values, which takes {needed / 2**30:.0f} GiB to train; expected one that "
            f"fits into the {here / 2**30:.0f} GiB of this machine; lower the largest of these"
        )


class PlainMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of torch without its compiler, whose import takes over a second."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Tell torch that its compiler need not be told to skip this mode: nothing here is compiled."""
        return False


class _SameUniform(PlainMode):  # type: ignore[no-untyped-call]
    """Rounds float32 numbers of ``uniform_`` on a CPU once, as processors do that fuse multiply and add."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Draw the same numbers from the same generator; leave every other operation unchanged."""
        named = dict(kwargs or {})
        values = args[0] if func is torch.ops.aten.uniform_.default else None
        if values is None or values.dtype != torch.float32 or values.device.type != "cpu":
            return func(*args, **named)
        low, high = torch.tensor((*args[1:], *(0.0, 1.0)[len(args) - 1 :]), dtype=torch.float32)
        drawn = torch.rand(values.shape, generator=named.get("generator"), dtype=torch.float32)
        # Product and sum are exact in float64.
        return values.copy_(drawn.double() * (high - low).double() + low.double())


AnyModule = TypeVar("AnyModule", bound=nn.Module)


def seeded(build: Callable[[], AnyModule], seed: int) -> AnyModule:
    """Build a module with torch's default initialisation from its own seed; the global generator is left alone.

    The values are the same on every processor.
    """
    with torch.random.fork_rng(devices=[]):
        # Without a GPU `torch.manual_seed` takes a stack trace for each kind of one, which costs milliseconds.
        (torch if torch.cuda.is_available() else torch.default_generator).manual_seed(seed)
        with _SameUniform():  # type: ignore[no-untyped-call]
            return build()


def differing_facts(expected: Mapping[str, object], actual: Mapping[str, object]) -> tuple[str, ...]:
    """The facts in which two frozen parts differ: the hash of the weights where both have one, else any fact.

    The origin of weights with equal hashes does not count: the same bits may lie in two folders.
    """
    names = [SHA256] if SHA256 in expected and SHA256 in actual else sorted(expected.keys() | actual.keys())
    return tuple(name for name in names if expected.get(name) != actual.get(name))


def frozen_mismatch(recorded: Mapping[str, object], here: Facts) -> str | None:
    """Describe how a run's frozen part differs from the one on this machine (``BackboneConfig.frozen_here``).

    For example ``weights_sha256 1a2b3c4d5e6f there, 6f5e4d3c2b1a here``; None where they are the same or none is here.
    """
    names = differing_facts(recorded, here) if here else ()
    return "; ".join(f"{n} {str(recorded.get(n))[:12]} there, {str(here.get(n))[:12]} here" for n in names) or None


def build_verified(build: Callable[[], Backbone], expected: Facts) -> Backbone:
    """Build the backbone and check its frozen part against the run's; an empty ``expected`` compares nothing.

    Updates of models with different frozen parts cannot be averaged.

    Raises:
        UserError: it has another frozen part; the message names the host.
    """
    backbone = build()
    if expected and (names := differing_facts(expected, backbone.facts)):
        here, there = (", ".join(f"{n} {str(f.get(n))[:20]}" for n in names) for f in (backbone.facts, expected))
        raise UserError(
            f"host {socket.gethostname()} (process {os.getpid()}): holds another frozen encoder than the run: found "
            f"{here} (weights: {backbone.facts.get('weights')}), expected {there}; {_fix(expected)}"
        )
    return backbone


def _fix(expected: Facts) -> str:
    if str(expected.get("weights")).startswith("random"):
        return (
            "remove the folder `moment` from that host's cache (RELIEF_CACHE), so that it is drawn anew, or copy the "
            "driver's there"
        )
    return "copy the driver's files of backbone.weights to that host, or name a folder that all share"
