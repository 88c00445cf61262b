"""A dataset of a user's own: its description and how its raw files are read, in a file outside the package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from relief_ray.data.sensor_recording import Recording
from relief_ray.errors import UserError
from relief_ray.plugins import load

if TYPE_CHECKING:
    from relief_ray.data.source import Members
    from relief_ray.data.spec import DatasetSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Loader:
    """A dataset by import path (``data.name=my.module:SLEEP``).

    ``files(spec, subject)`` are the ends of the subject's file names below RELIEF_DATA; ``parse(spec, members, path,
    subject)`` reads them: ``members.read(name)`` gives a file's bytes, ``members.names`` what there is.
    """

    spec: DatasetSpec
    files: Callable[[DatasetSpec, int], list[str]]
    parse: Callable[[DatasetSpec, Members, Path, int], Recording]


def own_loader(path: str) -> Loader:
    """The user's dataset, under the name that it was asked for by.

    Raises:
        UserError: nothing usable is at the import path.
    """
    found = load(path, "data.name")
    if not isinstance(found, Loader):
        raise UserError(
            f"data.name = {path!r}: found a {type(found).__name__}, expected a {Loader.__module__}.Loader "
            "(spec=DatasetSpec(..), files=.., parse=..)"
        )
    return replace(found, spec=replace(found.spec, name=path))
