"""The reduction tree: how updates are added up, the same bits wherever and in whatever order they arrive.

The tree depends on the participants only, never on hosts: blocks of consecutive clients are summed in float64 in client
order, blocks are merged in order. Serial and Ray runs therefore give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relief_ray.groups import GroupId, GroupLayout
from relief_ray.messages import Assignment, Fleet, GroupSum, Update, WeightedSum

Sums = Mapping[str, Mapping[GroupId, GroupSum]]
NUM_BLOCKS = 8


def num_in_block(num_clients: int) -> int:
    """Clients per block: at most eight blocks, so that few sums travel; one client each up to eight."""
    return max(1, -(-num_clients // NUM_BLOCKS))


def blocks(tasks: Sequence[Assignment]) -> list[tuple[Assignment, ...]]:
    """Consecutive clients' tasks in client order: the leaves of the reduction tree."""
    ordered = sorted(tasks, key=lambda t: t.client)
    size = num_in_block(len(ordered))
    return [tuple(ordered[i : i + size]) for i in range(0, len(ordered), size)]


class Scratch:
    """A kept float64 buffer: large blocks that are allocated anew each time cost more than the arithmetic on them."""

    def __init__(self) -> None:
        """Grows with what it is asked for."""
        self._buffer = torch.empty(0, dtype=torch.float64)

    def exact(self, values: Tensor) -> Tensor:
        """``values`` in float64 (numel,), until the next call."""
        if len(self._buffer) < values.numel():
            self._buffer = torch.empty(values.numel(), dtype=torch.float64)
        return self._buffer[: values.numel()].copy_(values.reshape(-1))


def leaf(update: Update, reduction: WeightedSum, layout: GroupLayout, fleet: Fleet) -> Sums:
    """One client's measured update as a sum of one: its float32 values as they are, half of the bytes of a sum."""
    task, squares = update.receipt.assignment, update.receipt.sq_norm
    parts = {
        j: GroupSum(
            weight=float(reduction.weight(layout[j], fleet[task.client], task)),
            weighted=delta,
            plain=delta,
            sq_norm=squares[j],
            members=(task.client,),
        )
        for j, delta in update.delta.items()
    }
    return {reduction.bucket(task): parts}


def is_leaf(part: GroupSum) -> bool:
    """Whether these are one client's own float32 values, its weight not applied yet."""
    return part.plain.dtype == torch.float32


def settle(part: GroupSum) -> GroupSum:
    """The float64 sums that a leaf stands for, exactly; sums stay as they are."""
    if not is_leaf(part):
        return part
    exact = part.plain.to(torch.float64)
    return replace(part, plain=exact, weighted=exact if part.weight == 1.0 else exact * part.weight)


def _is_unweighted(part: GroupSum) -> bool:
    return part.weight == 1.0 if is_leaf(part) else part.weighted is part.plain


@dataclass(slots=True)
class _Running:
    """A sum under way; from the second addend on its tensors are its own and are added to in place."""

    part: GroupSum
    owned: bool = False

    def add(self, group: GroupId, other: GroupSum, scratch: Scratch) -> None:
        """Adds ``other``, which comes later in client order and is left as it is."""
        first = self.part
        _check(group, first, other)
        unweighted = _is_unweighted(first) and _is_unweighted(other)
        if self.owned:
            plain = first.plain
            weighted = first.weighted if not _is_unweighted(first) else plain if unweighted else plain.clone()
        else:
            left = settle(first)
            plain = left.plain if is_leaf(first) else left.plain.clone()
            weighted = plain if unweighted else left.weighted.clone()
        right = scratch.exact(other.plain) if is_leaf(other) else other.plain
        plain.add_(right)
        if weighted is not plain:
            weighted.add_(right.mul_(other.weight) if is_leaf(other) else other.weighted)
        self.owned = True
        self.part = GroupSum(
            weight=first.weight + other.weight,
            weighted=weighted,
            plain=plain,
            sq_norm=first.sq_norm + other.sq_norm,
            members=first.members + other.members,
        )


def _check(group: GroupId, a: GroupSum, b: GroupSum) -> None:
    assert not set(a.members) & set(b.members), f"group {group!r}: a client counts twice among {a.members + b.members}"
    if a.plain.shape != b.plain.shape:
        raise ValueError(
            f"group {group!r}: clients {a.members} and {b.members} uploaded {len(a.plain)} and {len(b.plain)} values; "
            "a weighted sum needs the same part from all (use Collect where parts differ)"
        )


class Accumulator:
    """Adds sums one after the other in client order; what comes in is never written to."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._running: dict[str, dict[GroupId, _Running]] = {}
        self._scratch = Scratch()

    def add(self, sums: Sums) -> None:
        """Adds the sums of clients that come after all so far.

        Raises:
            ValueError: another part of a group was uploaded than before.
        """
        for bucket, groups in sums.items():
            into = self._running.setdefault(bucket, {})
            for j, part in groups.items():
                if j in into:
                    into[j].add(j, part, self._scratch)
                else:
                    into[j] = _Running(part)

    def sums(self) -> Sums:
        """All so far; single clients' parts are leaves."""
        return {bucket: {j: r.part for j, r in groups.items()} for bucket, groups in self._running.items()}

    def settled(self) -> Sums:
        """All so far in float64: what aggregation sees."""
        return {bucket: {j: settle(part) for j, part in groups.items()} for bucket, groups in self.sums().items()}


def sum_block(updates: Iterable[Update], reduction: WeightedSum, layout: GroupLayout, fleet: Fleet) -> Sums:
    """A block's sums, one update after the other in client order."""
    total = Accumulator()
    for update in updates:
        total.add(leaf(update, reduction, layout, fleet))
    return total.sums()


def merge_blocks(parts: Iterable[Sums]) -> Sums:
    """Merges all blocks in block order, in float64."""
    total = Accumulator()
    for part in parts:
        total.add(part)
    return total.settled()


def measured(update: Update, scratch: Scratch | None = None) -> Update:
    """The update with ``sq_norm[j] = |Delta_j|^2`` in its receipt: in float64, finite exactly where all values are."""
    scratch = scratch or Scratch()
    squares = {j: _square(scratch.exact(delta)) for j, delta in update.delta.items()}
    return replace(update, receipt=replace(update.receipt, sq_norm=squares))


def _square(exact: Tensor) -> float:
    return float(exact.dot(exact))
