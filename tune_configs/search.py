"""Equal budgets for every method: five learning rates x three values of one parameter, on validation data alone.

``search_lr`` has the paper's Adam, ``search_sgd`` SGD with momentum. ``search_optimizer`` is the small one: three rates
of each, every method's own numbers as they are.
"""

from __future__ import annotations

from dataclasses import replace

from relief_ray.report.paper import PAPER_METHODS
from relief_ray.strategies import search_of
from relief_ray.studies.spec import CNN, PAPER, SGD, SGD_RATES, VARIANTS, Axis, Grid, Level, Settings

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
METHODS = (*PAPER_METHODS, *VARIANTS)
# Of the small search: around the paper's rate for Adam, the best three of `frontier_rates` for SGD.
_FEW_RATES, _FEW_SGD_RATES = (3e-4, 1e-3, 3e-3), (0.03, 0.1, 0.3)


# For methods without a number of their own, so that every method has fifteen tries.
BATCH = tuple(Level(name=f"b{size}", settings={"training.batch_size": size}) for size in (16, 32, 64))


def own_levels(method: str) -> tuple[Level, ...]:
    """The three values of the one parameter that is searched beside the learning rate; ``method``: as in ``Grid``."""
    search = search_of(method).items()
    levels = (Level(name=n, settings={f"strategy.{k}": v for k, v in tried.items()}) for n, tried in search)
    return tuple(levels) or BATCH


def tries(method: str) -> tuple[Level, ...]:
    """The fifteen settings of one method with Adam."""
    return _crossed("lr", RATES, {}, method)


def _sgd_tries(method: str) -> tuple[Level, ...]:
    """The fifteen settings of one method with SGD, which are frozen with its momentum and clipping."""
    return _crossed("sgd", SGD_RATES, SGD, method)


def _crossed(name: str, rates: tuple[float, ...], optimizer: Settings, method: str) -> tuple[Level, ...]:
    """Every rate of an optimizer with every value of the method's own parameter."""
    return tuple(
        Level(name=f"{name}{rate:g}-{level.name}", settings={"training.lr": rate, **optimizer, **level.settings})
        for rate in rates
        for level in own_levels(method)
    )


def grid() -> Grid:
    """11 methods and V1 to V3, 15 tries each, one seed that no table uses; the test part stays closed."""
    return Grid(
        name="search_lr",
        title="five learning rates x three values of one parameter for every method, validation data only",
        methods=METHODS,
        axes=(Axis(name="backbones", levels=(CNN,)),),
        own={method: tries(method) for method in METHODS},
        tries=tries,
        seeds=(1000,),
        settings={**PAPER, "evaluation.parts": ["validation"]},
        is_search=True,
    )


def sgd_grid() -> Grid:
    """``search_lr`` with SGD (momentum 0.9, gradients clipped to norm 1) and its own five rates; same seeds."""
    return replace(
        grid(),
        name="search_sgd",
        title="five learning rates of SGD x three values of one parameter for every method, validation data only",
        own={method: _sgd_tries(method) for method in METHODS},
        tries=_sgd_tries,
    )


def _optimizer_tries(method: str) -> tuple[Level, ...]:
    """Three rates of Adam and three of SGD; the same for every method, whose own numbers stay as they are."""
    optimizers: tuple[tuple[str, tuple[float, ...], Settings], ...] = (
        ("lr", _FEW_RATES, {"training.optimizer": "adam"}),
        ("sgd", _FEW_SGD_RATES, SGD),
    )
    return tuple(
        Level(name=f"{name}{rate:g}", settings={"training.lr": rate, **optimizer})
        for name, rates, optimizer in optimizers
        for rate in rates
    )


def optimizer_grid() -> Grid:
    """Adam or SGD, three rates of each, for 11 methods and V1 to V3; two seeds that no table uses, validation data."""
    return replace(
        grid(),
        name="search_optimizer",
        title="Adam or SGD at three rates each for every method, validation data only",
        own={method: _optimizer_tries(method) for method in METHODS},
        tries=_optimizer_tries,
        seeds=(1000, 1001),
    )
