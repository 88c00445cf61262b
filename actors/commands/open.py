"""Opens what a command that trains nothing looks at: a preset, a file, or a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from actors.commands.plan import cells_of, load_preset
from relief_ray.config import ExperimentConfig, override, parse
from relief_ray.records.reading import RUN_FILE, read_run
from relief_ray.setup import Setup, prepare
from relief_ray.simulation import stored_engine


def open_target(target: str, settings: Sequence[str], strategy: str | None = None) -> Setup:
    """The first run that `relief-ray run TARGET` would make, or the run in a folder, with ``settings`` applied.

    Raises:
        UserError: the target is neither, or its data are not there.
    """
    return prepare(target_config(target, [*settings, *([f"strategy={strategy}"] if strategy else [])]))


def target_config(target: str, settings: Sequence[str]) -> ExperimentConfig:
    """Its configuration."""
    folder = Path(target)
    if (folder / RUN_FILE).exists():
        return parse(override(read_run(folder).config, settings), str(folder / RUN_FILE))
    return next(cells_of(load_preset(target), settings, folder)).config


def open_run(folder: Path) -> Setup:
    """A run as it was started, to be looked at while it may be running.

    Raises:
        UserError: no run is there, or its data are gone.
    """
    run = read_run(folder)
    return prepare(parse(run.config, str(folder / RUN_FILE)), engine=stored_engine(run))
