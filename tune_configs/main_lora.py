"""Table II: Backbone 2, all methods and the bounds."""

from tune_configs.grid import BOUNDS, LORA, PAPER, PAPER_METHODS, Axis, Grid


def grid() -> Grid:
    """11 methods and four bounds, 2 datasets, 3 seeds."""
    return Grid(
        name="main_lora",
        title="Table II: 11 methods on Backbone 2, and the bounds",
        methods=(*PAPER_METHODS, *BOUNDS),
        axes=(Axis(name="backbones", levels=(LORA,)),),
        settings=PAPER,
    )
