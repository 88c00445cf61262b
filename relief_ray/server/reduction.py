"""The reduction tree: how updates are added up, the same bits wherever and in whatever order they arrive.

The tree depends on the participants only, never on hosts: blocks of consecutive clients are summed in float64 in client
order, blocks are merged pairwise, ``((b0 + b1) + (b2 + b3)) + ...``. A process that holds both halves of a node may
add them, so it sends one sum for all its blocks, and serial and Ray runs give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from relief_ray.core.groups import GroupId, GroupLayout
from relief_ray.core.messages import Assignment, Fleet, GroupSum, Update, WeightedSum


@contextmanager
def one_thread() -> Iterator[None]:
    """Run a block on one CPU thread, since torch's sums depend on the number of threads; then restore the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def add_exactly(first: Tensor, second: Tensor, into: Tensor) -> Tensor:
    """``first + second`` (n,) in float64, rounded to the type of ``into``, which may be ``first``.

    All on the CPU, float32 or float64. numpy widens a piece at a time, while it is in the cache; torch would write a
    widened copy of everything first.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # as in torch: the result is checked by its reader
        a, b = first.detach().numpy(), second.detach().numpy()
        np.add(a, b, out=into.numpy(), dtype=np.float64, casting="same_kind")
    return into


T = TypeVar("T")

Sums = Mapping[str, Mapping[GroupId, GroupSum]]

NUM_BLOCKS = 8  # at most: so few sums travel, and up to eight clients each are one

# Values that are widened and squared at a time: 512 KiB in float64. The last bits of every recorded norm depend on it.
CHUNK = 65_536


def evenly(items: Sequence[T], number: int) -> list[tuple[T, ...]]:
    """``items`` in ``number`` consecutive parts; their lengths differ by one at most, longer ones spread evenly."""
    return [tuple(items[len(items) * i // number : len(items) * (i + 1) // number]) for i in range(number)]


def blocks(tasks: Sequence[Assignment]) -> list[tuple[Assignment, ...]]:
    """Consecutive clients' tasks in client order: the leaves of the reduction tree.

    From eight clients on, the tree's halves, quarters and eighths differ by one client at most.
    """
    return evenly(sorted(tasks, key=lambda t: t.client), min(NUM_BLOCKS, len(tasks)))


def leaf(update: Update, reduction: WeightedSum, layout: GroupLayout, fleet: Fleet) -> Sums:
    """Sum over one client: its measured update with float32 values as they are, half of the bytes of a float64 sum."""
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


def _is_leaf(part: GroupSum) -> bool:
    """Whether a part holds one client's float32 values, its weight not applied yet."""
    return part.plain.dtype == torch.float32


def _settle(part: GroupSum) -> GroupSum:
    """Convert a leaf to the float64 sums that it stands for, exactly; sums stay as they are."""
    if not _is_leaf(part):
        return part
    exact = part.plain.to(torch.float64)
    return replace(part, plain=exact, weighted=exact if part.weight == 1.0 else exact * part.weight)


def _copy(part: GroupSum) -> GroupSum:
    plain = part.plain.clone()
    return replace(part, plain=plain, weighted=plain if part.weighted is part.plain else part.weighted.clone())


def _is_unweighted(part: GroupSum) -> bool:
    return part.weight == 1.0 if _is_leaf(part) else part.weighted is part.plain


@dataclass(slots=True)
class _Running:
    """Running sum of one group; from the second addend on it owns its tensors and adds in place."""

    part: GroupSum
    owned: bool = False

    def add(self, group: GroupId, other: GroupSum) -> None:
        """Add ``other``, whose clients come later in client order; ``other`` does not change."""
        first = self.part
        _check(group, first, other)
        if _is_unweighted(first) and _is_unweighted(other):
            plain = weighted = _added(first.plain, other.plain, in_place=self.owned)
        else:
            # Settling a leaf makes new float64 values, which may be written to; tensors not owned may not.
            left, in_place = _settle(first), self.owned or _is_leaf(first)
            is_apart = left.weighted is not left.plain
            weighted = _added(left.weighted, _settle(other).weighted, in_place=in_place and is_apart)
            plain = _added(left.plain, other.plain, in_place=in_place)
        self.owned = True
        self.part = GroupSum(
            weight=first.weight + other.weight,
            weighted=weighted,
            plain=plain,
            sq_norm=first.sq_norm + other.sq_norm,
            members=first.members + other.members,
        )


def _added(first: Tensor, second: Tensor, in_place: bool) -> Tensor:
    """``first + second`` in float64, written into ``first`` or into new memory."""
    return add_exactly(first, second, first if in_place else torch.empty(first.shape, dtype=torch.float64))


