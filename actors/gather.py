"""Puts a round together as its pieces arrive; the sums are taken in client order, whatever order they arrive in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from relief_ray.messages import Assignment, ClientId, Trained
from relief_ray.server.aggregation import Sums, merge, merge_blocks
from relief_ray.training.serial import combine
from relief_ray.training.worker import BlockResult


def join(parts: Iterable[BlockResult]) -> BlockResult:
    """Parts of one block in client order as one: the same additions as in a block that was never cut."""
    pieces = list(parts)
    return BlockResult(
        sums=merge_blocks(p.sums for p in pieces),
        receipts=tuple(r for p in pieces for r in p.receipts),
        states={c: s for p in pieces for c, s in p.states.items()},
        rejected={c: why for p in pieces for c, why in p.rejected.items()},
        refused=tuple(r for p in pieces for r in p.refused),
        updates=tuple(u for p in pieces for u in p.updates),
        pairwise=tuple(u for p in pieces for u in p.pairwise),
    )


def lost(clients: Iterable[ClientId], why: str) -> BlockResult:
    """The result of clients that never answered."""
    return BlockResult(sums={}, receipts=(), states={}, rejected=dict.fromkeys(clients, why))


class Gather:
    """Collects the pieces of every block; a block is merged as soon as all before it are, so few wait in memory."""

    def __init__(self, blocks: Sequence[tuple[Assignment, ...]]) -> None:
        """``blocks`` in client order, as ``aggregation.blocks`` cuts them."""
        self._missing = [{t.client for t in block} for block in blocks]
        self._pieces: list[dict[ClientId, BlockResult]] = [{} for _ in blocks]
        self._done: list[BlockResult] = []
        self._sums: Sums = {}

    def add(self, block: int, clients: Sequence[ClientId], result: BlockResult) -> None:
        """Takes the answer of consecutive ``clients`` of a block; an answer that is no longer awaited is ignored."""
        if not set(clients) <= self._missing[block]:
            return
        self._missing[block] -= set(clients)
        self._pieces[block][min(clients)] = result
        self._advance()

    def _advance(self) -> None:
        while len(self._done) < len(self._pieces) and not self._missing[len(self._done)]:
            pieces = self._pieces[len(self._done)]
            whole = join(pieces[first] for first in sorted(pieces))
            pieces.clear()
            self._sums = merge(self._sums, whole.sums)
            self._done.append(replace(whole, sums={}))

    def finish(self, moved_bytes: int) -> Trained:
        """The round, once every piece is in."""
        assert len(self._done) == len(self._pieces), "a piece is missing"
        trained = combine(self._done, moved_bytes)
        return replace(trained, reduced=replace(trained.reduced, sums=self._sums))
