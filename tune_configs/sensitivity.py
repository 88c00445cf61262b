"""Tables IV and V: how far apart devices are, and how many clients there are."""

from tune_configs.grid import BOUNDS, CNN, FIVE_METHODS, LORA, PAPER, Axis, Grid, Level


def _clients(number: int) -> Level:
    return Level(name=f"n{number}", settings={"data.num_clients": number})


# One factor at a time; the moderate gap with one client per subject is the common point.
FACTORS = (
    Level(name="moderate"),
    Level(name="gap10", settings={"fleet.gap": 10.0}),
    Level(name="gap100", settings={"fleet.gap": 100.0}),
    *(_clients(number) for number in (20, 50, 100)),
)


def grid() -> Grid:
    """Gap 10, 55, 100 and N = 8 or 10, 20, 50, 100; five methods, four bounds, 2 backbones, 2 datasets, 3 seeds."""
    return Grid(
        name="sensitivity",
        title="Tables IV and V: heterogeneity gap and number of clients, five methods",
        methods=(*FIVE_METHODS, *BOUNDS),
        axes=(Axis(name="backbones", levels=(CNN, LORA)), Axis(name="factors", levels=FACTORS)),
        settings=PAPER,
    )
