"""Whether a method of two phases gets beyond its first: a run that never does looks like any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from relief_ray.federated import RoundContext
from relief_ray.strategies import harmony
from relief_ray.strategies.common import StrategyConfig
from relief_ray.strategies.fedlease import FedLEASE
from relief_ray.strategies.harmony import Harmony
from relief_ray.strategies.pilot import Pilot
from relief_ray.strategies.unimodal import UNIMODAL

# By method: the setting that the first phase's length comes from, and what a run is that ends with it.
SETTING: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "fedlease": ("warmup_rounds", "every client trains alone, and no expert or router is ever trained"),
        "harmony": ("unimodal_share", "every sensor's network trains apart, and fusion and head are never trained"),
        "pilot": ("stage1_share", "no adapter of another task is ever mixed in"),
    }
)
# How many more rounds are tried for an advice.
FURTHER = 200


def unreached(config: StrategyConfig, context: RoundContext, is_everybody: bool) -> str | None:
    """What has to be said where no round of the run is of the method's later phase; None where one is.

    ``context``: the last round's; ``is_everybody``: all clients take part in every round.
    """
    if not ends_first(config, context, is_everybody):
        return None
    given = context.num_rounds
    longer = (replace(context, round=n, num_rounds=n) for n in range(given + 1, given + 1 + FURTHER))
    enough = next((c.num_rounds for c in longer if not ends_first(config, c, is_everybody)), None)
    name = config.build().name
    key, what = SETTING[name]
    fixes = [f"rounds={enough} or more"] * (enough is not None)
    fixes += [f"a smaller strategy.{key}"] * (given > 1 or enough is None)
    value = getattr(config, key)
    return f"{name}, {key} = {value:.4g}, rounds = {given}: {what}; set {' or '.join(fixes)}"


def ends_first(config: StrategyConfig, context: RoundContext, is_everybody: bool) -> bool:
    """Whether the round may still be of the first phase; FedLEASE waits up to twice as long for who misses rounds."""
    if isinstance(config, FedLEASE):
        return context.round <= config.warmup_rounds * (1 if is_everybody else 2)
    if isinstance(config, Pilot):
        return config.is_first(context)
    if isinstance(config, Harmony):
        start = harmony.init(config, context.layout, context.fleet, context.streams, {})
        phases = {task.phase for task in harmony.allocate(config, start, context)}
        return phases == {UNIMODAL}
    return False
