"""FedEL: equal time for all; a window of blocks slides from input to output, the most important tensors in it train.

Per client and round: probe ``I_n,k = -g'_k . (w' - w)_k``; mix ``I_k = beta I_n,k + (1 - beta) I_g,k`` with
``I_g,k = |theta^r - theta^{r-1}|^2_k / eta``, both over their maximum; slide the window to the next blocks worth
``T_th``; maximise ``sum_{k in A} I_k`` under ``T_fw + T_bw(A) <= T_th``; train A and the exit at the window's front.
Server: ``theta_k = sum_n a_n,k theta_n,k / sum_n a_n,k`` over those that trained ``k``.

Both importances say how far a tensor's step lowers the loss. To first order a step ``Delta`` lowers it by
``-g_k . Delta_k``, and the plain gradient step ``Delta = -eta g`` by ``eta |g_k|^2 = |Delta_k|^2 / eta``. The first
form, with the gradient ``g'`` behind the step, is ``I_n``; the last form, of the server's step, is ``I_g``. Both are
one measure only if the probe takes the plain gradient step, ``w' = w - eta g``: then ``I_n,k = eta g'_k . g_k``,
positive wherever eta is small against the curvature. A fresh Adam would step by ``-eta sign(g)``, as far in a tensor of
tiny gradients as in any other, and often past the minimum (``I_n < 0``).

Zhang et al., "FedEL: Federated Elastic Learning for Heterogeneous Devices", NeurIPS 2025, Appendix A (importances and
mix); ``I_n`` is that of Huang et al., "ElasticTrainer", MobiSys 2023, and its code. The selection comes last below.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import floor
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from relief_ray.core.client import ClientContext, ClientProgram, Probed
from relief_ray.core.extra_modules import Classifier
from relief_ray.core.federated import RoundContext, ServerTools, Strategy
from relief_ray.core.groups import GroupId, GroupLayout, Params
from relief_ray.core.messages import Assignment, Fleet, Reduced, ServerState, Update
from relief_ray.server.aggregation import apply_step, from_tensor, mean_step, over_members
from relief_ray.strategies.common import (
    Preset,
    StrategyConfig,
    of_fastest_type,
    search_over,
    train_everything,
    train_parts,
)
from relief_ray.strategies.early_exits import block, exits, num_blocks, output_of, own_groups

GLOBAL, WINDOW = "fedel.importance", "fedel.window"


class FedEL(StrategyConfig):
    """Configuration of FedEL; the time budget of a round is T_th.

    Without ``t_th_s`` and ``speedup``, T_th is the fastest device type's computing time for full training.
    """

    title = "FedEL"
    kind = "baseline"
    only_whole = "it chooses what to train among the groups of all sensors"
    about = "a window of blocks slides to the output; each device trains its most important parts within T_th"
    citation = "zhang2025fedel"
    search = search_over("beta", (0.3, 0.6, 0.9))
    one_of = ("t_th_s", "speedup")
    name: Literal["fedel"] = "fedel"
    t_th_s: float | None = Field(default=None, gt=0.0)
    """Time budget T_th of a round, in seconds."""
    speedup: float | None = Field(default=None, gt=0.0)
    """Divisor that gives T_th from FedAvg's slowest round, link included. It is fitted to a speedup."""
    beta: float = Field(default=0.6, ge=0.0, le=1.0)
    """Weight of the client's own importance ``I_n`` against the global ``I_g``, 0 to 1."""
    cull: bool = True
    """Whether the next window starts at the last one's first block with a selected tensor, not behind it."""
    modality_aware: bool = False
    """Whether only groups of the client's own sensors are selected; an ablation of ours."""

    def build(self) -> Strategy:
        """Build the strategy."""
        return Strategy(
            name=self.name,
            adapt=all_exits,
            allocate=partial(allocate, self),
            client=ClientProgram(refine=partial(refine, self), after=remember),
            reduction=self.reduction(),
            aggregate=aggregate,
        )


PRESETS = {"fedel": Preset(FedEL())}


def all_exits(layout: GroupLayout, fleet: Fleet) -> tuple[Classifier, ...]:
    """Linear output layers behind every block but the last."""
    return exits(layout, range(1, num_blocks(layout)))


