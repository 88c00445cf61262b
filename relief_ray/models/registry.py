"""Every backbone that a configuration can name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from relief_ray.errors import nearest
from relief_ray.models.cnn import CnnConfig
from relief_ray.models.moment_lora import MomentConfig

AnyBackbone = Annotated[CnnConfig | MomentConfig, Field(discriminator="name")]
BACKBONES: Mapping[str, type[CnnConfig] | type[MomentConfig]] = {"cnn": CnnConfig, "moment_lora": MomentConfig}


def by_name(value: object) -> object:
    """A backbone given by its name, or by its keys alone (then it is Backbone 1).

    Raises:
        ValueError: no such backbone; the nearest is named.
    """
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        return value
    name = value.get("name", CnnConfig().name)
    if name not in BACKBONES:
        raise ValueError(f"unknown backbone {name!r}{nearest(str(name), BACKBONES)}; known: {', '.join(BACKBONES)}")
    return {"name": name, **value}
