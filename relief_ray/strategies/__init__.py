"""Federated methods, one short file each; the closed set is ``AnyStrategy``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from relief_ray.strategies.bounds import Central, DropSlow, FullOnly, Local
from relief_ray.strategies.fedavg import FedAvg
from relief_ray.strategies.fedlease import FedLEASE
from relief_ray.strategies.fedprox import FedProx
from relief_ray.strategies.fedsa_lora import FedSALoRA
from relief_ray.strategies.pilot import Pilot
from relief_ray.strategies.relief import VARIANTS, Relief

AnyStrategy = Annotated[
    FedAvg | FedLEASE | FedProx | FedSALoRA | Pilot | Relief | Central | Local | FullOnly | DropSlow,
    Field(discriminator="name"),
]

PRESETS: dict[str, AnyStrategy] = {
    "fedavg": FedAvg(),
    "fedprox": FedProx(),
    "fedsa_lora": FedSALoRA(),
    "fedsa_lora_table": FedSALoRA(dense_local="none"),
    "fedlease": FedLEASE(),
    "pilot": Pilot(),
    **VARIANTS,
    "central": Central(),
    "local": Local(),
    "full_only": FullOnly(),
    "drop_slow": DropSlow(),
}

__all__ = ["PRESETS", "AnyStrategy"]
