"""Presets of `relief-ray run NAME`: their titles. Their specs are in ``studies.preset_specs``.

The library is loaded when a preset is made, not when its title is read: `relief-ray --help` stays quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relief_ray.studies.spec import Spec

PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "demo": "real data that ship with the package: FedAvg and RELIEF, 4 folds of subjects, 7 replicates",
        "quick": "two short rounds of RELIEF in this process, without Ray or MLflow: seconds",
        "dsa": "Daily and Sports Activities: 6 strategies, all 4 folds of held-out subjects, 20 rounds of 2 epochs",
        "moment_tiny": "Backbone 2 (MOMENT with LoRA, tiny, random) on the data of the package: 10 methods, 20 rounds, "
        "one core",
        "pamap2": "PAMAP2 as in the paper: FedAvg, FedProx and RELIEF, 200 rounds of 5 epochs",
        "mhealth": "MHEALTH as in the paper: FedAvg, FedProx and RELIEF, 200 rounds of 5 epochs",
    }
)


def make_preset(name: str) -> Spec:
    """Make the preset called ``name``, one of ``PRESETS``."""
    from relief_ray.studies.preset_specs import SPECS

    return replace(SPECS[name], title=PRESETS[name])
