"""A client's prepared windows where they are too many to hold: read, standardised and prepared when rows are asked for.

Standardising and preparing treat every window on its own, so the values do not depend on which rows come together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from relief_ray.data.window_set import WindowSet

Prepare = Callable[[str, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LazyRows:
    """One modality of ``windows`` as the first stage reads it (n, ...); indexing computes the rows."""

    windows: WindowSet
    modality: str
    prepare: Prepare

    def __len__(self) -> int:
        """Number of windows."""
        return len(self.windows)

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        """Rows by slice or index (b,), float32 and contiguous."""
        index = torch.arange(len(self))[rows]
        (raw,) = self.windows.take(index.numpy()).load([self.modality]).values()
        # A copy in torch's own memory: kernels see the alignment that the gathered rows of a held tensor have.
        return self.prepare(self.modality, torch.from_numpy(raw)).clone(memory_format=torch.contiguous_format)


Rows = Tensor | LazyRows


def held_bytes(rows: Rows) -> int:
    """Memory that rows take between two uses."""
    return rows.numel() * rows.element_size() if isinstance(rows, Tensor) else 0
