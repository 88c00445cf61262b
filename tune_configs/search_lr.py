"""Equal budgets for every method: five learning rates x three values of one parameter, on validation data alone."""

from __future__ import annotations

from tune_configs.grid import CNN, PAPER, PAPER_METHODS, Axis, Grid, Level

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
# Methods without a parameter of their own get the batch size, so that everybody has fifteen tries.
BATCH = ("training.batch_size", "b", (16, 32, 64))
GAMMA = ("strategy.gamma", "gamma", (0.5, 0.9, 0.99))
OWN: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "fedprox": ("strategy.mu", "mu", (0.001, 0.01, 0.1)),
    "relief": GAMMA,
    "v2": GAMMA,
}
METHODS = (*PAPER_METHODS, "v1", "v2", "v3")


def own_parameter(method: str) -> tuple[str, str, tuple[float, ...]]:
    """Key, short name and the three values of the one parameter that is searched beside the learning rate."""
    return OWN.get(method, BATCH)


def tries(method: str) -> tuple[Level, ...]:
    """The fifteen settings of one method."""
    key, short, values = own_parameter(method)
    return tuple(
        Level(name=f"lr{rate:g}-{short}{value:g}", settings={"training.lr": rate, key: value})
        for rate in RATES
        for value in values
    )


def grid() -> Grid:
    """11 methods and V1 to V3, 15 tries each, one seed that no table uses; the test part stays closed."""
    return Grid(
        name="search_lr",
        title="five learning rates x three values of one parameter for every method, validation data only",
        methods=METHODS,
        axes=(Axis(name="backbones", levels=(CNN,)),),
        own={method: tries(method) for method in METHODS},
        seeds=(1000,),
        settings={**PAPER, "evaluation.parts": ["validation"]},
    )
