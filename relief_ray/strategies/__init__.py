"""Federated methods, one short file each; the closed set is ``AnyStrategy``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from relief_ray.strategies.bounds import Central, DropSlow, FullOnly, Local
from relief_ray.strategies.darkdistill.strategy import DarkDistill
from relief_ray.strategies.fedavg import FedAvg
from relief_ray.strategies.fedel.strategy import FedEL
from relief_ray.strategies.fedicu.strategy import FedICU
from relief_ray.strategies.fedlease.strategy import FedLEASE
from relief_ray.strategies.fedprox import FedProx
from relief_ray.strategies.fedsa_lora import FedSALoRA
from relief_ray.strategies.harmony.strategy import Harmony
from relief_ray.strategies.helora.strategy import HeLoRA
from relief_ray.strategies.pilot.strategy import Pilot
from relief_ray.strategies.relief.strategy import VARIANTS, Relief

AnyStrategy = Annotated[
    FedAvg
    | FedProx
    | DarkDistill
    | FedEL
    | FedSALoRA
    | FedICU
    | Harmony
    | HeLoRA
    | FedLEASE
    | Pilot
    | Relief
    | Central
    | Local
    | FullOnly
    | DropSlow,
    Field(discriminator="name"),
]

PRESETS: dict[str, AnyStrategy] = {
    "fedavg": FedAvg(),
    "fedprox": FedProx(),
    "darkdistill": DarkDistill(),
    "darkdistill_table": DarkDistill(upload="full", weighting="uniform"),
    "fedel": FedEL(),
    "fedel_table": FedEL(speedup="table"),
    "fedsa_lora": FedSALoRA(),
    "fedsa_lora_table": FedSALoRA(dense_local="none"),
    "fedicu": FedICU(),
    "fedicu_table": FedICU(kappa=1.0, freeze_unimportant=True),
    "harmony": Harmony(),
    "harmony_table": Harmony(fusion_federation="none", protocol="one_phase"),
    "helora": HeLoRA(),
    "helora_table": HeLoRA(rank_share={"A": 0.75, "B": 0.75, "C": 0.75}, width={"A": 1.0, "B": 0.89, "C": 0.67}),
    "fedlease": FedLEASE(),
    "pilot": Pilot(),
    **VARIANTS,
    "central": Central(),
    "local": Local(),
    "full_only": FullOnly(),
    "drop_slow": DropSlow(),
}

__all__ = ["PRESETS", "AnyStrategy"]
