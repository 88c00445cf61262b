"""Fig. 2 (cosines of updates in pairs) and Fig. 3 (divergence over the phases of training)."""

from tune_configs.grid import CNN, LORA, PAPER, Axis, Grid


def grid() -> Grid:
    """FedAvg as in the paper, RELIEF beside it; PAMAP2 on both backbones, every round compared in pairs."""
    return Grid(
        name="diagnostics",
        title="Figs. 2 and 3: cosine and divergence of updates per block",
        methods=("fedavg", "relief"),
        datasets=("pamap2",),
        axes=(Axis(name="backbones", levels=(LORA, CNN)),),
        seeds=(0,),
        settings={**PAPER, "record.pairwise_every": 1},
    )
