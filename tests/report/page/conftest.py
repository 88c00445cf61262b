"""Stocks of hand-made cells."""

import dataclasses

import pytest

from relief_ray.report.experiments import PAPER_CLOCK
from relief_ray.report.stock import Slot, Stock


def slot(loaded, state="done", why=""):
    kept = loaded if state == "done" else None
    return Slot(name=loaded.where, label=loaded.label, config=loaded.run.config, state=state, why=why, loaded=kept)


def on(loaded, *, by_paper=True, digest=None, where=None, **config):
    """The run with other configuration values, other sources, and the paper's clock beside its own."""
    base = loaded.run.config
    merged = {k: {**base.get(k, {}), **v} if isinstance(v, dict) else v for k, v in config.items()}
    changed = {"config": base | merged} | ({"source_digest": digest} if digest else {})
    rounds = loaded.rounds
    if by_paper:
        rounds = tuple(
            r.model_copy(
                update={
                    "costs": {PAPER_CLOCK: next(iter(r.costs.values())), **r.costs},
                    "totals": {PAPER_CLOCK: next(iter(r.totals.values())), **r.totals},
                }
            )
            for r in rounds
        )
        reference = loaded.run.budget["fedavg_reference"]
        changed["budget"] = {"fedavg_reference": {PAPER_CLOCK: next(iter(reference.values())), **reference}}
    run = loaded.run.model_copy(update=changed)
    return dataclasses.replace(loaded, run=run, rounds=rounds, where=where or loaded.where)


@pytest.fixture(scope="session")
def put_on():
    return on


@pytest.fixture(scope="session")
def stock_of():
    """A stock of finished runs, and of cells in other states given as (run, state, why)."""

    def build(runs=(), others=()):
        return Stock(slots=(*(slot(r) for r in runs), *(slot(*o) for o in others)), titles=("a grid",))

    return build


@pytest.fixture(scope="session")
def usual(family, put_on, stock_of):
    """The family of methods with both clocks."""
    return stock_of([put_on(r) for r in family])
