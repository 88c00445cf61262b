"""Passes over a model's values on the CPU that go through memory once."""

from __future__ import annotations

import numpy as np
from torch import Tensor


def add_exactly(first: Tensor, second: Tensor, into: Tensor) -> Tensor:
    """``first + second`` (n,) in float64, rounded to the type of ``into``, which may be ``first``.

    All on the CPU, float32 or float64. numpy widens a piece at a time, while it is in the cache; torch would write a
    widened copy of everything first.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # as in torch: whoever reads the result judges it
        a, b = first.detach().numpy(), second.detach().numpy()
        np.add(a, b, out=into.numpy(), dtype=np.float64, casting="same_kind")
    return into
