"""What holds for a whole process that computes: how many threads, and what happens to memory that is free."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

MIB = 2**20
# glibc's mallopt(3). Blocks below the first are taken from the heap, and the heap shrinks once more than the second
# lies free at its end. By default every few training steps give tens of MiB back and fetch them again page by page.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES, LARGEST_HEAP_BLOCK_BYTES = 128 * MIB, 32 * MIB


def use_threads(number: int) -> None:
    """Pins torch's thread count, which sums depend on, and keeps memory that is freed for the next step."""
    torch.set_num_threads(number)
    keep_freed_memory()


@cache
def keep_freed_memory() -> bool:
    """Tells the C library not to return small and medium blocks to the system; ``False`` where it cannot be told."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False  # not glibc
    return all(
        mallopt(what, value) == 1
        for what, value in ((M_MMAP_THRESHOLD, LARGEST_HEAP_BLOCK_BYTES), (M_TRIM_THRESHOLD, KEPT_BYTES))
    )
