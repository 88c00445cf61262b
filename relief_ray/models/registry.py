"""Resolves a configuration's backbone: one that is built in, or a user's own by its import path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, TypeAdapter

from relief_ray.errors import UserError, nearest
from relief_ray.models.backbone import BackboneConfig
from relief_ray.models.cnn import CnnConfig
from relief_ray.models.moment.backbone import MomentConfig
from relief_ray.plugins import configured, is_own, is_path, path_of, what_to_type

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
        return value if isinstance(value, BackboneConfig) else _KNOWN.validate_python(value)
    name = value.get("name", CnnConfig().name)
    if is_path(name):
        return configured(value, "backbone", BackboneConfig)
    if name not in BACKBONES and (hint := what_to_type(str(name), BackboneConfig)):
        raise ValueError(f"unknown backbone {name!r}: {hint}")
    if name not in BACKBONES:
        raise ValueError(f"unknown backbone {name!r}{nearest(str(name), BACKBONES)}; known: {', '.join(BACKBONES)}")
    return _KNOWN.validate_python({"name": name, **value})


def backbone_name(config: BackboneConfig) -> str:
    """The backbone's name in a configuration: ``cnn``, or ``my.module:MyBackbone``."""
    return path_of(type(config)) if is_own(type(config)) else str(config.model_dump()["name"])


def require_gemm(config: BackboneConfig) -> None:
    """Refuse the engine ``gemm`` for a backbone without stages for it.

    Raises:
        UserError: the backbone has no stages for it.
    """
    if not config.has_gemm:
        raise UserError(
            f"training.engine = 'gemm': backbone {backbone_name(config)} has no stages for it; take 'reuse' or "
            "'naive' (a backbone whose build() obeys `fast` says so by has_gemm = True)"
        )
