"""Dealing subjects' windows to any number of clients.

With N clients and S training subjects, the windows of every training bout are cut into N/S consecutive pieces (the
remainder to the lowest ids), so every shard keeps all activities where length allows and the clients' union is the same
for every N. Windows are cut, not rows: neighbouring shards of one subject share up to one window of samples at their
border, which concerns training data only (a one-minute bout would otherwise leave nothing for 100 clients).
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from relief_ray.errors import UserError


def pieces_per_subject(num_subjects: int, num_clients: int) -> tuple[int, ...]:
    """How many clients each subject becomes: N/S, the remainder to the first subjects."""
    if num_clients < num_subjects:
        raise UserError(
            f"data.num_clients={num_clients}: fewer than the {num_subjects} training subjects; use at least "
            f"{num_subjects}, or choose subjects with data.subjects"
        )
    share, extra = divmod(num_clients, num_subjects)
    return tuple(share + (position < extra) for position in range(num_subjects))


def cut_pieces(starts: NDArray[np.int64], num_pieces: int) -> list[NDArray[np.int64]]:
    """Consecutive pieces of nearly equal length, the longer ones first."""
    return np.array_split(starts, num_pieces)


def clients_of(pieces: Sequence[int]) -> list[range]:
    """The client ids of every subject: subject by subject, in order."""
    edges = np.cumsum([0, *pieces]).tolist()
    return [range(first, last) for first, last in pairwise(edges)]


def thin(num_windows: int, limit: int | None) -> NDArray[np.int64]:
    """Indices of at most `limit` windows, evenly spread over all of them."""
    if limit is None or num_windows <= limit:
        return np.arange(num_windows)
    return np.round(np.linspace(0, num_windows - 1, limit)).astype(np.int64)
