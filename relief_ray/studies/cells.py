"""Cells of a study, i.e. runs to be computed; their seeds, folds and replicates, and what a replicate draws."""

from __future__ import annotations

from dataclasses import dataclass

from relief_ray.config import ExperimentConfig
from relief_ray.errors import UserError
from relief_ray.plugins import is_path
from relief_ray.strategies import method_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A run to be computed.

    Attributes:
        name: that of its folder; a grid's cells end in the first digits of ``hash``.
        label: name of its strategy.
        setting: part of the name without method, fold and seed; empty outside of grids.
        config: its checked configuration.
        hash: that of the configuration.
    """

    name: str
    label: str
    setting: str
    config: ExperimentConfig
    hash: str

    @property
    def method(self) -> str:
        """Name of its method for tables: a user's own goes by the name that its file states."""
        return method_name(self.config.strategy, self.label) if is_path(self.label) else self.label


# Above every seed that is chosen by hand; one hundred folds fit between two replicates.
FIRST_SEED, FOLDS = 10_000, 100
# Held-out DSA has six clients: after six rotations every subject has carried every type.
_ROTATIONS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """Seed of a run and, where it belongs to a replicate, its number and rotation; None: as the settings say."""

    seed: int
    replicate: int | None = None
    rotation: int | None = None

    @property
    def settings(self) -> dict[str, int]:
        """Keys of the configuration that it sets."""
        values = {"seed": self.seed, "replicate": self.replicate, "fleet.rotation": self.rotation}
        return {key: value for key, value in values.items() if value is not None}


def draw_of(replicate: int, fold: int | None) -> Draw:
    """Return seed and rotation of a fold of a replicate; ``fold`` None: the split has none.

    A replicate is an independent repetition of a whole study, each fold of it with a seed of its own. It also decides
    which subject carries which device type, so that no conclusion rests on one assignment of sensors to people. All
    methods of one fold and replicate share both: they form a pair.
    """
    seed = FIRST_SEED + FOLDS * replicate + (fold or 0)
    return Draw(seed=seed, replicate=replicate, rotation=replicate % _ROTATIONS)


def numbers(key: str, value: object) -> tuple[int, ...]:
    """Numbers of replicates, seeds or folds: ``3`` seeds are 0, 1 and 2; ``[0, 5]`` are those.

    Raises:
        UserError: neither.
    """
    listed = [value] if type(value) is int else value
    if key != "folds" and type(value) is int:
        listed = range(value)
    if not isinstance(listed, list | range) or not listed or any(type(n) is not int or n < 0 for n in listed):
        more = "" if key == "folds" else f"a number of {key} or "
        raise UserError(f"--set {key}={value}: expected {more}a list of numbers, e.g. --set '{key}=[0, 1]'")
    return tuple(dict.fromkeys(listed))
