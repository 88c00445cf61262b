"""Files of a user's own for tests: a folder that is current and importable, and forgotten afterwards."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

NUMBERS = itertools.count()
Write = Callable[..., str]

METHOD = """
from functools import partial

from relief_ray.core.federated import Strategy
from relief_ray.strategies.common import StrategyConfig, allocate_everything, average


def damped(alpha, reduction, state, reduced, tools):
    after = average(reduction, state, reduced, tools).models["global"]
    before = state.models["global"]
    return type(state)(models={"global": {j: before[j] + alpha * (after[j] - before[j]) for j in before}})


class Mine(StrategyConfig):
    alpha: float = 0.5

    def build(self):
        reduction = self.reduction()
        return Strategy(
            name="mine",
            allocate=allocate_everything,
            reduction=reduction,
            aggregate=partial(damped, self.alpha, reduction),
        )
"""

CLOCK = """
from relief_ray.devices.time import TimeModel, link_times
from relief_ray.core.messages import StageTimes

CONTEXT = 3


class Mine(TimeModel):
    about = "forward passes alone, all devices as slow as the slowest"
    engine = "naive"
    flops_per_s: float
    factor: float = 3.0

    @classmethod
    def build(cls, context):
        return cls(flops_per_s=min(kind.flops_per_s for kind in context.types.values()))

    def times(self, device, load):
        up_s, down_s = link_times(device, load)
        return StageTimes(forward_s=self.factor * load.forward_flops / self.flops_per_s, up_s=up_s, down_s=down_s)


FAST = Mine(flops_per_s=8e12, factor=1.0)


class Profiled(Mine):
    needs_profile = True

    @classmethod
    def build(cls, context):
        return cls(flops_per_s=context.profile.devices["A"].forward_flops_per_s)


class Unfinished(TimeModel):
    pass
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module into the current folder and names it; every test has names of its own."""
    place = tmp_path / "user"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def put(text: str, name: str | None = None) -> str:
        name = name or f"own_{next(NUMBERS)}"
        path = place.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    yield put
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
