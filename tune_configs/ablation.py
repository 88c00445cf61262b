"""Table III: V0 to V3 on both backbones, and our one-field variants; both readings of a missing modality."""

from tune_configs.grid import BOUNDS, CNN, LORA, OUR_VARIANTS, PAPER, VARIANTS, Axis, Grid, Level

# Eq. (2) feeds zeros into the encoder, Section III-B leaves its features zero.
MISSING = (
    Level(name="zero_input", settings={"training.missing": "zero_input"}),
    Level(name="zero_feature", settings={"training.missing": "zero_feature"}),
)


def grid() -> Grid:
    """FedAvg (the 1.00x), V0 to V3, three variants, four bounds; 2 backbones, 2 datasets, 2 missing modes, 3 seeds."""
    return Grid(
        name="ablation",
        title="Table III: V0 to V3 and three variants of ours, the bounds, both backbones, both missing modes",
        methods=("fedavg", *VARIANTS, *OUR_VARIANTS, *BOUNDS),
        axes=(Axis(name="backbones", levels=(CNN, LORA)), Axis(name="missing", levels=MISSING)),
        settings=PAPER,
    )
