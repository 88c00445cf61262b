"""Loading of a dataset: find the raw files, parse them once, memory-map the cached result from then on."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from relief_ray.data import cache
from relief_ray.data.config import DataConfig
from relief_ray.data.formats.dsa import unit_columns, with_units
from relief_ray.data.loader import DatasetSpec, Recording, require_members
from relief_ray.data.registry import get_loader, get_spec
from relief_ray.data.source import Source, find_source, open_source

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """A parsed dataset; its signal stays on disk.

    Attributes:
        spec: the dataset's facts, with the chosen body units.
        source: place of the raw files.
        source_digest: sha256 of the raw files.
        digest: sha256 over raw files, parser and description: what is parsed here.
        origin: `real` or `SYNTHETIC`.
        signal_path: .npy of (rows, channels) float32 in raw units.
        labels: (rows,) int16 class index, -1 without a known activity.
        bouts: (num_bouts, 3) int64 subject position, first row, one past the last.
        facts: the parser's findings by subject.
        load_s: seconds that loading took.
    """

    spec: DatasetSpec
    source: Source
    source_digest: str
    digest: str
    origin: cache.Origin
    signal_path: Path
    labels: NDArray[np.int16]
    bouts: NDArray[np.int64]
    facts: Mapping[str, Mapping[str, object]]
    load_s: float

    def signal(self) -> NDArray[np.float32]:
        """The memory-mapped signal, read-only."""
        signal: NDArray[np.float32] = np.load(self.signal_path, mmap_mode="r", allow_pickle=False)
        return signal


def load_dataset(
    name: str, root: str | Path | None = None, units: tuple[str, ...] = (), progress: Progress | None = None
) -> Dataset:
    """The dataset of that name below `root` (None: RELIEF_DATA, then the user's cache), parsed at most once.

    `units` picks body units of dsa. Raises UserError where files are missing or damaged.
    """
    start = time.monotonic()
    full_spec = get_spec(name)
    spec = with_units(full_spec, units)
    source = find_source(full_spec, root)
    digest = cache.source_digest(full_spec, source)
    folder = cache.entry_folder(spec, digest)
    if not folder.exists():
        _fill(spec, source, digest, folder, progress)
    entry = cache.read_entry(folder)
    return Dataset(
        spec=spec,
        source=source,
        source_digest=digest,
        digest=cache.cache_key(spec, digest),
        origin=entry.origin,
        signal_path=entry.signal_path,
        labels=entry.labels,
        bouts=entry.bouts,
        facts=MappingProxyType(entry.facts),
        load_s=time.monotonic() - start,
    )


def open_dataset(config: DataConfig, root: str | Path | None = None, progress: Progress | None = None) -> Dataset:
    """The dataset of a configuration, with its units."""
    return load_dataset(config.name, root, config.units, progress)


def _fill(spec: DatasetSpec, source: Source, digest: str, folder: Path, progress: Progress | None) -> None:
    """Make the missing cache entry: parse everything, or cut units out of the full dataset that is parsed first."""
    full_spec = get_spec(spec.name)
    if spec.units != full_spec.units:
        _fill_units(spec, full_spec, source, digest, folder, progress)
        return
    cache.store(spec, parse_source(spec, source, progress), source, folder)


def parse_source(spec: DatasetSpec, source: Source, progress: Progress | None = None) -> list[Recording]:
    """All subjects, parsed one after the other; `progress` is called with (what, done, total)."""
    loader = get_loader(spec.name)
    recordings = []
    with open_source(spec, source) as members:
        expected = [name for subject in spec.subjects for name in loader.files(spec, subject)]
        require_members(spec, members.names, expected, source.path)
        for done, subject in enumerate(spec.subjects):
            if progress is not None:
                progress(f"{spec.name}: subject {subject}", done, len(spec.subjects))
            recordings.append(loader.parse(spec, members, source.path, subject))
    return recordings


def _fill_units(
    spec: DatasetSpec, full_spec: DatasetSpec, source: Source, digest: str, folder: Path, progress: Progress | None
) -> None:
    parent = cache.entry_folder(full_spec, digest)
    if not parent.exists():
        _fill(full_spec, source, digest, parent, progress)
    entry = cache.read_entry(parent)
    signal = np.load(entry.signal_path, mmap_mode="r", allow_pickle=False)[:, unit_columns(spec.units)]
    cache.write_entry(folder, signal, entry.labels, entry.bouts, entry.origin, entry.facts)