def allocate(config: FedEL, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Send every client the model, its time budget and the global importance; the device decides what it trains."""
    known = from_tensor(state.tensors.get(GLOBAL), context.layout)
    args = {**{f"I.{j}": value for j, value in known.items()}, "t_th_s": budget_s(config, context)}
    return tuple(replace(train_everything(context, client), args=args) for client in context.participants)


def budget_s(config: FedEL, context: RoundContext) -> float:
    """``T_th`` in seconds, the same for all clients: from the time that training everything takes across the fleet."""
    backbone = context.layout.select(own_groups(context.layout))
    plain = ((c, train_parts(context, c, backbone, backbone)) for c in context.fleet.clients)
    times = {client: context.planner.times(client.id, task) for client, task in plain}
    if config.speedup is None:
        return config.t_th_s or max(t.compute_s for t in of_fastest_type(times))
    return max(t.busy_s for t in times.values()) / config.speedup


def refine(config: FedEL, context: ClientContext, task: Assignment) -> Assignment:
    """Probe, slide the window and select the tensors to train; runs on the client."""
    layout, planner, limit_s = context.layout, context.planner, task.args["t_th_s"]
    own = own_groups(layout)
    assert planner is not None, "FedEL needs the device's own time model"

    def assigned(groups: Collection[GroupId], front: int) -> Assignment:
        output = output_of(layout, front)
        chosen = layout.select([*groups, *([output] if output else [])])
        return replace(task, train=chosen, up=chosen, output=output, args={})

    def seconds(front: int, groups: Collection[GroupId]) -> float:
        times = planner.times(task.client, assigned(groups, front))
        return times.compute_s if config.speedup is None else times.busy_s

    def worth(first: int, front: int) -> float:
        every = [g.id for g in own if first <= block(layout, g) <= front]
        return seconds(front, every) - seconds(front, ())

    value = importance(config, context, task)
    last = context.state[WINDOW].tolist() if WINDOW in context.state else None
    end, front = slide(last, num_blocks(layout), limit_s, worth, config.cull)
    seen = layout.accessible(context.info.modalities if config.modality_aware else layout.modalities)
    inside = [g for g in own if g in seen and end <= block(layout, g) <= front]
    from_output = sorted(inside, key=lambda g: -(block(layout, g) + (g.role == "fusion_b") / 2))
    branches = [[g.id for g in from_output if g.modality == m] for m in layout.modalities]
    trunk = [g.id for g in from_output if g.modality is None]
    tree = price(trunk, branches, value, partial(seconds, front))
    chosen = best(tree, limit_s - seconds(front, ()), limit_s / UNITS)
    return replace(assigned(chosen, front), args={"t_th_s": limit_s, "end": end, "front": front})


def slide(
    last: Sequence[int] | None, num: int, budget_s: float, worth: Callable[[int, int], float], cull: bool
) -> tuple[int, int]:
    """Next window of blocks 1..``num`` as ``(end, front)``: its first block (FedEL's "end") and its last ("front").

    It starts after the last window or, with ``cull``, at that window's first block with a selected tensor, and grows
    until its new blocks take ``budget_s``; after the last block it starts again.

    ``last``: end, front and first selected block (0: none) of the window before; ``worth(a, b)``: seconds that blocks
    a..b take.
    """
    start, end = 1, 1
    if last is not None and last[1] < num:
        start, end = last[1] + 1, last[2] if cull and last[2] else last[1] + 1
    return end, next((b for b in range(start, num) if worth(start, b) >= budget_s), num)


def importance(config: FedEL, context: ClientContext, task: Assignment) -> dict[GroupId, float]:
    """``beta I_n + (1 - beta) I_g`` per group; ``I_n`` alone before the global model has changed."""
    ids = [g.id for g in own_groups(context.layout)]
    probed = context.probe(replace(task, train=context.layout.select(ids), up={}, output=None))
    local = local_importance(probed)
    known = {j: task.args[f"I.{j}"] for j in ids if f"I.{j}" in task.args}
    return {j: config.beta * local[j] + (1.0 - config.beta) * known[j] if known else local[j] for j in ids}


def local_importance(probed: Probed) -> dict[GroupId, float]:
    """``I_n,k = -g'_k . (w' - w)_k`` over its largest absolute value: positive where the step lowers the loss."""
    raw = {j: -float(g.double().dot(probed.step[j].double())) for j, g in probed.gradient.items()}
    largest = max(map(abs, raw.values())) or 1.0
    return {j: v / largest for j, v in raw.items()}


def remember(context: ClientContext, update: Update) -> Update:
    """Keep the window on the device, and charge the bytes of the global importance."""
    layout, receipt = context.layout, update.receipt
    task = receipt.assignment
    first = min((block(layout, layout[j]) for j in task.train if layout[j].role != "exit"), default=0)
    window = torch.tensor([int(task.args["end"]), int(task.args["front"]), first])
    charged = replace(receipt, bytes_down=receipt.bytes_down + 4 * len(own_groups(layout)))
    return replace(update, receipt=charged, state={**update.state, WINDOW: window})


def aggregate(state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """Take the masked mean, and note how far each group moved for the next round."""
    step = mean_step(reduced.sums.get("global", {}), over_members, tools.layout)
    before, after = state.models["global"], apply_step(state.models["global"], step)
    tensors = {**state.tensors, GLOBAL: global_importance(before, after, tools.layout)}
    return replace(state, models={"global": after}, tensors=tensors)


def global_importance(before: Params, after: Params, layout: GroupLayout) -> torch.Tensor:
    """``|theta^r - theta^{r-1}|^2`` over its maximum (``eta`` cancels), (G,); 0 for exits and an unchanged model."""
    moved = [float((after[g.id].double() - before[g.id].double()).square().sum()) for g in layout]
    scores = [0.0 if g.role == "exit" else m for g, m in zip(layout, moved, strict=True)]
    scores_G = torch.tensor(scores, dtype=torch.double)
    return scores_G / scores_G.max() if scores_G.max() > 0 else scores_G


# Selection of the most important tensors within a time budget, where gradients flow along a tree: the solver of FedEL,
# which ``refine`` calls on each client after its probe.
#
# A trunk (head, shared fusion) stands between the output and M branches (fusion block, encoder layers), every chain
# ordered from the output to the input. A selected unit pays for its own gradient and step; the deepest of its chain
# also pays for the gradient that has to reach it, a branch through the whole trunk. Solved exactly in whole units of
# time: enumerate the deepest unit of a chain, fill a 0/1 knapsack nearer the output, join the branches by (max, +).


Seconds = Callable[[Collection[GroupId]], float]
UNITS = 1000
# Guards whole units of time against rounding in sums of seconds.
SLACK = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """Tensor group that may be selected.

    Attributes:
        value: importance; only positive ones are selected.
        own: seconds where a deeper unit of its chain is selected too: its own gradient and step.
        deep: seconds as the deepest selected unit of its chain: also the gradient that has to reach it.
    """

    id: GroupId
    value: float
    own: float
    deep: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """Selection problem; ``passing``: seconds that branches pay once for the gradient's way through the trunk."""

    trunk: tuple[Unit, ...]
    branches: tuple[tuple[Unit, ...], ...] = ()
    passing: float = 0.0

    @property
    def units(self) -> tuple[Unit, ...]:
        """Units of trunk and branches, the trunk's first."""
        return (*self.trunk, *(u for branch in self.branches for u in branch))


def price(
    trunk: Sequence[GroupId], branches: Sequence[Sequence[GroupId]], value: Mapping[GroupId, float], seconds: Seconds
) -> Tree:
    """Build the tree: seconds of each unit beyond selecting nothing, from differences of ``seconds(selection)``.

    A single branch continues the trunk, so that there is one chain.
    """
    chains = [tuple(b) for b in branches if b]
    if len(chains) == 1:
        trunk, chains = (*trunk, *chains[0]), []
    nothing = seconds(())

    def extra(*selected: GroupId) -> float:
        return max(0.0, seconds(selected) - nothing)

    def unit(j: GroupId, below: GroupId | None, paid: float) -> Unit:
        deep = extra(j)
        own = deep if below is None else max(0.0, extra(j, below) - extra(below))
        return Unit(id=j, value=value[j], own=own, deep=max(0.0, deep - paid))

    def chain(ids: Sequence[GroupId], deeper: GroupId | None, paid: float) -> tuple[Unit, ...]:
        return tuple(unit(j, below, paid) for j, below in zip(ids, (*ids[1:], deeper), strict=True)) if ids else ()

    heads = [c[0] for c in chains[:2]]
    passing = max(0.0, extra(heads[0]) + extra(heads[1]) - extra(*heads)) if heads else 0.0
    return Tree(
        trunk=chain(trunk, heads[0] if heads else None, 0.0),
        branches=tuple(chain(c, None, passing) for c in chains),
        passing=passing,
    )


def cost(tree: Tree, selected: Collection[GroupId]) -> float:
    """Seconds that ``selected`` takes by the tree's rule."""

    def chain(units: Sequence[Unit]) -> float:
        chosen = [u for u in units if u.id in selected]
        return sum(u.own for u in chosen[:-1]) + chosen[-1].deep if chosen else 0.0

    if any(u.id in selected for branch in tree.branches for u in branch):
        return tree.passing + sum(u.own for u in tree.trunk if u.id in selected) + sum(map(chain, tree.branches))
    return chain(tree.trunk)


def best(tree: Tree, capacity_s: float, quantum_s: float) -> frozenset[GroupId]:
    """Most valuable selection of positive units within ``capacity_s``, costs rounded down to ``quantum_s``.

    Where a positive unit exists but none fits: the one of best value per second. Nothing where no unit is positive.
    """
    worthy = [u for u in tree.units if u.value > 0.0]
    if not worthy:
        return frozenset()
    optimum = frozenset[GroupId]()
    if capacity_s >= 0.0 and quantum_s > 0.0:
        optimum = solve(in_units(tree, quantum_s), min(UNITS, floor(capacity_s / quantum_s + SLACK)))
    return optimum or frozenset([max(worthy, key=lambda u: u.value / max(cost(tree, [u.id]), 1e-30)).id])


def in_units(tree: Tree, quantum_s: float) -> Tree:
    """Convert the tree's costs to whole units of time, rounded down."""

    def whole(seconds: float) -> int:
        return floor(seconds / quantum_s + SLACK)

    def chain(units: Sequence[Unit]) -> tuple[Unit, ...]:
        return tuple(replace(u, own=whole(u.own), deep=whole(u.deep)) for u in units)

    return Tree(trunk=chain(tree.trunk), branches=tuple(map(chain, tree.branches)), passing=whole(tree.passing))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    """Best selections within every cost 0..C: ``value`` (C+1,), ``chosen`` (C+1, units); -inf: unreachable."""

    value: NDArray[np.float64]
    chosen: NDArray[np.bool_]

    def moved(self, weight: int, value: float, units: NDArray[np.bool_]) -> _Table:
        """Add ``units`` to every selection, with what they cost and are worth."""
        kept = max(0, len(self.value) - weight)
        worth, chosen = np.full_like(self.value, -np.inf), np.zeros_like(self.chosen)
        worth[len(worth) - kept :] = self.value[:kept] + value
        chosen[len(worth) - kept :] = self.chosen[:kept] | units
        return _Table(value=worth, chosen=chosen)

    def better_of(self, other: _Table) -> _Table:
        """Take the better selection at every cost, this table's where they are equal."""
        keeps = self.value >= other.value
        return _Table(
            value=np.where(keeps, self.value, other.value), chosen=np.where(keeps[:, None], self.chosen, other.chosen)
        )

    def joined(self, other: _Table) -> _Table:
        """Join two tables, (max, +): selections of both, the budget split in the best way."""
        best_so_far = self
        for c in np.flatnonzero(np.diff(other.value, prepend=-np.inf) > 0.0):
            best_so_far = best_so_far.better_of(self.moved(int(c), other.value[c], other.chosen[c]))
        return best_so_far


def solve(tree: Tree, capacity: int) -> frozenset[GroupId]:
    """Exact optimum of a tree whose costs are whole numbers."""
    units = tree.units
    empty = _Table(value=np.zeros(capacity + 1), chosen=np.zeros((capacity + 1, len(units)), dtype=np.bool_))
    alone = dict(zip((u.id for u in units), np.eye(len(units), dtype=np.bool_), strict=True))

    def knapsack(table: _Table, chain: Sequence[Unit]) -> _Table:
        for u in (u for u in chain if u.value > 0.0):
            table = table.better_of(table.moved(int(u.own), u.value, alone[u.id]))
        return table

    def chain_table(chain: Sequence[Unit]) -> _Table:
        table = empty
        for i, deepest in enumerate(chain):
            if deepest.value > 0.0:
                forced = empty.moved(int(deepest.deep), deepest.value, alone[deepest.id])
                table = table.better_of(knapsack(forced, chain[:i]))
        return table

    optimum = chain_table(tree.trunk)
    if tree.branches:
        through = knapsack(empty, tree.trunk)
        for branch in tree.branches:
            through = through.joined(chain_table(branch))
        optimum = optimum.better_of(through.moved(int(tree.passing), 0.0, empty.chosen[0]))
    return frozenset(u.id for u, taken in zip(units, optimum.chosen[capacity], strict=True) if taken)
