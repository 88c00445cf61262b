"""What strategy files share: their frozen configuration's base and the plain FedAvg pieces."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal

from pydantic import model_validator

from relief_ray.federated import RoundContext, ServerTools, Strategy
from relief_ray.frozen import FrozenConfig
from relief_ray.messages import Assignment, ClientInfo, Fleet, Reduced, ServerState, StageTimes, WeightedSum
from relief_ray.server.aggregation import apply_step, by_samples, mean_step, one_bucket, over_participants, uniform

Weighting = Literal["uniform", "samples"]
# A switch, the value it must have, and the keys that are read then alone.
ReadWith = tuple[tuple[str, object, tuple[str, ...]], ...]


class StrategyConfig(FrozenConfig):
    """Base of every strategy's configuration: frozen, no unknown keys. A subclass has at least ``build``.

    ``one_of``: keys that say the same thing in different ways, so that at most one of them may be given. ``read_with``:
    keys that one value of a switch reads; with another they must be what they are by default.
    """

    one_of: ClassVar[tuple[str, ...]] = ()
    read_with: ClassVar[ReadWith] = ()

    weighting: Weighting = "uniform"

    @model_validator(mode="after")
    def _at_most_one_of(self) -> StrategyConfig:
        given = [f"{key} = {value}" for key in self.one_of if (value := getattr(self, key)) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}, expected one of them; set the other to null")
        return self

    @model_validator(mode="after")
    def _all_is_read(self) -> StrategyConfig:
        fields = type(self).model_fields
        for switch, needed, keys in self.read_with:
            found = getattr(self, switch)
            given = [k for k in keys if getattr(self, k) != fields[k].get_default(call_default_factory=True)]
            if found != needed and given:
                raise ValueError(
                    f"{given[0]} = {getattr(self, given[0])} with {switch}={found!r}, which does not read it; expected "
                    f"one of them: set {switch}={needed} or remove {given[0]}"
                )
        return self

    def build(self) -> Strategy:
        """The strategy that this configuration describes."""
        raise NotImplementedError(f"{type(self).__name__} has no build(); define one that returns a Strategy")

    def reduction(self) -> WeightedSum:
        """One global model, clients weighted as configured."""
        return WeightedSum(weight=by_samples if self.weighting == "samples" else uniform, bucket=one_bucket)

    def shares(self, fleet: Fleet) -> list[float]:
        """``n_k`` by client, or 1: the same weights where models are held apart."""
        return [float(c.num_windows) if self.weighting == "samples" else 1.0 for c in fleet.clients]


def batch_sizes(context: RoundContext, client: ClientInfo) -> list[int]:
    """Windows of each mini-batch of a local epoch; the last one holds what is left."""
    whole, rest = divmod(client.num_windows, context.batch_size)
    return [context.batch_size] * whole + [rest] * (rest > 0)


def train_everything(context: RoundContext, client: ClientInfo) -> Assignment:
    """The whole model down, trained and up: absent modalities included, as FedAvg does."""
    everything = context.layout.select()
    return Assignment(client=client.id, down=everything, train=everything, up=everything, epochs=context.epochs)


def of_fastest_type(times: Mapping[ClientInfo, StageTimes]) -> list[StageTimes]:
    """The times of the device type that computes a window fastest, of all its clients, whoever has few windows."""
    speeds: dict[str, float] = {}
    for client, spent in times.items():
        speeds[client.device] = max(speeds.get(client.device, 0.0), spent.compute_s / client.num_windows)
    fastest = min(speeds, key=speeds.__getitem__)
    return [spent for client, spent in times.items() if client.device == fastest]


def allocate_everything(state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Every participant trains everything."""
    return tuple(train_everything(context, client) for client in context.participants)


def average(reduction: WeightedSum, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """``Theta + sum_n w_n Delta_n / sum_n w_n`` over all participants (McMahan et al. 2017, Algorithm 1)."""
    total = over_participants(reduction, reduced, tools.fleet)
    step = mean_step(reduced.sums.get("global", {}), total, tools.layout)
    return ServerState(
        models={"global": apply_step(state.models["global"], step)}, tensors=state.tensors, facts=state.facts
    )


def averaging(reduction: WeightedSum) -> partial[ServerState]:
    """``average`` with its weights fixed."""
    return partial(average, reduction)
