"""Cells of a study, i.e. runs to be computed; their seeds, folds and replicates, and what a replicate draws."""

from __future__ import annotations

import re
from dataclasses import dataclass

from relief_ray.config.experiment import ExperimentConfig
from relief_ray.plugins.load import is_path
from relief_ray.strategies import method_name
from relief_ray.support.errors import UserError, clipped, counted, shown


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
# Of replicates, seeds or folds in one study; each is a run, whose settings are all checked before the first begins.
_MOST = 1000


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


def parse_numbers(option: str, text: str) -> tuple[int, ...]:
    """Return the numbers in ``0,1,2``, ``0-4`` or ``0-2,7``, each once and in this order.

    Raises:
        UserError: something else, or a range that runs backwards.
    """
    numbers: list[int] = []
    for part in text.strip("[] ").split(","):
        match = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise UserError(
                f"{option} {clipped(text)}: found {shown(part.strip())}, expected numbers from 0 on: a list "
                f"({option} 0,1,2) or a range ({option} 0-4)"
            )
        _refuse_many(f"{option} {clipped(text)}", len(numbers) + last + 1 - first)
        numbers += range(first, last + 1)
    return tuple(dict.fromkeys(numbers))


def _refuse_many(where: str, number: int) -> None:
    """Check that a study has a number of runs that can be planned.

    Raises:
        UserError: it has more.
    """
    if number > _MOST:
        raise UserError(f"{where}: {number} of them, expected at most {_MOST}; make several studies of them")


def lone_seed(found: str, number: int, several: str, single: str) -> UserError:
    """The error for a single number where seeds are expected: it could be a seed or a number of seeds; 0 is a seed.

    ``several`` and ``single``: how to ask for each, with ``{number}`` and ``{last}``, one less.
    """
    fixes = [text.format(number=number, last=number - 1) for text in (several, single)]
    if not number:
        return UserError(f"{found}: found one number; expected a list: {fixes[1]} for seed 0")
    return UserError(
        f"{found}: could be {counted(number, 'seed')} or seed {number}; expected a list: {fixes[0]} for "
        f"{counted(number, 'seed')} from 0 on, {fixes[1]} for seed {number}"
    )


def numbers(key: str, value: object) -> tuple[int, ...]:
    """Numbers of replicates, seeds or folds in a setting: ``[0, 5]`` or ``0-2,5``; ``replicates=3`` are 0, 1 and 2.

    Raises:
        UserError: neither, or a single seed, which could be a number of seeds.
    """
    if key == "seeds" and type(value) is int and value >= 0:
        raise lone_seed(f"--set seeds={value}", value, "--set seeds=0-{last}", "--set 'seeds=[{number}]'")
    if isinstance(value, str) and value[:1].isdecimal():
        return parse_numbers(f"--set {key}", value)
    listed = [value] if type(value) is int else value
    if key == "replicates" and type(value) is int:
        listed = range(value)
    if not isinstance(listed, list | range) or not listed or any(type(n) is not int or n < 0 for n in listed):
        more = f"a number of {key} or " if key == "replicates" else ""
        raise UserError(f"--set {key}={value}: expected {more}a list of numbers, e.g. --set '{key}=[0, 1]'")
    _refuse_many(f"--set {key}={shown(value)}", len(listed))
    return tuple(dict.fromkeys(listed))
