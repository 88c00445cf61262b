"""RELIEF and its ablations as named configurations: V0 to V3 of the paper's Table III, and three variants of ours."""

from __future__ import annotations

from relief_ray.strategies.common import Preset
from relief_ray.strategies.relief.strategy import Relief

PRESETS = {
    "relief": Preset(Relief()),
    "v1": Preset(
        Relief(select="all"),
        title="RELIEF without elastic training (V1)",
        kind="ablation",
        about="RELIEF without elastic training: all groups a client can reach, every round",
        search={},
    ),
    "v2": Preset(
        Relief(cohort=False, mandatory=False),
        title="RELIEF without cohort-wise aggregation (V2)",
        kind="ablation",
        about="RELIEF averaging over everybody (absent = no change); blocks not forced",
    ),
    "v3": Preset(
        Relief(select="random", mandatory=False),
        title="RELIEF with random allocation (V3)",
        kind="ablation",
        about="RELIEF with random groups instead of divergent ones; blocks not forced",
    ),
    "v2_mandatory": Preset(
        Relief(cohort=False),
        title="V2 with mandatory blocks",
        kind="ablation of ours",
        about="V2 with the own sensors' blocks still forced: only dilution differs",
    ),
    "v3_mandatory": Preset(
        Relief(select="random"),
        title="V3 with mandatory blocks",
        kind="ablation of ours",
        about="V3 with the own sensors' blocks still forced: only the choice differs",
    ),
    "mandatory_only": Preset(
        Relief(select="none"),
        title="RELIEF, mandatory blocks alone",
        kind="ablation of ours",
        about="the own sensors' blocks and nothing else",
    ),
}
