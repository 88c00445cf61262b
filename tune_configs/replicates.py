"""Replicates: independent repetitions of a whole study, each fold of each with a seed of its own.

A replicate also decides which subject carries which device type (``fleet.rotation``), so that no conclusion rests on
one assignment of sensors to people. All methods of one fold and replicate share seed and rotation: they form a pair.
"""

from __future__ import annotations

from dataclasses import dataclass

# Above every seed that is chosen by hand; one hundred folds fit between two replicates.
FIRST_SEED, FOLDS = 10_000, 100
# Held-out DSA has six clients: after six rotations every subject has carried every type.
ROTATIONS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """Seed of a run and, where it belongs to a replicate, its number and rotation; None: as the settings say."""

    seed: int
    replicate: int | None = None
    rotation: int | None = None

    @property
    def settings(self) -> dict[str, int]:
        """The keys of the configuration that it sets."""
        values = {"seed": self.seed, "replicate": self.replicate, "fleet.rotation": self.rotation}
        return {key: value for key, value in values.items() if value is not None}


def draw_of(replicate: int, fold: int | None) -> Draw:
    """Seed and rotation of a fold of a replicate; ``fold`` None: the split has none."""
    seed = FIRST_SEED + FOLDS * replicate + (fold or 0)
    return Draw(seed=seed, replicate=replicate, rotation=replicate % ROTATIONS)
