"""A parsed dataset by name: what another machine needs to find the same values among its own files.

A path is worth nothing on another machine. A name, the data settings, the key of the cache entry and the digest of the
parsed signal are: every machine finds or parses the dataset itself and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from relief_ray.data import cache
from relief_ray.data.dataset import load_dataset
from relief_ray.support.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class DataReference:
    """A parsed dataset by name.

    Attributes:
        name: a built-in dataset, or the import path of a user's ``Loader``.
        key: name of the cache entry: sha256 over raw files, parser and description (``cache.cache_key``).
        signal_sha256: sha256 of the parsed signal's file.
        units: body units of dsa that take part; empty: all.
        settings: the data settings that decide which windows a client has (``DataConfig.deciding``).
    """

    name: str
    key: str
    signal_sha256: str
    units: tuple[str, ...] = ()
    settings: Mapping[str, JsonValue] = field(default_factory=dict)


class SignalAbsent(UserError):
    """The dataset is not on this machine; the message says where it was looked for."""


def find_signal(reference: DataReference, machine: str) -> Path:
    """The parsed signal among this machine's own files: its cache, else parsed once from the files found here.

    Nothing is fetched. Opening the entry checks its bytes, so the digest in it is compared. ``machine`` names
    this machine in messages.

    Raises:
        SignalAbsent: there is no such dataset here, or it cannot be read or cached.
        UserError: there is, but its signal has another digest, both are shown; or its cache entry is damaged.
    """
    folder = cache.keyed_folder(reference.name, reference.key)
    try:
        here = cache.read_entry(folder) if folder.exists() else load_dataset(reference.name, units=reference.units)
    except cache.DamagedEntry as error:
        raise UserError(f"dataset {reference.name!r} on {machine}: {error}") from error
    except (UserError, OSError) as error:
        raise SignalAbsent(str(error)) from error
    path, digest = here.signal_path, here.signal_sha256
    if digest != reference.signal_sha256:
        raise UserError(
            f"dataset {reference.name!r} on {machine}: its parsed signal {path} has the sha256 {digest[:12]}, expected "
            f"the driver's {reference.signal_sha256[:12]}; delete {path.parent} to parse it anew, bring the same raw "
            "files there, or send rows instead: runtime.data=ship"
        )
    return path
