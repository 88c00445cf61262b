"""The declarations that a backbone is made of: its input shape, its stages with modules, its parameter groups.

Legend for shapes: B batch, C channels, T samples, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from relief_ray.core.groups import GroupId, Kind, ParamGroup, Role, pack
from relief_ray.core.stages import StageSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class InputShape:
    """The data's shape that a backbone is built for.

    Attributes:
        channels: (modality, number of channels) in canonical order.
        window: samples per window.
        num_classes: number of classes K.
    """

    channels: tuple[tuple[str, int], ...]
    window: int
    num_classes: int

    @property
    def num_channels(self) -> int:
        """Channels of all modalities together."""
        return sum(channels for _, channels in self.channels)

    @property
    def modalities(self) -> tuple[str, ...]:
        """Modalities in canonical order."""
        return tuple(m for m, _ in self.channels)


def noise_windows(shape: InputShape, num: int, seed: int = 0) -> dict[str, Tensor]:
    """``num`` windows (num, C, T) of noise by modality, the same ones for a seed."""
    noise = torch.Generator().manual_seed(seed)
    return {m: torch.randn(num, channels, shape.window, generator=noise) for m, channels in shape.channels}


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A stage and the module that computes it: ``module(*inputs) -> output``, batch first everywhere.

    Attributes:
        spec: the stage's place in the forward graph and its groups.
        module: computes the stage; it holds the parameters of the stage's groups.
        frozen: the same stage without its groups' parameters, where it has others that are never trained: their FLOPs
            are counted apart.
        pool: turns the output into features (B, D) for classifiers that read the model early; None: the output is
            (B, D) already.
        step_bytes: bytes that the forward pass keeps of a window for a backward pass, where that is so much that large
            batches should be split; 0: negligible.
        switched: the layers of ``module`` that work otherwise in training than in a test (dropout, batch norm). They
            are in test mode but for the steps of local training; a backbone finds torch's own by itself.
        takes_single_rows: whether an input of one row, an absent sensor's, may stand for the whole batch's.
    """

    spec: StageSpec
    module: nn.Module
    frozen: nn.Module | None = None
    pool: nn.Module | None = None
    step_bytes: int = 0
    switched: tuple[nn.Module, ...] = ()
    takes_single_rows: bool = False


class Computed(nn.Module):
    """``function(*inputs)``, or ``function(of, *inputs)`` with the parameters of a layer ``of``."""

    def __init__(self, function: Callable[..., Tensor], of: nn.Module | None = None) -> None:
        """Share the layer's parameters."""
        super().__init__()
        self.function, self.of = function, of

    def forward(self, *inputs: Tensor) -> Tensor:
        """What the function gives."""
        return self.function(*inputs) if self.of is None else self.function(self.of, *inputs)


def copied(module: nn.Module, anew: Collection[int] = ()) -> nn.Module:
    """A copy of the module that shares its tensors but for those of the ids ``anew``, which are copied, too."""
    tensors = (*module.parameters(), *module.buffers())
    return deepcopy(module, {id(t): t for t in tensors if id(t) not in anew})


def kind_of(name: str) -> Kind:
    """The kind of a parameter of ours by its name in its module, whose last part decides."""
    kinds: dict[str, Kind] = {"bias": "bias", "lora_A": "lora_a", "lora_B": "lora_b"}
    return kinds.get(name.rpartition(".")[2], "weight")


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupParameters:
    """A parameter group's declaration.

    Attributes:
        id: the group's name.
        role: what the group is in the model (encoder, fusion_a, head, ...).
        modality: the modality that it belongs to; None: shared.
        layer: the layer that it belongs to, from 1; None: no layer.
        tensors: (name, parameter, kind) in storage order.
        member: number of the expert or task adapter, from 1; None: no such copy.
    """

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


# A stage, and the one group that it owns.
TrainedStage = tuple[Stage, GroupParameters]


def trained_stage(
    name: str,
    inputs: tuple[str, ...],
    module: nn.Module,
    role: Role,
    *,
    group: GroupId | None = None,
    of: nn.Module | Iterable[tuple[str, nn.Parameter]] | None = None,
    modality: str | None = None,
    layer: int | None = None,
    member: int | None = None,
    feature: bool = False,
    frozen: nn.Module | None = None,
    pool: nn.Module | None = None,
    step_bytes: int = 0,
    takes_single_rows: bool = False,
) -> TrainedStage:
    """A stage and the one group that it owns, called as the stage unless ``group`` names it.

    ``of``: the tensors of the group, or the module that has them; by default all of ``module``, in its order. Their
    kinds are by their names.
    """
    of = module if of is None else of
    named = of.named_parameters() if isinstance(of, nn.Module) else of
    tensors = tuple((key, p, kind_of(key)) for key, p in named)
    owned = GroupParameters(id=group or name, role=role, modality=modality, layer=layer, tensors=tensors, member=member)
    spec = StageSpec(id=name, inputs=inputs, groups=frozenset([owned.id]), modality=modality, feature=feature)
    stage = Stage(
        spec=spec,
        module=module,
        frozen=frozen,
        pool=pool,
        step_bytes=step_bytes,
        takes_single_rows=takes_single_rows,
    )
    return stage, owned


def apart(parts: Iterable[TrainedStage]) -> tuple[list[Stage], list[GroupParameters]]:
    """The stages of ``trained_stage``, and the groups."""
    pairs = list(parts)
    return [stage for stage, _ in pairs], [group for _, group in pairs]


def in_order(groups: Iterable[GroupParameters]) -> list[GroupParameters]:
    """Groups in the order of Backbone 1: column blocks, the shared part of the fusion, encoders, head."""
    order = ("fusion_a", "fusion_b", "encoder", "head")
    return sorted(groups, key=lambda g: order.index(g.role))
