"""A few cells on shipped data, small enough for a second each."""

from __future__ import annotations

from dataclasses import replace

from relief_ray.studies.plan import Plan
from relief_ray.studies.spec import Level, Spec
from tests.plans import cells_of

TINY = {
    "rounds": 3,
    "data.max_windows_per_client": 6,
    "training.epochs": 1,
    "backbone": {"conv1": 2, "conv2": 2, "steps": 4, "fusion": 8},
    "evaluation.every": 1,
    "tracking.enabled": False,
}


def tiny_grid(methods=("fedavg", "relief"), seeds=(0,), **settings):
    return Spec(
        name="tiny",
        title="tiny cells",
        methods=methods,
        datasets=("dsa_mini",),
        seeds=seeds,
        settings={**TINY, **settings},
    )


def tiny_search(out, seeds=(0,), datasets=("dsa_mini",), **changes):
    """Four tries of FedProx, as ``search_lr`` makes them."""
    out.mkdir(exist_ok=True)
    levels = tuple(
        Level(name=f"lr{rate:g}-mu{mu:g}", settings={"training.lr": rate, "strategy.mu": mu})
        for rate in (1e-3, 1e-2)
        for mu in (0.01, 0.1)
    )
    grid = tiny_grid(methods=("fedprox",), seeds=seeds, **{"evaluation.parts": ["validation"], **changes})
    grid = replace(grid, own={"fedprox": levels}, datasets=datasets, is_search=True)
    grid = replace(grid, folds=(0, 1))
    return Plan(kind="grid", out=out, name="tiny", title="", cells=cells_of(grid))


def tiny_plan(out, **changes):
    """A plan of tiny cells in a folder that exists; nothing is written yet."""
    out.mkdir(exist_ok=True)
    return Plan(kind="grid", out=out, name="tiny", title="tiny cells", cells=cells_of(tiny_grid(**changes)))
