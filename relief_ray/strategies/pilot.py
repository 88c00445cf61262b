"""Pilot: a connector of adapters between features and fusion; each client's model is mixed with its nearest ones'.

Stage 1, ``stage1_share`` of all rounds: ``z = h + psi_t(h) + psi_s(h)``, ``t`` the client's task; loss CE + l0 L_d,
``L_d`` the mean of the squared entries of ``X_t^T X_s`` (rows of ``X``: normalised adapter outputs). Stage 2:
``z = h + psi_s(h) + P_t psi_t(h) + sum_{i != t} P_i (psi_i(h) + psi^c_i(h))``, ``P = softmax(G h)``, with ``psi_s`` and
``psi_i`` frozen; loss CE + l1 L_b + l2 L_z, ``L_b = T sum_i f_i p_i`` and ``L_z = mean(logsumexp(G h)^2)``. Server:
``psi_t`` is its clients' mean; ``Theta_k <- beta_k Theta_k + (1 - beta_k) sum_{i in N_k} w_ki Theta_i``, ``w_ki``
proportional to ``1 / |Theta_k - Theta_i|``. ``psi_s``, ``psi^c`` and ``G`` stay with the client.

Xiong et al., "Pilot: Building the Federated Multimodal Instruction Tuning Framework", AAAI 2025. A task is a set of
sensors here, ``Theta`` the whole backbone, the connector residual and zero at first (our adaptation).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from relief_ray.core.client import ClientProgram, LocalStep, task_loss
from relief_ray.core.extra_modules import Connector
from relief_ray.core.federated import Insight, RoundContext, ServerTools, Strategy
from relief_ray.core.groups import WHOLE, GroupId, GroupLayout, Params
from relief_ray.core.messages import (
    Assignment,
    ClientId,
    Collect,
    EvalPlan,
    EvalTarget,
    Fleet,
    Models,
    Reduced,
    ServerState,
)
from relief_ray.core.streams import Streams
from relief_ray.server.aggregation import mix, mix_clients, model_of, richest
from relief_ray.strategies.common import (
    Preset,
    StrategyConfig,
    Weighting,
    batch_sizes,
    first_phase_only,
    first_phase_rounds,
    own_target,
    rounds_beyond,
    search_over,
)

# Losses on adapters and routers, and what they cost in FLOPs.


def difference_loss(a_BD: Tensor, b_BD: Tensor) -> Tensor:
    """``mean((X_a^T X_b)^2)`` over the D x D entries, where rows of X are windows of length 1 (their norms constants).

    Computed from the B x B products of windows, which have the same sum of squares: ``sum((X_a X_a^T) * (X_b X_b^T))``.
    """
    a, b = (x / (x.norm(dim=1, keepdim=True).detach() + 1e-6) for x in (a_BD, b_BD))
    squares: Tensor = ((a @ a.T) * (b @ b.T)).sum()
    return squares / a_BD.shape[1] ** 2


def difference_flops(num_rows: int, width: int) -> float:
    """FLOPs of ``difference_loss`` of (B, D) and of its gradient: ``12 B^2 D + 10 B D + 5 B^2``.

    Two products of windows (``2 B^2 D`` each) with two such products back through either; for either input its norms
    (2 per value), the quotient (1) and back (2); squares' product and sum (2 per entry) and back (3).
    """
    return 12.0 * num_rows**2 * width + 10.0 * num_rows * width + 5.0 * num_rows**2


def balance_loss(logits_BT: Tensor) -> Tensor:
    """``T sum_i f_i p_i``: share of windows whose likeliest choice is i, times i's mean probability; 1 if even."""
    num_choices = logits_BT.shape[1]
    p_BT = torch.softmax(logits_BT, 1)
    # Not bincount: on a GPU it waits for the counts, which no recorded step may do.
    is_likeliest_BT = p_BT.argmax(1, keepdim=True) == torch.arange(num_choices, device=p_BT.device)
    f_T = is_likeliest_BT.sum(0).to(p_BT.dtype) / len(p_BT)
    return num_choices * (f_T * p_BT.mean(0)).sum()


def router_flops(num_rows: int, num_choices: int) -> float:
    """FLOPs of ``balance_loss`` and ``z_loss`` of (B, T) and of their gradients: 20 per logit.

    Softmax and logsumexp (5 and 4), the largest, counts and means (3); back through them 8.
    """
    return 20.0 * num_rows * num_choices


def stage_flops(sizes: Sequence[int], num_choices: int, router_numel: int, is_first: bool) -> float:
    """FLOPs of Pilot's losses beside cross-entropy in a step, forward and backward, averaged over an epoch's batches.

    ``sizes``: the batches'. Stage 1 has ``difference_loss`` of adapters as wide as the router (T, D) reads, stage 2 the
    router's losses.
    """
    width = router_numel // num_choices
    spent = [difference_flops(b, width) if is_first else router_flops(b, num_choices) for b in sizes]
    return sum(spent) / max(1, len(spent))


