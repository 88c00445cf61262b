"""Table II: Backbone 2, all methods."""

from tune_configs.grid import LORA, PAPER, PAPER_METHODS, Axis, Grid


def grid() -> Grid:
    """11 methods, 2 datasets, 3 seeds."""
    return Grid(
        name="main_lora",
        title="Table II: 11 methods on Backbone 2",
        methods=PAPER_METHODS,
        axes=(Axis(name="backbones", levels=(LORA,)),),
        settings=PAPER,
    )
