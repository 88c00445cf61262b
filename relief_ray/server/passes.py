"""Passes over a model's values on the CPU that go through memory once."""

from __future__ import annotations

import numpy as np
from torch import Tensor


def add_exactly(first: Tensor, second: Tensor, into: Tensor) -> Tensor:
    """``first + second`` (n,) in float64 whatever they are, rounded to the type of ``into``, which may be ``first``.

    numpy widens a piece at a time, while it is in the cache; torch would write a widened copy of everything first.
    """
    np.add(first.numpy(), second.numpy(), out=into.numpy(), dtype=np.float64, casting="same_kind")
    return into
