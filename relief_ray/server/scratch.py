"""Float64 arithmetic on float32 values in kept memory."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import torch
from torch import Tensor

# Values that are widened to float64 at a time: small enough to stay in a core's cache until they are added.
CHUNK = 65_536
# Float64 values in 64 bytes: groups begin at full lines, since a dot product's last bits depend on that.
LINE = 8


class Scratch:
    """Kept float64 buffers: large blocks allocated anew each time cost more than the arithmetic.

    An update is measured and then added: ``hold`` widens it once for both. Nothing here changes a bit.
    """

    def __init__(self) -> None:
        """A buffer of one chunk; the one for a whole update comes when it is asked for."""
        self._chunk = torch.empty(CHUNK, dtype=torch.float64)
        self._whole = torch.empty(0, dtype=torch.float64)
        self._held: dict[int, tuple[Tensor, Tensor]] = {}

    def hold(self, update: Iterable[Tensor]) -> None:
        """Widens these values until the next call; they must not change meanwhile."""
        self._held, parts = {}, list(update)
        starts = list(accumulate((-(-x.numel() // LINE) * LINE for x in parts), initial=0))
        if len(self._whole) < starts[-1]:
            self._whole = torch.empty(starts[-1], dtype=torch.float64)
        for start, values in zip(starts, parts, strict=False):
            exact = self._whole[start : start + values.numel()].copy_(values.reshape(-1))
            self._held[id(values)] = (values, exact)

    def add_to(self, total: Tensor, values: Tensor, weight: float = 1.0) -> None:
        """``total += weight * values`` in float64; ``values`` may be float32."""
        held = self._exact(values)
        if held is not None and weight == 1.0:
            total.add_(held)
            return
        for into, chunk in zip(torch.split(total, CHUNK), torch.split(values, CHUNK), strict=True):
            exact = self._chunk[: chunk.numel()].copy_(chunk)
            into.add_(exact if weight == 1.0 else exact.mul_(weight))

    def square(self, values: Tensor) -> float:
        """``|values|^2`` in float64."""
        total, held = 0.0, self._exact(values)
        for chunk in torch.split(values.reshape(-1) if held is None else held, CHUNK):
            exact = self._chunk[: chunk.numel()].copy_(chunk) if held is None else chunk
            total += float(exact.dot(exact))
        return total

    def _exact(self, values: Tensor) -> Tensor | None:
        of, exact = self._held.get(id(values), (None, None))
        return exact if of is values else None
