"""Equal budgets for every method: five learning rates x three values of one parameter, on validation data alone."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tune_configs.grid import CNN, PAPER, PAPER_METHODS, Axis, Grid, Level, Settings

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
METHODS = (*PAPER_METHODS, "v1", "v2", "v3")


def _levels(key: str, short: str, values: tuple[object, ...]) -> tuple[Level, ...]:
    return tuple(Level(name=f"{short}{_shown(value)}", settings={key: value}) for value in values)


def _shown(value: object) -> str:
    return "auto" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _sizes(middle: float, least: float, width_b: float, width_c: float) -> Settings:
    """Ranks and, without LoRA, widths of types B and C; Type A always has all."""
    return {
        "strategy.rank_share": {"A": 1.0, "B": middle, "C": least},
        "strategy.width": {"A": 1.0, "B": width_b, "C": width_c},
    }


# How much slower than the least possible round RELIEF may be. What it may still train then differs; gamma only
# smooths a ranking that seldom decides anything (see the report's count of choices).
DEADLINE = _levels("strategy.deadline_fraction", "deadline", (None, 0.6, 0.8))
# FedAvg, FedSA-LoRA and V1 have no number of their own: they get the batch size, so that everybody has fifteen tries.
BATCH = _levels("training.batch_size", "b", (16, 32, 64))
OWN: Mapping[str, tuple[Level, ...]] = MappingProxyType(
    {
        "fedprox": _levels("strategy.mu", "mu", (0.001, 0.01, 0.1)),
        "fedel": _levels("strategy.beta", "beta", (0.3, 0.6, 0.9)),
        "fedicu": _levels("strategy.kappa", "kappa", (0.6, 0.8, 0.95)),
        "darkdistill": _levels("strategy.kd_epochs", "kd", (1, 2, 4)),
        "harmony": _levels("strategy.encoder_lr", "encoder", (0.03, 0.1, 0.3)),
        "pilot": _levels("strategy.neighbours", "neighbours", (1, 3, 5)),
        "helora": (
            Level(name="sizes0.5", settings=_sizes(0.5, 0.25, 0.75, 0.5)),
            Level(name="sizes0.75", settings=_sizes(0.75, 0.5, 0.875, 0.75)),
            Level(name="sizes0.9", settings=_sizes(0.875, 0.75, 0.95, 0.9)),
        ),
        "fedlease": _levels("strategy.warmup_rounds", "warmup", (2, 5, 10)),
        "relief": DEADLINE,
        "v2": DEADLINE,
        "v3": DEADLINE,
    }
)


def own_levels(method: str) -> tuple[Level, ...]:
    """The three values of the one parameter that is searched beside the learning rate."""
    return OWN.get(method, BATCH)


def tries(method: str) -> tuple[Level, ...]:
    """The fifteen settings of one method."""
    return tuple(
        Level(name=f"lr{rate:g}-{own.name}", settings={"training.lr": rate, **own.settings})
        for rate in RATES
        for own in own_levels(method)
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
        is_search=True,
    )
