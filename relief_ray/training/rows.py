"""A client's prepared windows where they are too many to hold: read, standardised and prepared when rows are asked for.

Standardising and preparing treat every window on its own, so the values do not depend on which rows come together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from relief_ray.data.window_set import WindowSet

Prepare = Callable[[str, Tensor], Tensor]
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LazyRows:
    """One modality of ``windows`` as the first stage reads it (n, ...); indexing computes the rows on ``device``."""

    windows: WindowSet
    modality: str
    prepare: Prepare
    device: torch.device = CPU

    def __len__(self) -> int:
        """Number of windows."""
        return len(self.windows)

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        """Rows by slice or index (b,), float32 and contiguous."""
        index = torch.arange(len(self))[rows if isinstance(rows, slice) else rows.cpu()]
        (raw,) = self.windows.take(index.numpy()).load([self.modality]).values()
        # A copy in torch's own memory: kernels see the alignment that the gathered rows of a held tensor have.
        prepared = self.prepare(self.modality, torch.from_numpy(raw))
        return prepared.clone(memory_format=torch.contiguous_format).to(self.device)


Rows = Tensor | LazyRows


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientInputs:
    """A client's windows, ready for the first stage: modality -> (n, ...) float32, and labels (n,) int64."""

    inputs: Mapping[str, Rows]
    labels: Tensor


def held_bytes(rows: Rows) -> int:
    """Memory that rows take between two uses."""
    return rows.numel() * rows.element_size() if isinstance(rows, Tensor) else 0
