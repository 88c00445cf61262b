"""A shard: one client's training windows in a folder, for a device that may hold its own data only.

``rows.npy`` are the raw rows that the windows cover, ``windows.npz`` their starts (in those rows), labels and subjects,
``shard.json`` what they were cut out of. Standardisation is not part of it: it depends on who owns which sensor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

import numpy as np
from pydantic import BaseModel, JsonValue, ValidationError

from relief_ray.data.config import DataConfig
from relief_ray.data.dataset import DataReference, Dataset
from relief_ray.data.federated_data import federate, num_clients
from relief_ray.data.partition import available
from relief_ray.data.source import search_roots
from relief_ray.data.window_set import WindowSet
from relief_ray.support.errors import UserError
from relief_ray.support.files import disk_errors, folder_atomic, sha256_file

FACTS_FILE = "shard.json"
_ROWS_FILE, _WINDOWS_FILE = "rows.npy", "windows.npz"


class ShardFacts(BaseModel):
    """Content of ``shard.json``.

    Attributes:
        dataset: registry name or import path.
        client: client id.
        settings: the data settings that decide its windows (``DataConfig.deciding``).
        split: kind of split among them.
        num_windows: number of training windows.
        num_rows: rows of ``rows.npy``.
        signal_sha256: sha256 of the whole parsed signal that they were cut out of.
        windows_sha256: sha256 of the windows as the whole dataset has them (``_windows_digest``).
        rows_sha256: sha256 of ``rows.npy``.
    """

    dataset: str
    client: int
    settings: dict[str, JsonValue]
    split: str
    num_windows: int
    num_rows: int
    signal_sha256: str
    windows_sha256: str
    rows_sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """A shard on this machine."""

    folder: Path
    facts: ShardFacts


def _windows_digest(windows: WindowSet) -> str:
    """The sha256 over length, starts, labels and subjects of windows that were not cut out of their signal."""
    digest = hashlib.sha256(str(windows.window).encode())
    for values, kind in ((windows.starts, "<i8"), (windows.labels, "<i8"), (windows.subjects, "<i2")):
        digest.update(np.ascontiguousarray(values, kind).tobytes())
    return digest.hexdigest()


def write_shard(dataset: Dataset, config: DataConfig, client: int, out: Path) -> ShardFacts:
    """Write the training windows of one client into the new folder ``out``.

    Raises:
        UserError: there is no such client, or ``out`` is in use or cannot be written.
    """
    number = num_clients(dataset, config)
    if not 0 <= client < number:
        raise UserError(f"--client {client}: expected 0 to {number - 1}, the clients of {config.name} as configured")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists and is not empty, expected a new folder; choose another (--out DIR)")
    windows = federate(dataset, config, available(config, number)).clients[client]
    cut = windows.cut()
    assert cut.rows is not None
    with disk_errors(out, "write the shard"), folder_atomic(out) as part:
        np.save(part / _ROWS_FILE, cut.rows)
        np.savez(part / _WINDOWS_FILE, starts=cut.starts, labels=cut.labels, subjects=cut.subjects)
        facts = ShardFacts(
            dataset=config.name,
            client=client,
            settings=config.deciding(),
            split=config.split,
            num_windows=len(cut),
            num_rows=len(cut.rows),
            signal_sha256=dataset.signal_sha256,
            windows_sha256=_windows_digest(windows),
            rows_sha256=sha256_file(part / _ROWS_FILE),
        )
        (part / FACTS_FILE).write_text(facts.model_dump_json(indent=1))
    return facts


Shards = Mapping[int, tuple[Shard, ...]]


def find_shards(name: str) -> Shards:
    """The shards of a dataset by client: of the folders searched for data, each itself and those directly in it.

    A client has several where they were written with other settings, for example for every fold.

    Raises:
        UserError: a ``shard.json`` cannot be read.
    """
    fitting = [shard for shard in _all_shards() if shard.facts.dataset == name]
    return {n: tuple(s for s in fitting if s.facts.client == n) for n in sorted({s.facts.client for s in fitting})}


def shards_here() -> dict[str, tuple[int, ...]]:
    """Clients whose shards are on this machine, by dataset.

    Raises:
        UserError: a ``shard.json`` cannot be read.
    """
    return {name: tuple(find_shards(name)) for name in sorted({shard.facts.dataset for shard in _all_shards()})}


def _all_shards() -> list[Shard]:
    """All shards in the folders that are searched for data, and directly below them."""
    roots = [root for root in search_roots(None) if root.is_dir()]
    folders = [folder for root in roots for folder in (root, *sorted(root.iterdir()))]
    return [_read(folder) for folder in folders if (folder / FACTS_FILE).is_file()]


def _read(folder: Path) -> Shard:
    try:
        return Shard(folder=folder, facts=ShardFacts.model_validate_json((folder / FACTS_FILE).read_bytes()))
    except (OSError, ValidationError) as error:
        raise UserError(f"{folder / FACTS_FILE}: cannot be read ({error}); write the shard anew") from error


def open_shard(shards: Sequence[Shard], windows: WindowSet, reference: DataReference, machine: str) -> WindowSet:
    """A client's ``windows`` as a run has them, read from that of its shards which has them.

    ``machine`` names this machine in messages.

    Raises:
        UserError: the shards were cut out of another signal or with other settings, or one is damaged.
    """
    wanted = _windows_digest(windows)
    shard = next((s for s in shards if s.facts.windows_sha256 == wanted), shards[0])
    facts, place = shard.facts, f"shard {shard.folder} on {machine} (client {shard.facts.client})"
    command = f"write it anew: `{shard_command(reference, facts.client)}`"
    if facts.signal_sha256 != reference.signal_sha256:
        raise UserError(
            f"{place}: cut out of a signal of {facts.dataset!r} with the sha256 {facts.signal_sha256[:12]}, expected "
            f"the driver's {reference.signal_sha256[:12]}; {command}"
        )
    if facts.windows_sha256 != wanted:
        raise UserError(
            f"{place}: its windows have the sha256 {facts.windows_sha256[:12]}, expected {wanted[:12]} of this run; "
            f"other settings: {_differences(facts.settings, reference.settings)}; {command}"
        )
    try:
        digest = sha256_file(shard.folder / _ROWS_FILE)
        rows = np.load(shard.folder / _ROWS_FILE, mmap_mode="r", allow_pickle=False)
        starts = np.load(shard.folder / _WINDOWS_FILE, allow_pickle=False)["starts"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{place}: damaged ({error}); {command}") from error
    if digest != facts.rows_sha256:
        raise UserError(
            f"{place}: its rows have the sha256 {digest[:12]}, expected {facts.rows_sha256[:12]}; {command}"
        )
    return replace(windows, signal_path="", starts=starts, rows=rows)


def shard_command(reference: DataReference, client: int) -> str:
    """The command that writes the shard of a client of this run."""
    usual = DataConfig(name=reference.name).deciding()
    other = {key: value for key, value in reference.settings.items() if value != usual.get(key)}
    words = (f"data.{k}={v if isinstance(v, str) else json.dumps(v, separators=(',', ':'))}" for k, v in other.items())
    settings = "".join(f" --set {quote(word)}" for word in words)
    return f"relief-ray data shard {reference.name} --client {client}{settings} --out DIR"


def _differences(mine: Mapping[str, JsonValue], theirs: Mapping[str, JsonValue]) -> str:
    keys = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
    return ", ".join(f"data.{key} {mine.get(key)!r}, here {theirs.get(key)!r}" for key in keys) or "none"
