"""Every backbone that a configuration can name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from relief_ray.models.cnn import CnnConfig
from relief_ray.models.moment_lora import MomentConfig

AnyBackbone = Annotated[CnnConfig | MomentConfig, Field(discriminator="name")]
BACKBONES: Mapping[str, type[CnnConfig] | type[MomentConfig]] = {"cnn": CnnConfig, "moment_lora": MomentConfig}
