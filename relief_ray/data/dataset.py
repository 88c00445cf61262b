"""Loading of a dataset: find the raw files, parse them once, memory-map the cached result from then on."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from relief_ray.data import cache
from relief_ray.data.checks import (
    content_digest,
    is_readable,
    recording_faults,
    refuse,
    same_people,
    shifted_codes,
)
from relief_ray.data.config import DataConfig
from relief_ray.data.file_faults import Reading, file_fault
from relief_ray.data.formats.dsa import unit_columns, with_units
from relief_ray.data.loader import DatasetSpec, Loader, Members, Recording, require_members
from relief_ray.data.registry import get_loader, get_spec
from relief_ray.data.source import Source, find_source, narrow, open_source
from relief_ray.plugins.load import is_path, line_in
from relief_ray.support.errors import UserCodeError, UserError
from relief_ray.support.files import cache_root, exclusive

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
        signal_sha256: sha256 of the file at ``signal_path``.
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
    signal_sha256: str
    load_s: float

    def signal(self) -> NDArray[np.float32]:
        """The memory-mapped signal, read-only."""
        signal: NDArray[np.float32] = np.load(self.signal_path, mmap_mode="r", allow_pickle=False)
        return signal


def load_dataset(
    name: str, root: str | Path | None = None, units: tuple[str, ...] = (), progress: Progress | None = None
) -> Dataset:
    """The dataset of that name below `root` (None: RELIEF_DATA, then the user's cache), parsed at most once.

    `units` picks body units of dsa. Raises UserError where files are missing or damaged, or where a user's loader
    returns what its description does not say, or where the parsed data in the cache are damaged.
    """
    start = time.monotonic()
    full_spec = get_spec(name)
    spec = with_units(full_spec, units)
    source = locate(get_loader(name), root)
    digest = cache.source_digest(full_spec, source)
    entry = cache.read_entry(_parsed(spec, source, digest, progress))
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
        signal_sha256=entry.signal_sha256,
        load_s=time.monotonic() - start,
    )


def open_dataset(config: DataConfig, root: str | Path | None = None, progress: Progress | None = None) -> Dataset:
    """The dataset of a configuration, with its units and its length of windows."""
    return replace(load_dataset(config.name, root, config.units, progress), spec=config.spec())


def locate(loader: Loader, root: str | Path | None = None) -> Source:
    """The raw files below `root`; of a user's dataset the one folder that holds all of them.

    Raises:
        UserError: there are none, or several folders hold them.
    """
    spec = loader.spec
    source = find_source(spec, root)
    return narrow(spec, source, _expected(loader)) if is_path(spec.name) else source


def _expected(loader: Loader) -> list[str]:
    """Ends of the names of all raw files."""
    try:
        return [name for subject in loader.spec.subjects for name in loader.files(loader.spec, subject)]
    except Exception as error:
        raise _fault_in(loader.spec, "files()", error) from error


def _fault_in(spec: DatasetSpec, what: str, error: Exception, in_file: str = "") -> Exception:
    """The error of a user's function as a UserCodeError with its line; that of a built-in one as it is.

    ``in_file``: words on the one file that is to blame, instead of the loader.
    """
    if isinstance(error, UserError) or not is_path(spec.name):
        return error
    module = spec.name.partition(":")[0]
    return UserCodeError(
        f"{spec.name}: {what} fails with {type(error).__name__}: {error}{line_in(error, module)}"
        + (in_file or "; mend the loader")
    )


def _parsed(spec: DatasetSpec, source: Source, digest: str, progress: Progress | None) -> Path:
    """The folder of the cache entry; a missing one is made by one process, while others on this machine wait."""
    folder = cache.entry_folder(spec, digest)
    if not folder.exists():
        with exclusive(cache_root() / "locks" / folder.name):
            if not folder.exists():
                _fill(spec, source, digest, folder, progress)
    return folder


def _fill(spec: DatasetSpec, source: Source, digest: str, folder: Path, progress: Progress | None) -> None:
    """Make the missing cache entry: parse everything, or cut units out of the full dataset that is parsed first."""
    full_spec = get_spec(spec.name)
    if spec.units != full_spec.units:
        _fill_units(spec, _parsed(full_spec, source, digest, progress), folder)
        return
    cache.store(spec, parse_source(spec, source, progress), source, folder)


def parse_source(spec: DatasetSpec, source: Source, progress: Progress | None = None) -> list[Recording]:
    """All subjects, parsed one after the other; `progress` is called with (what, done, total).

    Raises:
        UserError: files are missing or damaged, or a user's loader returns what its description does not say.
    """
    loader = get_loader(spec.name)
    recordings = []
    with open_source(spec, source) as members:
        require_members(spec, members.names, _expected(loader), source.path)
        for done, subject in enumerate(spec.subjects):
            if progress is not None:
                progress(f"{spec.name}: subject {subject}", done, len(spec.subjects))
            recordings.append(parse_subject(loader, members, source.path, subject))
    if is_path(spec.name):
        _check_recordings(spec, recordings)
    return recordings


def parse_subject(loader: Loader, members: Members, path: Path, subject: int) -> Recording:
    """One subject's recording; an error of a user's `parse` is a UserError that names its line, and the file."""
    if not is_path(loader.spec.name):
        return loader.parse(loader.spec, members, path, subject)
    reading = Reading(members)
    try:
        return loader.parse(loader.spec, reading.watched, path, subject)
    except UserError:
        raise
    except Exception as error:
        in_file = file_fault(loader, reading, path, subject)
        raise _fault_in(loader.spec, f"parse() of subject {subject}", error, in_file) from error


def _check_recordings(spec: DatasetSpec, recordings: Sequence[Recording]) -> None:
    """Check the recordings of all subjects, in the order of `spec.subjects`.

    Raises:
        UserError: they contradict the description; every fault is listed with both numbers and the fix.
    """
    pairs = list(zip(spec.subjects, recordings, strict=True))
    faults = [fault for subject, recording in pairs for fault in recording_faults(spec, subject, recording)]
    if is_readable(faults):
        faults += shifted_codes(spec, recordings)
    refuse(spec.name, faults or same_people({s: content_digest(recording) for s, recording in pairs}))


def _fill_units(spec: DatasetSpec, parent: Path, folder: Path) -> None:
    entry = cache.read_entry(parent)
    signal = np.load(entry.signal_path, mmap_mode="r", allow_pickle=False)[:, unit_columns(spec.units)]
    arrays = cache.Arrays(signal=signal, labels=entry.labels, bouts=entry.bouts)
    cache.write_entry(folder, arrays, entry.origin, entry.facts)
