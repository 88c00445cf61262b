"""Resolves and builds a configuration's backbone: one that is built in, or a user's own by its import path."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from relief_ray.core.groups import all_finite, described
from relief_ray.core.stages import Engine
from relief_ray.models.backbone import Backbone, BackboneConfig, InputShape, noise_inputs
from relief_ray.models.cnn import CnnConfig
from relief_ray.models.module import PlainBackbone
from relief_ray.models.moment.backbone import MomentConfig
from relief_ray.plugins.blame import call_users, with_line
from relief_ray.plugins.load import configured, is_own, is_path, path_of, what_to_type
from relief_ray.support.errors import UserCodeError, UserError, nearest, shown
from relief_ray.support.frozen import strictly

AnyBackbone = Annotated[CnnConfig | MomentConfig, Field(discriminator="name")]
BACKBONES: Mapping[str, type[CnnConfig] | type[MomentConfig]] = {"cnn": CnnConfig, "moment_lora": MomentConfig}

_KNOWN: TypeAdapter[AnyBackbone] = TypeAdapter(AnyBackbone)


def choose_backbone(value: object) -> BackboneConfig:
    """The configuration of a backbone given by name, by import path, or by its keys alone (then it is Backbone 1).

    Raises:
        ValueError: no such backbone; the nearest is named.
        UserError: nothing usable is at the import path.
    """
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        return value if isinstance(value, BackboneConfig) else strictly(_KNOWN, value)
    name = value.get("name", CnnConfig().name)
    if is_path(name):
        return configured(value, "backbone", BackboneConfig)
    if not isinstance(name, str) or name not in BACKBONES:
        if hint := what_to_type(str(name), BackboneConfig):
            raise ValueError(f"unknown backbone {shown(name)}: {hint}")
        raise ValueError(
            f"unknown backbone {shown(name)}{nearest(str(name), BACKBONES)}; known: {', '.join(BACKBONES)}"
        )
    return strictly(_KNOWN, {"name": name, **value})


def backbone_name(config: BackboneConfig) -> str:
    """The backbone's name in a configuration: ``cnn``, or ``my.module:MyBackbone``."""
    return path_of(type(config)) if is_own(type(config)) else str(config.model_dump()["name"])


def require_engine(config: BackboneConfig, engine: Engine) -> None:
    """Refuse an engine for which a backbone has no stages.

    Raises:
        UserError: it has none.
    """
    if engine not in ("naive", "reuse", *config.engines):
        raise UserError(
            f"training.engine = {engine!r}: backbone {backbone_name(config)} has no stages for it; take 'reuse' or "
            "'naive' (a backbone whose build() has some says so by `engines`)"
        )


def build_checked(config: BackboneConfig, shape: InputShape, seed: int, engine: Engine) -> Backbone:
    """Build the backbone; one of a user's own is also tried on two windows of noise.

    Raises:
        UserCodeError: a user's own class raises an error, or builds something that is no backbone, or whose logits
            are no finite float32 (B, K); function, file and line are named.
        UserError: as ``build`` raised it.
    """
    if not is_own(type(config)):
        return config.build(shape, seed, engine=engine)
    function = config.module if isinstance(config, PlainBackbone) else config.build
    try:
        backbone = call_users(partial(config.build, shape, seed, engine=engine))
        fault = _fault_of(backbone, shape)
    except UserError as error:
        is_theirs = isinstance(config, PlainBackbone) and type(config).module is not PlainBackbone.module
        if isinstance(error, UserCodeError) or not is_theirs:
            raise
        fault = str(error)  # what is derived of the module did not fit
    if fault:
        raise UserCodeError(with_line(function, fault))
    return backbone


def _fault_of(backbone: object, shape: InputShape) -> str:
    """Fault that a test pass of a backbone shows; empty where there is none."""
    if not isinstance(backbone, Backbone):
        return f"build returned a {type(backbone).__name__}, expected a {Backbone.__module__}.{Backbone.__name__}"
    wrong = next((j for j, theta in backbone.params().items() if not all_finite(theta)), None)
    if wrong is not None:
        return f"group {wrong!r} has NaN or infinity, expected finite initial values"
    return logits_violation(backbone, shape, 2)


@torch.no_grad()
def logits_violation(backbone: Backbone, shape: InputShape, num: int) -> str:
    """What is wrong with the logits of ``num`` windows of noise, expected (num, K); empty: nothing."""
    logits: object = backbone.forward(noise_inputs(backbone, shape, num))
    found = f"{num} windows of noise give"
    if not isinstance(logits, Tensor) or logits.shape != (num, shape.num_classes) or logits.dtype != torch.float32:
        return f"{found} {described(logits)}, expected float32 ({num}, {shape.num_classes})"
    return "" if all_finite(logits) else f"{found} logits that are not finite, expected finite ones"
