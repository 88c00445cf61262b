"""Table I: Backbone 1, all methods and the bounds."""

from tune_configs.grid import BOUNDS, CNN, PAPER, PAPER_METHODS, Axis, Grid


def grid() -> Grid:
    """11 methods and four bounds, 2 datasets, 3 seeds."""
    return Grid(
        name="main_cnn",
        title="Table I: 11 methods on Backbone 1, and the bounds",
        methods=(*PAPER_METHODS, *BOUNDS),
        axes=(Axis(name="backbones", levels=(CNN,)),),
        settings=PAPER,
    )
