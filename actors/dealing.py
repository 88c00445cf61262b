"""How a round's blocks are cut into calls: large enough to be worth the trip, small enough to balance."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actors.roster import Piece
from relief_ray.messages import Assignment

# Clients that take less than this are not worth a call each: every host gets its share of a round at once.
BRIEF_S = 0.02


def deal(
    blocks: Sequence[Piece], slots: int, work: Callable[[Assignment], float], *, is_brief: bool, is_pinned: bool
) -> list[tuple[Piece, ...]]:
    """The pieces of every call, in the order of sending, for ``slots`` hosts that work at the same time.

    Blocks, most work first; all at once where clients are brief; single clients where hosts are many, or where each
    client has a host of its own.
    """
    is_coarse = 2 * slots > len(blocks) and any(len(tasks) > 1 for _, tasks in blocks)
    if is_pinned or (is_coarse and not is_brief):
        # In client order: only few may wait in memory for one before them.
        return [((i, (task,)),) for i, tasks in blocks for task in tasks]
    if is_brief:
        size = -(-len(blocks) // slots)
        return [tuple(blocks[i : i + size]) for i in range(0, len(blocks), size)]
    return [(piece,) for piece in sorted(blocks, key=lambda p: -sum(work(task) for task in p[1]))]