def z_loss(logits_BT: Tensor) -> Tensor:
    """``mean(logsumexp(logits)^2)``: keeps a router's logits small."""
    return torch.logsumexp(logits_BT, 1).square().mean()


# Adapters of all tasks as each client holds them, and models averaged with their nearest (Pilot).
#
# A task is a set of sensors. Adaptive aggregation mixes a client's model with those nearest in parameter space.
#
# Legend: n clients, ``theta_k`` the local model of client k, ``d_ki = |theta_k - theta_i|``.


def tasks_of(fleet: Fleet) -> list[int]:
    """Task of each client: its set of sensors, numbered by first owner."""
    sets = list(dict.fromkeys(c.modalities for c in fleet.clients))
    return [sets.index(c.modalities) for c in fleet.clients]


def mixing_parts(connector: Connector) -> list[GroupId]:
    """Groups that a client keeps in stage 2: the router and its additions to other tasks' adapters."""
    return [connector.router, *map(connector.cross, range(2, connector.num_tasks + 1))]


def hand_out(
    models: Models, adapters: Sequence[Tensor], connector: Connector, tasks: Sequence[int]
) -> dict[str, Params]:
    """Give every client's model all tasks' adapters: its own first, the others in order."""

    def held(own: int) -> dict[GroupId, Tensor]:
        order = [own, *(t for t in range(len(adapters)) if t != own)]
        return {connector.task(i): adapters[t] for i, t in enumerate(order, 1)}

    return {model_of(n): {**models[model_of(n)], **held(t)} for n, t in enumerate(tasks)}


def next_adapters(
    models: Models,
    local: LocalModels,
    present: Sequence[ClientId],
    shares: Sequence[float],
    connector: Connector,
    tasks: Sequence[int],
) -> list[Tensor]:
    """Adapter of each task: the mean over its clients by ``shares``, unchanged where none of them took part.

    ``present``: the clients of ``local``.
    """
    own = connector.task(1)
    sent = dict(zip(present, local.rows(own), strict=True))
    adapters = []
    for t in range(max(tasks) + 1):
        members = [(shares[n], row) for n, row in sent.items() if tasks[n] == t]
        adapters.append(mix(members) if members else models[model_of(tasks.index(t))][own])
    return adapters


def canonical(
    models: Models, fleet: Fleet, shares: Sequence[float], groups: Collection[GroupId]
) -> dict[GroupId, Tensor]:
    """Mean of the richest clients' models over ``groups``; other groups are the first one's."""
    full = richest(fleet)
    return {**models[model_of(full[0])], **mix_clients(models, full, shares, groups)}


Matrix = NDArray[np.float64]

# Values of a group that are worked on at a time: 100 models' share of them stays in the processor's cache.
TILE = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalModels:
    """Models ``theta_k = start_k + Delta_k`` of a round's n clients, in float64, added up where they are read.

    All of them at once would take 8 bytes a value and client (0.7 GiB of 100 clients on Backbone 1), which costs more
    time than the arithmetic.

    Attributes:
        starts: models that the clients received.
        deltas: their updates, of the groups that were sent.
    """

    starts: Sequence[Params]
    deltas: Sequence[Mapping[GroupId, Tensor]]

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.starts)

    def rows(self, group: GroupId, columns: slice = slice(None)) -> Tensor:
        """``theta`` of one group, a row for each client (n, width)."""
        start_NW, moved_NW = (
            torch.stack([params[group][columns] for params in of]).to(torch.float64)
            for of in (self.starts, self.deltas)
        )
        return start_NW.add_(moved_NW)

    def tiles(self, group: GroupId) -> Iterator[slice]:
        """Spans of a group's values, ``TILE`` each; the last one may reach beyond them."""
        return (slice(first, first + TILE) for first in range(0, len(self.starts[0][group]), TILE))


