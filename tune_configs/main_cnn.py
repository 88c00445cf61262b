"""Table I: Backbone 1, all methods."""

from tune_configs.grid import CNN, PAPER, PAPER_METHODS, Axis, Grid


def grid() -> Grid:
    """11 methods, 2 datasets, 3 seeds."""
    return Grid(
        name="main_cnn",
        title="Table I: 11 methods on Backbone 1",
        methods=PAPER_METHODS,
        axes=(Axis(name="backbones", levels=(CNN,)),),
        settings=PAPER,
    )
