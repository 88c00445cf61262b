"""A backbone: stages in topological order whose parameters are organised into groups.

Legend for shapes: B batch, C channels, T samples, D features, K classes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor, nn

from relief_ray.errors import UserError
from relief_ray.frozen import FrozenConfig
from relief_ray.groups import GroupId, GroupLayout, Kind, ParamGroup, Params, Role, pack
from relief_ray.models.checks import check_modules, check_owners
from relief_ray.stages import RAW, StageSpec

NO_FACTS: Mapping[str, str | int] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class InputShape:
    """What a backbone is built for: modality -> channels in canonical order, samples per window, number of classes."""

    channels: tuple[tuple[str, int], ...]
    window: int
    num_classes: int

    @property
    def modalities(self) -> tuple[str, ...]:
        """Modalities in canonical order."""
        return tuple(m for m, _ in self.channels)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A stage and the module that computes it: ``module(*inputs) -> output``, batch first everywhere.

    ``frozen`` is the same stage without the parameters of its groups, where it has others that are never trained: what
    it takes is counted apart. ``pool`` turns the output into features (B, D) for whoever reads the model early; None
    where the output is that already. ``step_bytes``: what its forward pass keeps of a window for a backward pass, where
    that is so much that batches should go through in parts; 0: not worth a thought.
    """

    spec: StageSpec
    module: nn.Module
    frozen: nn.Module | None = None
    pool: nn.Module | None = None
    step_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupParameters:
    """A group's declaration: which parameters it holds, in storage order."""

    id: GroupId
    role: Role
    modality: str | None
    layer: int | None
    tensors: tuple[tuple[str, nn.Parameter, Kind], ...]
    member: int | None = None

    def group(self) -> ParamGroup:
        """The shape of the group, without its values."""
        return ParamGroup(
            id=self.id,
            role=self.role,
            modality=self.modality,
            layer=self.layer,
            member=self.member,
            tensors=pack((name, tuple(p.shape), kind) for name, p, kind in self.tensors),
        )


def _adapter_scales(stages: Iterable[Stage]) -> Iterator[Callable[[str, float], None]]:
    """How adapter layers, PEFT's or our own, are told how many times their ``s = alpha / R`` they count."""
    scales = (getattr(m, "set_scale", None) for stage in stages for m in stage.module.modules())
    yield from (set_scale for set_scale in scales if set_scale is not None)


def raw_windows(modality: str, windows_BCT: Tensor) -> Tensor:
    """Windows enter the first stage as they are."""
    return windows_BCT


class Backbone:
    """Stages, parameters and layout of one model.

    ``prepare`` turns raw windows into the first stage's input, once per client. The output of stage ``output`` is the
    logits (B, K).
    """

    def __init__(
        self,
        shape: InputShape,
        stages: Sequence[Stage],
        groups: Iterable[GroupParameters],
        prepare: Callable[[str, Tensor], Tensor] = raw_windows,
        chunk: int | None = None,
        facts: Mapping[str, str | int] = NO_FACTS,
        warnings: tuple[str, ...] = (),
        output: str | None = None,
    ) -> None:
        """Checks that stages are topologically ordered, that groups and stages fit, and that no layer draws.

        ``chunk``: windows per pass without gradient, where the usual number needs too much memory; ``facts`` and
        ``warnings`` go into the record of every run; ``output``: the stage that gives the logits (the last one).

        Raises:
            UserError: a stage reads what no earlier one writes, or names an unknown group; a group has no stage, a
                trainable parameter no group; a layer is no function of its inputs.
        """
        declared = tuple(groups)
        self.shape, self.stages, self.prepare = shape, tuple(stages), prepare
        self.chunk, self.facts, self.warnings = chunk, facts, warnings
        self.declared, self.output = declared, output or self.stages[-1].spec.id
        self.layout = GroupLayout(g.group() for g in declared)
        self.parameters = {g.id: tuple(p for _, p, _ in g.tensors) for g in declared}
        known = {RAW + m for m in shape.modalities}
        for stage in self.stages:
            if missing := [i for i in stage.spec.inputs if i not in known]:
                raise UserError(
                    f"backbone: stage {stage.spec.id!r} reads {missing}; earlier stages and inputs are {sorted(known)}"
                )
            if unknown := stage.spec.groups - set(self.layout.ids):
                raise UserError(f"backbone: stage {stage.spec.id!r} owns unknown groups {sorted(unknown)}")
            known.add(stage.spec.id)
        check_owners(self.stages, declared)
        check_modules(self.stages)
        self.adapter_scales = tuple(_adapter_scales(self.stages))

    @property
    def specs(self) -> tuple[StageSpec, ...]:
        """The stages without their modules."""
        return tuple(s.spec for s in self.stages)

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        return next(iter(self.parameters.values()))[0].device

    def params(self) -> dict[GroupId, Tensor]:
        """A copy of all groups' vectors."""
        return {j: torch.cat([p.detach().reshape(-1) for p in ps]) for j, ps in self.parameters.items()}

    def load(self, params: Params) -> None:
        """Copies the groups' vectors into the parameters."""
        for j, parameters in self.parameters.items():
            start = 0
            for p in parameters:
                p.data.copy_(params[j][start : start + p.numel()].view(p.shape))
                start += p.numel()

    def forward(self, windows: dict[str, Tensor]) -> Tensor:
        """Logits (B, K) from prepared inputs of all modalities: the plain definition, the tests' oracle."""
        values = {RAW + m: x for m, x in windows.items()}
        for stage in self.stages:
            values[stage.spec.id] = stage.module(*(values[i] for i in stage.spec.inputs))
        logits: Tensor = values[self.output]
        return logits

    def plus(self, stages: Sequence[Stage], groups: Sequence[GroupParameters]) -> Backbone:
        """This backbone and more behind it: same parameters, same logits, ``stages`` and ``groups`` at the end."""
        return Backbone(
            self.shape,
            (*self.stages, *stages),
            (*self.declared, *groups),
            self.prepare,
            self.chunk,
            self.facts,
            self.warnings,
            self.output,
        )