def _check(group: GroupId, a: GroupSum, b: GroupSum) -> None:
    assert not set(a.members) & set(b.members), f"group {group!r}: a client counts twice among {a.members + b.members}"
    if a.plain.shape != b.plain.shape:
        raise ValueError(
            f"group {group!r}: clients {a.members} and {b.members} uploaded {len(a.plain)} and {len(b.plain)} values; "
            "a weighted sum needs the same part from all (use Collect where parts differ)"
        )


class Accumulator:
    """Adds sums one after the other in client order; tensors that it does not own are never written to."""

    def __init__(self, start: Sums | None = None, *, owns: bool = False) -> None:
        """Start from ``start`` or from nothing; ``owns``: nothing else reads its tensors, so adding may overwrite."""
        self._running = {
            bucket: {j: _Running(part, owned=owns and not _is_leaf(part)) for j, part in groups.items()}
            for bucket, groups in (start or {}).items()
        }

    def add(self, sums: Sums, *, borrowed: bool = False) -> None:
        """Add the sums of clients that come after all so far.

        ``borrowed``: their memory is reused afterwards, so a first addend is copied.

        Raises:
            ValueError: the uploaded part of a group differs from that of earlier clients.
        """
        for bucket, groups in sums.items():
            into = self._running.setdefault(bucket, {})
            for j, part in groups.items():
                if j in into:
                    into[j].add(j, part)
                else:
                    into[j] = _Running(_copy(part) if borrowed else part)

    def sums(self) -> Sums:
        """Sums of everything added so far; parts of single clients are leaves."""
        return {bucket: {j: r.part for j, r in groups.items()} for bucket, groups in self._running.items()}

    def settled(self) -> Sums:
        """Sums of everything added so far, all in float64, as aggregation reads them."""
        return {bucket: {j: _settle(part) for j, part in groups.items()} for bucket, groups in self.sums().items()}


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Node:
    """Node of the tree: the existing ones among blocks ``index * 2^level`` to ``(index + 1) * 2^level - 1``."""

    level: int
    index: int

    @property
    def sibling(self) -> Node:
        """Other half of the parent."""
        return Node(level=self.level, index=self.index ^ 1)

    @property
    def parent(self) -> Node:
        """Node that covers this one and its sibling."""
        return Node(level=self.level + 1, index=self.index // 2)


class Tree:
    """Merges the sums of ``num_blocks`` blocks pairwise; a node is added up as soon as both its halves are there."""

    def __init__(self, num_blocks: int) -> None:
        """Start an empty tree of that many blocks."""
        self._num_blocks = num_blocks
        self._nodes: dict[Node, Accumulator] = {}

    def add(self, node: Node, sums: Accumulator) -> None:
        """Take over the sums of a node, which another process may have merged."""
        while node != self.root:
            left, right = sorted((node, node.sibling))
            if right.index << right.level < self._num_blocks:
                if node.sibling not in self._nodes:
                    break
                other = self._nodes.pop(node.sibling)
                first, second = (sums, other) if node == left else (other, sums)
                first.add(second.sums())
                sums = first
            node = node.parent
        self._nodes[node] = sums

    @property
    def root(self) -> Node:
        """Node that covers all blocks."""
        return Node(level=max(0, self._num_blocks - 1).bit_length(), index=0)

    def nodes(self) -> dict[Node, Sums]:
        """Sums that could not be merged further, by node in block order."""
        return {n: self._nodes[n].sums() for n in sorted(self._nodes, key=lambda n: n.index << n.level)}

    def settled(self) -> Sums:
        """Float64 sums of the root, once every block has been added."""
        assert not self._num_blocks or list(self._nodes) == [self.root], f"blocks are missing: {sorted(self._nodes)}"
        return self._nodes[self.root].settled() if self._num_blocks else {}


def merge_blocks(parts: Iterable[Sums]) -> Sums:
    """Float64 sums of all blocks, which come in block order."""
    blocks_ = list(parts)
    tree = Tree(len(blocks_))
    for i, part in enumerate(blocks_):
        tree.add(Node(level=0, index=i), Accumulator(part))
    return tree.settled()


def squares_by_blas(values: Tensor) -> float:
    """``|values|^2`` in float64, summed chunk by chunk in aligned memory."""
    flat, total = values.reshape(-1), 0.0
    exact = torch.empty(min(CHUNK, flat.numel()), dtype=torch.float64)
    for start in range(0, flat.numel(), CHUNK):
        chunk = flat[start : start + CHUNK]
        wide = exact[: chunk.numel()].copy_(chunk)
        total += float(wide.dot(wide))
    return total


def measured(update: Update, square: Callable[[Tensor], float] = squares_by_blas) -> Update:
    """Add ``sq_norm[j] = |Delta_j|^2`` by ``square`` to the update's receipt: finite exactly where all values are."""
    squares = {j: square(delta) for j, delta in update.delta.items()}
    return replace(update, receipt=replace(update.receipt, sq_norm=squares))
