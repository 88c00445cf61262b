"""Our own: which device owns which sensors, the premise that the paper never varies."""

from tune_configs.grid import BOUNDS, CNN, PAPER, VARIANTS, Axis, Grid, Level

KINDS = tuple(Level(name=kind, settings={"fleet.coupling": kind}) for kind in ("coupled", "independent", "inverted"))


def grid() -> Grid:
    """FedAvg, V0 to V3, V2 with mandatory blocks, four bounds; slow devices have few sensors, any, or many; 3 seeds."""
    return Grid(
        name="coupling",
        title="which device owns which sensors: coupled, independent, inverted",
        methods=("fedavg", *VARIANTS, "v2_mandatory", *BOUNDS),
        axes=(Axis(name="backbones", levels=(CNN,)), Axis(name="coupling", levels=KINDS)),
        settings=PAPER,
    )
