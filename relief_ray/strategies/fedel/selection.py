"""Selection of the most important tensors within a time budget, where gradients flow along a tree.

The solver of FedEL; ``strategy.refine`` calls it on each client after its probe.

A trunk (head, shared fusion) stands between the output and M branches (fusion block, encoder layers), every chain
ordered from the output to the input. A selected unit pays for its own gradient and step; the deepest of its chain also
pays for the gradient that has to reach it, a branch through the whole trunk. Solved exactly in whole units of time:
enumerate the deepest unit of a chain, fill a 0/1 knapsack nearer the output, join the branches by (max, +).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from relief_ray.core.client import Probed
from relief_ray.core.groups import GroupId

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

    below = [chain(branch) for branch in tree.branches]
    if any(u.id in selected for branch in tree.branches for u in branch):
        return tree.passing + sum(u.own for u in tree.trunk if u.id in selected) + sum(below)
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
        return tuple(Unit(id=u.id, value=u.value, own=whole(u.own), deep=whole(u.deep)) for u in units)

    return Tree(trunk=chain(tree.trunk), branches=tuple(chain(b) for b in tree.branches), passing=whole(tree.passing))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    """Best selections within every cost 0..C: ``value`` (C+1,), ``chosen`` (C+1, units); -inf: unreachable."""

    value: NDArray[np.float64]
    chosen: NDArray[np.bool_]

    def plus(self, column: int, weight: int, value: float) -> _Table:
        """Offer one more unit (0/1 knapsack step)."""
        if value <= 0.0 or weight >= len(self.value):
            return self
        end = len(self.value) - weight
        better = np.zeros(len(self.value), dtype=np.bool_)
        better[weight:] = self.value[:end] + value > self.value[weight:]
        worth, chosen = self.value.copy(), self.chosen.copy()
        source = np.flatnonzero(better) - weight
        worth[better], chosen[better] = self.value[source] + value, self.chosen[source]
        chosen[better, column] = True
        return _Table(value=worth, chosen=chosen)

    def shifted(self, weight: int) -> _Table:
        """Add ``weight`` to the cost of every selection."""
        if weight >= len(self.value):
            return _Table(value=np.full_like(self.value, -np.inf), chosen=np.zeros_like(self.chosen))
        value, chosen = np.full_like(self.value, -np.inf), np.zeros_like(self.chosen)
        value[weight:], chosen[weight:] = self.value[: len(value) - weight], self.chosen[: len(value) - weight]
        return _Table(value=value, chosen=chosen)

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
            moved = self.shifted(int(c))
            joint = _Table(value=moved.value + other.value[c], chosen=moved.chosen | other.chosen[c])
            best_so_far = best_so_far.better_of(joint)
        return best_so_far


def solve(tree: Tree, capacity: int) -> frozenset[GroupId]:
    """Exact optimum of a tree whose costs are whole numbers."""
    units = tree.units
    column = {u.id: i for i, u in enumerate(units)}
    empty = _Table(value=np.zeros(capacity + 1), chosen=np.zeros((capacity + 1, len(units)), dtype=np.bool_))

    def knapsack(table: _Table, chain: Sequence[Unit]) -> _Table:
        for u in chain:
            table = table.plus(column[u.id], int(u.own), u.value)
        return table

    def chain_table(chain: Sequence[Unit]) -> _Table:
        table = empty
        for i, deepest in enumerate(chain):
            if deepest.value > 0.0:
                forced = empty.plus(column[deepest.id], 0, deepest.value).shifted(int(deepest.deep))
                table = table.better_of(knapsack(forced, chain[:i]))
        return table

    optimum = chain_table(tree.trunk)
    if tree.branches:
        through = knapsack(empty, tree.trunk)
        for branch in tree.branches:
            through = through.joined(chain_table(branch))
        optimum = optimum.better_of(through.shifted(int(tree.passing)))
    return frozenset(u.id for u, taken in zip(units, optimum.chosen[capacity], strict=True) if taken)


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


def local_importance(probed: Probed) -> dict[GroupId, float]:
    """``I_n,k = -g'_k . (w' - w)_k`` over its largest absolute value: positive where the step lowers the loss."""
    raw = {j: -float(g.double().dot(probed.step[j].double())) for j, g in probed.gradient.items()}
    largest = max(map(abs, raw.values())) or 1.0
    return {j: v / largest for j, v in raw.items()}
