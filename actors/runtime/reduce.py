"""Reduces a round as its pieces arrive; sums are taken in client order, whatever order they arrive in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from relief_ray.core.messages import Assignment, ClientId, Trained
from relief_ray.server.reduction import Accumulator, Node, Sums, Tree
from relief_ray.support.errors import LeftOut
from relief_ray.training.job import BlockResult, combine


def _gathered(pieces: Sequence[BlockResult]) -> BlockResult:
    """Result of a block from its pieces, without the sums."""
    return BlockResult(
        sums={},
        receipts=tuple(r for p in pieces for r in p.receipts),
        states={c: s for p in pieces for c, s in p.states.items()},
        rejected={c: why for p in pieces for c, why in p.rejected.items()},
        refused=tuple(r for p in pieces for r in p.refused),
        updates=tuple(u for p in pieces for u in p.updates),
        pairwise=tuple(u for p in pieces for u in p.pairwise),
    )


def lost(clients: Iterable[ClientId], why: LeftOut) -> BlockResult:
    """The result of clients that never answered."""
    return BlockResult(sums={}, receipts=(), states={}, rejected=dict.fromkeys(clients, why))


class Gather:
    """Collects the pieces of every block; a piece is added as soon as all before it are, so few wait in memory."""

    def __init__(self, blocks: Sequence[tuple[Assignment, ...]]) -> None:
        """``blocks`` in client order, as ``reduction.blocks`` cuts them."""
        self._awaited = [[t.client for t in block] for block in blocks]
        self._waiting: list[dict[ClientId, tuple[int, BlockResult]]] = [{} for _ in blocks]
        self._rest: list[list[BlockResult]] = [[] for _ in blocks]
        self._sums = [Accumulator() for _ in blocks]
        self._tree = Tree(len(blocks))

    def add(self, block: int, clients: Sequence[ClientId], result: BlockResult) -> None:
        """Take the answer of consecutive ``clients`` of a block; an answer that is no longer awaited is ignored."""
        first, waiting = min(clients), self._waiting[block]
        if not set(clients) <= set(self._awaited[block]) or first in waiting:
            return
        waiting[first] = (len(clients), result)
        awaited = self._awaited[block]
        while awaited and awaited[0] in waiting:
            number, piece = waiting.pop(awaited[0])
            self._sums[block].add(piece.sums)
            self._rest[block].append(replace(piece, sums={}))
            del awaited[:number]
        if not awaited:
            self._tree.add(Node(level=0, index=block), self._sums[block])
            self._sums[block] = Accumulator()

    def add_whole(self, results: Mapping[int, BlockResult], nodes: Mapping[Node, Sums]) -> None:
        """Take whole blocks whose sums a host has merged into ``nodes`` already."""
        for block, result in results.items():
            self._rest[block].append(result)
            self._awaited[block].clear()
        for node, sums in nodes.items():
            self._tree.add(node, Accumulator(sums))

    def finish(self, moved_bytes: int) -> Trained:
        """Result of the round, once every piece is in."""
        assert not any(self._awaited), f"clients {self._awaited} are missing"
        trained = combine((_gathered(rest) for rest in self._rest), moved_bytes)
        return replace(trained, reduced=replace(trained.reduced, sums=self._tree.settled()))
