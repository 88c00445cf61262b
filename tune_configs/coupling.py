"""Our own: which device owns which sensors, the premise that the paper never varies."""

from tune_configs.grid import CNN, PAPER, VARIANTS, Axis, Grid, Level

KINDS = tuple(Level(name=kind, settings={"fleet.coupling": kind}) for kind in ("coupled", "independent", "inverted"))


def grid() -> Grid:
    """FedAvg and V0 to V3, few sensors on slow devices, anywhere, or on fast devices; Backbone 1, 3 seeds."""
    return Grid(
        name="coupling",
        title="which device owns which sensors: coupled, independent, inverted",
        methods=("fedavg", *VARIANTS),
        axes=(Axis(name="backbones", levels=(CNN,)), Axis(name="coupling", levels=KINDS)),
        settings=PAPER,
    )