def distances(local: LocalModels, groups: Collection[GroupId]) -> Matrix:
    """``d`` (n, n) over ``groups``, in float64 from true differences: equal models are at distance 0 exactly."""
    squares = torch.zeros(len(local) * (len(local) - 1) // 2, dtype=torch.float64)
    for j in groups:
        for columns in local.tiles(j):
            squares += torch.pdist(local.rows(j, columns)).square()
    upper = np.zeros((len(local), len(local)))
    upper[np.triu_indices(len(local), 1)] = squares.sqrt().numpy()
    return upper + upper.T


def mixing(distance: Matrix, sizes: Sequence[float], num_neighbours: int) -> Matrix:
    """Weights (n, n), rows sum to 1: ``beta_k`` on the diagonal, the rest over the nearest others.

    ``w_ki`` is proportional to ``1 / d_ki`` within ``N_k``, the ``num_neighbours`` nearest (the first of equals);
    neighbours at distance 0 share everything. ``beta_k = n_k / (n_k + sum_{i in N_k} n_i)`` with ``sizes`` n_k.
    """
    number = len(distance)
    weights = np.zeros((number, number))
    for k in range(number):
        others = sorted((i for i in range(number) if i != k), key=lambda i: distance[k, i])[:num_neighbours]
        own = weights[k, k] = sizes[k] / (sizes[k] + sum(sizes[i] for i in others))
        twins = [i for i in others if distance[k, i] == 0.0]
        parts = dict.fromkeys(twins, 1.0) if twins else {i: 1.0 / float(distance[k, i]) for i in others}
        for i, part in parts.items():
            weights[k, i] = (1.0 - own) * part / sum(parts.values())
    return weights


def mix_with_nearest(
    local: LocalModels, sizes: Sequence[float], num_neighbours: int, groups: Collection[GroupId]
) -> list[dict[GroupId, Tensor]]:
    """Mix each model with its nearest ones, by ``mixing``, in float64 in the order of the clients."""
    weights_NN = mixing(distances(local, groups), sizes, num_neighbours)
    mixed: list[dict[GroupId, Tensor]] = [{j: torch.empty_like(start[j]) for j in groups} for start in local.starts]
    terms = _terms(weights_NN)
    for j in groups:
        for columns in local.tiles(j):
            theta_NW = local.rows(j, columns)
            total_NW = torch.zeros_like(theta_NW)
            for clients_N, weights_N1 in terms:
                total_NW += theta_NW.index_select(0, clients_N).mul_(weights_N1)
            for row, model in zip(total_NW.unbind(), mixed, strict=True):
                model[j][columns] = row
    return mixed


def _terms(weights_NN: Matrix) -> list[tuple[Tensor, Tensor]]:
    """Summands of all mixtures, the i-th of each together: whose model (N,) and its weight (N, 1), in client order.

    Mixtures of fewer models are filled up with weight 0.
    """
    chosen = [np.flatnonzero(row) for row in weights_NN]
    most = max(map(len, chosen), default=0)
    clients = [np.append(c, np.full(most - len(c), k)) for k, c in enumerate(chosen)]
    index_NT = torch.tensor(np.array(clients, dtype=np.int64))
    weights_NT = torch.tensor(np.take_along_axis(weights_NN, index_NT.numpy(), 1))
    for k, c in enumerate(chosen):
        weights_NT[k, len(c) :] = 0.0
    return list(zip(index_NT.unbind(1), weights_NT.unsqueeze(2).unbind(1), strict=True))


ID, STAGE1 = "connector", "stage1"


class Pilot(StrategyConfig):
    """Configuration of Pilot."""

    title = "Pilot"
    kind = "baseline"
    about = "adapters per set of sensors between features and fusion; models mixed with the nearest"
    citation = "xiong2025pilot"
    dense_stand_in = "the whole dense backbone is mixed in place of the text model's LoRA"
    paper_accounting = "fedavg"
    search = search_over("neighbours", (1, 3, 5))
    no_average = "each client's model is mixed with its nearest ones, there is no common mean"
    name: Literal["pilot"] = "pilot"
    weighting: Weighting = "samples"
    """A client's weight in means over clients."""
    stage1_share: float = Field(default=0.05, ge=0.0, le=1.0)
    """Share of the rounds that make up stage 1, at least one round; 0: none."""
    bottleneck: int = Field(default=24, ge=1)
    """Width of an adapter; FITTED to the table's bytes."""
    neighbours: int = Field(default=3, ge=1)
    """Number of nearest models that a model is mixed with."""
    lambda_d: float = Field(default=0.1, ge=0.0)
    """Weight ``l0`` of the loss ``L_d``."""
    lambda_b: float = Field(default=0.1, ge=0.0)
    """Weight ``l1`` of the loss ``L_b``."""
    lambda_z: float = Field(default=0.01, ge=0.0)
    """Weight ``l2`` of the loss ``L_z``."""
    own_in_mix: bool = True
    """Whether the client's own adapter counts in stage 2 too."""

    def build(self) -> Strategy:
        """Build the strategy."""
        return Strategy(
            name=self.name,
            adapt=partial(add_connector, self),
            init=partial(one_view_each, self),
            allocate=partial(allocate, self),
            reduction=Collect(),
            client=ClientProgram(objective=partial(objective, self)),
            aggregate=partial(aggregate, self),
            evaluate=partial(own_models, self),
            insight=Insight(warnings=partial(first_phase_only, self, key="stage1_share", consequence=_NO_MIXING)),
        )

    def connector(self, fleet: Fleet) -> Connector:
        """Connector for this fleet: its names and sizes."""
        tasks = max(tasks_of(fleet)) + 1
        return Connector(id=ID, num_tasks=tasks, bottleneck=self.bottleneck, own_in_mix=self.own_in_mix)

    def is_first(self, context: RoundContext) -> bool:
        """Whether the round is of stage 1."""
        return self.stage1_share > 0.0 and context.round <= first_phase_rounds(self.stage1_share, context.num_rounds)

    def rounds_needed(self, participation: float) -> int | None:
        """Fewest rounds that stage 1 does not fill."""
        return rounds_beyond(self.stage1_share) if self.stage1_share > 0.0 else 1


PRESETS = {"pilot": Preset(Pilot())}
_NO_MIXING = "no adapter of another task is ever mixed in"


def add_connector(config: Pilot, layout: GroupLayout, fleet: Fleet) -> tuple[Connector, ...]:
    """Add one adapter per task, and the parts that a client keeps."""
    return (config.connector(fleet),)


def one_view_each(config: Pilot, layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    """Initial state: the start model for every client, each with its own task's adapter first."""
    connector, tasks = config.connector(fleet), tasks_of(fleet)
    adapters = [start[connector.task(t + 1)] for t in range(connector.num_tasks)]
    views = hand_out({model_of(n): start for n in range(len(fleet))}, adapters, connector, tasks)
    return ServerState(models={"global": start, **views}, facts={"path": "first"})


def backbone_of(theta: Params) -> list[GroupId]:
    """Groups of ``Theta``: all but the connector's."""
    return [j for j in theta if not j.startswith(f"{ID}.")]


def allocate(config: Pilot, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Train everything but frozen adapters; the backbone and the own task's adapter go up."""
    connector, first = config.connector(context.fleet), config.is_first(context)
    others, select, stage2 = range(2, connector.num_tasks + 1), context.layout.select, mixing_parts(connector)
    router = context.layout[connector.router]
    sent = [*backbone_of(state.models["global"]), connector.task(1)]
    return tuple(
        Assignment(
            client=c.id,
            view=model_of(c.id),
            down=select([*sent, *map(connector.task, others)]),
            train=select([*sent, connector.own] if first else [*sent, *stage2]),
            up=select(sent),
            keep=select([connector.own] if first else [connector.own, *stage2]),
            epochs=context.epochs,
            phase=STAGE1 if first else "train",
            step_flops=stage_flops(batch_sizes(context, c), connector.num_tasks, router.numel, first),
            taps=frozenset([connector.task(1), connector.own] if first else [connector.router]),
            output=connector.output("first" if first else "mixed"),
        )
        for c in context.participants
    )


def objective(config: Pilot, step: LocalStep) -> Tensor:
    """Cross-entropy plus the losses of the stage: stage 2 where the router was evaluated."""
    if (logits := step.taps.get(f"{ID}.router")) is not None:
        return task_loss(step) + config.lambda_b * balance_loss(logits) + config.lambda_z * z_loss(logits)
    return task_loss(step) + config.lambda_d * difference_loss(step.taps[f"{ID}.task.1"], step.taps[f"{ID}.own"])


def aggregate(config: Pilot, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """Mix each backbone with its nearest, average each task's adapter; absent clients keep their models."""
    connector, tasks, shares = config.connector(tools.fleet), tasks_of(tools.fleet), config.shares(tools.fleet)
    models, body = state.models, backbone_of(state.models["global"])
    present = [u.receipt.assignment.client for u in reduced.updates]
    local = LocalModels(starts=[models[model_of(n)] for n in present], deltas=[u.delta for u in reduced.updates])
    adapters = next_adapters(models, local, present, shares, connector, tasks)
    mixed = mix_with_nearest(local, [shares[n] for n in present], config.neighbours, body)
    views = {**models, **{model_of(n): {**models[model_of(n)], **near} for n, near in zip(present, mixed, strict=True)}}
    views = hand_out(views, adapters, connector, tasks)
    all_models = {"global": canonical(views, tools.fleet, shares, body), **views}
    path = "first" if all(r.assignment.phase == STAGE1 for r in reduced.receipts) else "mixed"
    return ServerState(models=all_models, facts={"path": path})


def own_models(config: Pilot, state: ServerState, fleet: Fleet) -> EvalPlan:
    """Evaluate each client's model with its own sensors; canonical: the mean of the richest clients' models."""
    connector, first, shares = config.connector(fleet), state.facts["path"] == "first", config.shares(fleet)
    personal = [connector.own, *([] if first else mixing_parts(connector))]
    keep, output = dict.fromkeys(personal, WHOLE), connector.output("first" if first else "mixed")
    mean = EvalTarget(label="global", keep=keep, mean_of={n: shares[n] for n in richest(fleet)}, output=output)
    clients = tuple(replace(own_target(c), view=model_of(c.id), keep=keep, output=output) for c in fleet.clients)
    return EvalPlan(canonical=mean, clients=clients)
