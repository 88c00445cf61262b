"""Axes of `relief-ray run` as options: `--strategies a,b --seeds 0,1,2 --folds 0-3 --rounds 5`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relief_ray.config.experiment import override
from relief_ray.plugins.load import import_path
from relief_ray.studies.cells import lone_seed, parse_numbers
from relief_ray.studies.presets import Preset
from relief_ray.support.errors import UserError

# An option, and the setting that would fix the same axis.
_SETTINGS = (("seeds", "seed"), ("seeds", "replicates"), ("folds", "data.fold"), ("rounds", "rounds"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """Methods, seeds, folds and rounds that `run` is repeated over; None: as the preset has them.

    Attributes:
        strategies: names or import paths of methods.
        seeds: a run for each, in place of seeds or replicates.
        folds: folds of the held-out subjects.
        rounds: rounds of every run.
    """

    strategies: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    folds: tuple[int, ...] | None = None
    rounds: int | None = None


_MANY_DIGITS = 19


def parse_axes(strategies: str | None, seeds: str | None, folds: str | None, rounds: int | None) -> Axes:
    """Read the options as typed.

    Raises:
        UserError: a list that is none, or a single seed, which could be a number of seeds.
    """
    if seeds is not None and seeds.strip().isdecimal() and len(seeds.strip()) < _MANY_DIGITS:
        raise lone_seed(f"--seeds {seeds.strip()}", int(seeds), "--seeds 0-{last}", "--seeds [{number}]")
    return Axes(
        strategies=None if strategies is None else _names("--strategies", strategies),
        seeds=None if seeds is None else parse_numbers("--seeds", seeds),
        folds=None if folds is None else parse_numbers("--folds", folds),
        rounds=rounds,
    )


def _names(option: str, text: str) -> tuple[str, ...]:
    """Return the names in ``a,b``, each once; a file's path becomes an import path.

    Raises:
        UserError: there is none.
    """
    listed = tuple(dict.fromkeys(import_path(name.strip()) for name in text.split(",") if name.strip()))
    if not listed:
        raise UserError(f"{option}: found no name, expected e.g. {option} fedavg,relief")
    return listed


def with_axes(chosen: Preset, axes: Axes, settings: Sequence[str]) -> tuple[Preset, list[str]]:
    """The preset over these axes, and the settings with the number of rounds among them.

    Raises:
        UserError: an option and a setting choose the same, or folds of a split that has none.
    """
    _refuse_twice(axes, settings)
    values = dict(chosen.values)
    if axes.strategies is not None:
        values.pop("strategy", None)
        chosen = replace(chosen, strategies=axes.strategies)
    if axes.seeds is not None:
        values.pop("seed", None)
        chosen = replace(chosen, seeds=axes.seeds, replicates=())
    if axes.folds is not None:
        _refuse_without_folds(values, settings, axes.folds)
        chosen = replace(chosen, folds=axes.folds)
    rounds = [] if axes.rounds is None else [f"rounds={axes.rounds}"]
    return replace(chosen, values=values), [*rounds, *settings]


def _refuse_twice(axes: Axes, settings: Sequence[str]) -> None:
    for option, key in _SETTINGS:
        for setting in settings:
            if getattr(axes, option) is not None and setting.partition("=")[0] == key:
                raise UserError(f"--{option} and --set {setting}: choose the same; leave one of them out")


def _refuse_without_folds(values: dict[str, object], settings: Sequence[str], folds: Sequence[int]) -> None:
    data = override(values, settings).get("data")
    split = data.get("split") if isinstance(data, dict) else None
    if split != "held_out_subject":
        raise UserError(
            f"--folds {','.join(map(str, folds))}: the split {split or 'within_subject'} has no folds; expected "
            "--set data.split=held_out_subject with it, or no --folds"
        )
