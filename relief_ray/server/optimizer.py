"""The server's step: treats the change that aggregation makes to a model as a pseudo-gradient and applies an optimizer.

With ``D = aggregated - before`` of a group, learning rate ``a``, momentum ``b``, decay of squares ``c`` and ``t``:
``fedavgm``: ``m <- b m + D``, ``theta <- theta + a m`` (Hsu et al. 2019); ``fedadam``, ``fedyogi``:
``m <- b m + (1 - b) D``, ``v <- c v + (1 - c) D^2`` or ``v <- v - (1 - c) D^2 sign(v - D^2)``,
``theta <- theta + a m / (sqrt(v) + t)`` (Reddi et al. 2021, Algorithm 2), from ``m = 0`` and ``v = t^2``. Computed
in float64; models and moments are kept in float32. A group that no client sent for a model keeps value and moments.

Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019.
Reddi et al., "Adaptive Federated Optimization", ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import ClassVar, Final, Literal

import torch
from pydantic import Field
from torch import Tensor

from relief_ray.core.groups import GroupId, Params
from relief_ray.core.messages import ServerState
from relief_ray.core.protocols import ModelGroups
from relief_ray.support.frozen import ReadWith, SwitchedConfig

# The moments' names in ``ServerState.tensors``: ``server.m/global/fusion.B``.
MOMENTS: Final = "server."
_FIRST, _SECOND = f"{MOMENTS}m", f"{MOMENTS}v"


class ServerConfig(SwitchedConfig):
    """The server's step after aggregation, for methods that average."""

    _section = "server"
    read_with: ClassVar[ReadWith] = (
        ("optimizer", ("fedavgm", "fedadam", "fedyogi"), ("lr", "momentum")),
        ("optimizer", ("fedadam", "fedyogi"), ("beta2", "tau")),
    )

    optimizer: Literal["none", "fedavgm", "fedadam", "fedyogi"] = "none"
    """Rule of the server's step; ``none`` takes the aggregated model as it is."""
    lr: float | None = Field(default=None, gt=0.0)
    """Learning rate ``a``; None: 1 with ``fedavgm``, 0.01 with the others."""
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Momentum ``b`` of the server's step."""
    beta2: float = Field(default=0.99, ge=0.0, lt=1.0)
    """Decay ``c`` of the squares in ``fedadam`` and ``fedyogi``."""
    tau: float = Field(default=1e-3, gt=0.0)
    """Constant ``t`` of `fedadam` and `fedyogi`. It bounds the step of a value that hardly changes."""

    @property
    def rate(self) -> float:
        """``a``, decided."""
        return self.lr if self.lr is not None else 1.0 if self.optimizer == "fedavgm" else 0.01


def server_step(config: ServerConfig, before: ServerState, after: ServerState, averaged: ModelGroups) -> ServerState:
    """Return ``after`` with the optimizer's step in place of the aggregated one, and the new moments (``ServerStep``).

    Groups that are not ``averaged`` are taken as aggregated, and so are models that ``before`` does not have. Moments
    stand in ``tensors`` under ``MOMENTS``, whatever the method does with its tensors.
    """
    if config.optimizer == "none":
        return after
    moments = {name: value for name, value in before.tensors.items() if name.startswith(MOMENTS)}
    models: dict[str, Params] = {}
    for name, theta in after.models.items():
        start, groups = before.models.get(name), averaged.get(name, ())
        stepped = {} if start is None else _step_model(config, name, (start, theta), groups, moments)
        models[name] = {**theta, **stepped}
    own = {name: value for name, value in after.tensors.items() if not name.startswith(MOMENTS)}
    return replace(after, models=models, tensors={**own, **moments})


def _step_model(
    config: ServerConfig,
    model: str,
    values: tuple[Params, Params],
    groups: Collection[GroupId],
    moments: dict[str, Tensor],
) -> dict[GroupId, Tensor]:
    """The new values of the model's ``groups``, from those before and as aggregated; updates ``moments``."""
    before, after = values
    stepped = {}
    for j in (j for j in after if j in groups):
        start = before[j].to(torch.float64)
        change = after[j].to(torch.float64) - start
        names = [f"{kind}/{model}/{j}" for kind in (_FIRST, _SECOND)]
        moved, new = _moved(config, change, [moments.get(name) for name in names])
        stepped[j] = (start + config.rate * moved).to(after[j].dtype)
        moments.update({name: value.to(torch.float32) for name, value in zip(names, new, strict=False)})
    return stepped


def _moved(config: ServerConfig, change: Tensor, old: list[Tensor | None]) -> tuple[Tensor, list[Tensor]]:
    """The step before the learning rate, and the new moments, all in float64."""
    first = torch.zeros_like(change) if old[0] is None else old[0].to(torch.float64)
    if config.optimizer == "fedavgm":
        velocity = config.momentum * first + change
        return velocity, [velocity]
    square, b, c = change.square(), config.momentum, config.beta2
    second = torch.full_like(change, config.tau**2) if old[1] is None else old[1].to(torch.float64)
    mean = b * first + (1.0 - b) * change
    if config.optimizer == "fedadam":
        second = c * second + (1.0 - c) * square
    else:
        second = second - (1.0 - c) * square * torch.sign(second - square)
    return mean / (second.sqrt() + config.tau), [mean, second]
