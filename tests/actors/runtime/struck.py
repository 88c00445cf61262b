"""A run whose server does something else first in each round: it dies, its disk is full, it writes down where it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from relief_ray.experiment.setup import Setup


def struck(setup: Setup, strike: Callable[[int], object]) -> Setup:
    """The set-up of a run of which the server calls ``strike`` with each round's number before it begins."""

    class Struck:  # made here, so that it travels by value
        def __init__(self, strategy: object) -> None:
            self.strategy = strategy

        def __getattr__(self, name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(self.strategy, name)

        def allocate(self, state: object, context: object) -> object:
            strike(context.round)
            return self.strategy.allocate(state, context)

    return replace(setup, strategy=Struck(setup.strategy))
