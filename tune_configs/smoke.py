"""Does a grid run at all? Twelve cells on the data that ship with the package, in a minute or two."""

from tune_configs.grid import Grid


def grid() -> Grid:
    """FedAvg, V0 and V1, two folds, two seeds, three short rounds."""
    return Grid(
        name="smoke",
        title="twelve short cells on shipped real data: FedAvg, V0 (RELIEF) and V1, two folds, two seeds",
        methods=("fedavg", "relief", "v1"),
        datasets=("dsa_mini_held_out",),
        folds=(0, 1),
        seeds=(0, 1),
        settings={"rounds": 3, "evaluation.every": 1, "record.checkpoint_every": 1},
    )