class BackboneConfig(FrozenConfig):
    """Base of every backbone's configuration: frozen, no unknown keys. A subclass has at least ``build``.

    ``has_gemm``: whether ``build`` obeys ``fast``; without it the engine ``gemm`` is refused.
    ``same_speed``: keys that change what is computed and not how long it takes; device profiles hold for all of them.
    """

    has_gemm: ClassVar[bool] = False
    same_speed: ClassVar[frozenset[str]] = frozenset()

    def build(self, shape: InputShape, seed: int, fast: bool = False) -> Backbone:
        """The backbone, initialised from ``seed`` alone; ``fast``: for the engine ``gemm``, same values and layout."""
        raise NotImplementedError(f"{type(self).__name__} has no build(); define one that returns a Backbone")

    def frozen_here(self) -> Mapping[str, str | int]:
        """What ``Backbone.facts`` would say of weights if a run began now; empty where none are here."""
        return {}


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Builds a module with torch's default initialisation from its own seed; the global generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


# Whether two processes hold the same frozen part of a backbone: updates of different models cannot be averaged.


SHA256 = "weights_sha256"

Facts = Mapping[str, str | int]


def differing(expected: Mapping[str, object], found: Mapping[str, object]) -> tuple[str, ...]:
    """The facts in which two frozen parts differ: the hash of the weights where both have one, else all that is known.

    Where weights came from is no difference: the same bits may lie in two folders.
    """
    names = [SHA256] if SHA256 in expected and SHA256 in found else sorted(expected.keys() | found.keys())
    return tuple(name for name in names if expected.get(name) != found.get(name))


def other_frozen(recorded: Mapping[str, object], here: Facts) -> str | None:
    """In what a run's frozen part is not the one that lies ``here`` today (``BackboneConfig.frozen_here``); else None.

    ``weights_sha256 1a2b3c4d5e6f there, 6f5e4d3c2b1a here``.
    """
    names = differing(recorded, here) if here else ()
    return "; ".join(f"{n} {str(recorded.get(n))[:12]} there, {str(here.get(n))[:12]} here" for n in names) or None


def build_same(build: Callable[[], Backbone], expected: Facts) -> Backbone:
    """The backbone, if what is frozen in it is what the run began with; an empty ``expected`` compares nothing.

    Raises:
        UserError: another frozen part; the host is named.
    """
    backbone = build()
    if expected and (names := differing(expected, backbone.facts)):
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


def zero_input(backbone: Backbone, modality: str) -> Tensor:
    """The prepared input of one standardised zero window."""
    channels = dict(backbone.shape.channels)[modality]
    return backbone.prepare(modality, torch.zeros(1, channels, backbone.shape.window, device=backbone.device))
