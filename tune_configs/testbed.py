"""Section VII: the testbed's devices; per-device profiling with two clients, the fleet with everyone."""

from tune_configs.grid import BOUNDS, CNN, FIVE_METHODS, LORA, PAPER, Axis, Grid, Level


def _two(dataset: str, subjects: tuple[int, int]) -> Level:
    """Orin-1 as Type A with every sensor, Orin-2 as Type C with the accelerometer alone; one subject each."""
    settings = {"data.subjects": subjects, "fleet.counts": (1, 0, 1), "rounds": 100}
    return Level(name="device", settings=settings, datasets=(dataset,))


SCOPES = (
    _two("pamap2", (101, 102)),
    _two("mhealth", (1, 2)),
    _two("dsa_within", (1, 2)),
    Level(name="fleet", settings={"rounds": 200}),
)


def grid() -> Grid:
    """Five methods, four bounds, 2 backbones, 2 datasets, 3 seeds; 100 rounds on two devices, 200 with the fleet."""
    return Grid(
        name="testbed",
        title="Section VII: testbed devices, per device (100 rounds) and as a fleet (200 rounds)",
        methods=(*FIVE_METHODS, *BOUNDS),
        axes=(Axis(name="backbones", levels=(CNN, LORA)), Axis(name="scopes", levels=SCOPES)),
        settings={**PAPER, "fleet.preset": "testbed"},
    )
