"""Random generators by (seed, purpose, round, client), so that a new consumer never shifts the draws of another."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

_LAST_WORD = 2**32 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Streams:
    """Derives independent generators from the run's ``seed``; never touches a global generator."""

    seed: int

    def entropy(self, purpose: str, *key: int) -> list[int]:
        """Return the seed words of one generator; keys are shifted so that -1 is allowed.

        -1 becomes the largest word and not 0, since NumPy treats words with and without trailing zeros as equal.
        """
        word = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:4], "little")
        return [self.seed, word, *(k + 1 if k >= 0 else _LAST_WORD for k in key)]

    def numpy(self, purpose: str, *key: int) -> np.random.Generator:
        """Make a NumPy generator for ``purpose`` and, by convention, (round, client)."""
        return np.random.default_rng(np.random.SeedSequence(self.entropy(purpose, *key)))

    def torch(self, purpose: str, *key: int) -> torch.Generator:
        """Make a CPU torch generator for ``purpose`` and, by convention, (round, client)."""
        import torch

        words = np.random.SeedSequence(self.entropy(purpose, *key)).generate_state(2, np.uint32)
        return torch.Generator().manual_seed((int(words[0]) << 31) ^ int(words[1]))
