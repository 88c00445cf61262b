"""Interface of datasets, built in or a user's own: a ``Loader`` describes one and parses its files to ``Recording``s.

A format file needs this module alone: the description (``DatasetSpec``), the raw files (``Members``), the result
(``Recording``), and helpers for parsers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relief_ray.plugins.load import is_path, is_stored
from relief_ray.support.errors import UserError, listed

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]
# Raw codes of classes, or class indices.
Codes = NDArray[np.int16]
Mask = NDArray[np.bool_]
Facts = Mapping[str, float | str | list[int] | list[float]]
# The class index of rows without a known activity.
NULL = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetSpec:
    """Facts about a dataset; the format files hold those of the built-in ones, a user's file its own.

    Attributes:
        name: what ``data.name`` calls it; of a user's dataset its import path, whatever is written here.
        title: one line for lists and reports.
        rate_hz: samples per second after parsing.
        raw_rate_hz: samples per second in the files.
        modalities: (name, channels) in canonical order, the rarest last; columns of a parsed signal lie in that order.
        classes: class names; a label is an index into them.
        labels: the raw codes of ``classes``, in the same order: any whole numbers.
        subjects: the subjects' numbers in the files.
        citation: whom to cite.
        licence: what is allowed.
        doi: its DOI; empty without one.
        member: regular expression of a raw file's path in its folder or archive.
        url: the archive to download; empty where there is none.
        hints: parts of the names of folders and archives that are searched below the data root.
        packaged: the file of the package's assets, or the folder of stored arrays, that holds the dataset; empty where
            the user's files do.
        own_folder: files are only looked for in folders named like ``hints``, since their names say too little.
        units: body units whose channels make up a modality, in canonical order.
        max_abs: largest plausible absolute value of each modality, in raw units.
        activity_s: shortest and longest usual seconds of an activity per subject.
        fixed_length: whether all raw files have one length, so that synthetic ones cannot be shortened.
        window_s: seconds of a window; ``data.window_s`` of a configuration takes its place.
        null_labels: raw codes of rows without an activity, which no window is labelled with. A code of the files that
            is neither here nor in ``labels``, or in both, is refused, so that no class is left out without an error.
        max_nan_share: largest share of readings that `parse` filled in (``Recording.filled``), 0 to 1: of all, and of
            each channel for `relief-ray data verify`. The parsed signal itself holds no NaN.
        cut: whether bouts are windows that were cut before, one behind the other, which are taken as they are.
        lacks: sensors that a person does not have, by subject: ``{3: ("gyro",)}``. What `parse` returns in their
            columns is not read, so NaN may stand there.
    """

    name: str
    title: str
    rate_hz: int
    raw_rate_hz: int
    modalities: tuple[tuple[str, int], ...]
    classes: tuple[str, ...]
    labels: tuple[int, ...]
    subjects: tuple[int, ...]
    citation: str
    licence: str
    member: str
    doi: str = ""
    url: str = ""
    hints: tuple[str, ...] = ()
    packaged: str = ""
    own_folder: bool = False
    units: tuple[str, ...] = ()
    max_abs: tuple[float, ...] = ()
    activity_s: tuple[float, float] = (0.0, 0.0)
    fixed_length: bool = False
    window_s: float = 5.12
    null_labels: tuple[int, ...] = ()
    max_nan_share: float = 0.2
    cut: bool = False
    lacks: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def window(self) -> int:
        """Samples in one window: ``window_s`` times ``rate_hz``, rounded."""
        return round(self.window_s * self.rate_hz)

    @property
    def num_channels(self) -> int:
        """Channels of all modalities together."""
        return sum(channels for _, channels in self.modalities)

    @property
    def names(self) -> tuple[str, ...]:
        """Modality names in canonical order."""
        return tuple(name for name, _ in self.modalities)

    def columns(self) -> tuple[tuple[str, int, int], ...]:
        """Each modality with its first column and one past its last."""
        ranges, first = [], 0
        for name, channels in self.modalities:
            ranges.append((name, first, first + channels))
            first += channels
        return tuple(ranges)

    def sensors_of(self, subject: int) -> tuple[str, ...]:
        """The modalities that a subject has, in canonical order."""
        return tuple(name for name in self.names if name not in self.lacks.get(subject, ()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Members:
    """The raw files of an opened source, sorted by name, and how to read one."""

    names: tuple[str, ...]
    read: Callable[[str], bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """Rows of one subject. Inside a bout they follow each other at the sample rate; nothing holds between bouts.

    Attributes:
        subject: the subject's number in the files.
        signal: (rows, channels) float32 in raw units, modalities in canonical order.
        labels: (rows,) int16 raw codes.
        bouts: (n, 2) int64 first row and one past the last of every unbroken stretch.
        synthetic: whether the file is marked as SYNTHETIC.
        facts: the parser's findings, e.g. activities that are absent.
        filled: (rows, channels) bool, True where the files have no reading and `parse` made one up; None: nowhere.
    """

    subject: int
    signal: Floats
    labels: Codes
    bouts: Ints
    synthetic: bool = False
    facts: Facts = field(default_factory=dict)
    filled: Mask | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Loader:
    """A dataset; a user names an own one by its import path (``data.name=my.module:SLEEP``).

    Attributes:
        spec: the dataset's facts.
        files: ``files(spec, subject)`` gives the ends of the subject's file names below the data root.
        parse: ``parse(spec, members, path, subject)`` reads one subject: ``members.read(name)`` gives a file's bytes,
            ``members.names`` all files, ``path`` is the folder or archive, for error messages.
        synthesise: ``synthesise(spec, folder, subject, scale, rng)`` writes synthetic raw files of one subject below
            ``folder``, for `relief-ray data synth`; ``scale`` shortens every segment. None: there is no such form.
    """

    spec: DatasetSpec
    files: Callable[[DatasetSpec, int], list[str]]
    parse: Callable[[DatasetSpec, Members, Path, int], Recording]
    synthesise: Callable[[DatasetSpec, Path, int, float, np.random.Generator], None] | None = None


def require_members(spec: DatasetSpec, names: Sequence[str], expected: Sequence[str], path: Path) -> list[str]:
    """The member ending in each of `expected`, in that order.

    Raises:
        UserError: some are missing, or several files end alike; they are named.
    """
    depth = len(expected[0].split("/"))
    by_end: dict[str, list[str]] = {}
    for name in names:
        by_end.setdefault("/".join(name.split("/")[-depth:]), []).append(name)
    missing = [end for end in expected if end not in by_end]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise UserError(
            f"{path}: {len(missing)} of {len(expected)} files of {spec.name!r} are missing ({shown}); "
            + how_to_bring(spec)
        )
    if twice := next((by_end[end] for end in expected if len(by_end[end]) > 1), None):
        raise UserError(
            f"{path}: {listed(twice)} are all called as one file of {spec.name!r}, expected one of them; move the "
            "others out of that folder"
        )
    return [by_end[end][0] for end in expected]


def how_to_bring(spec: DatasetSpec) -> str:
    """Remedy where files are missing: a user's own dataset cannot be fetched."""
    if is_stored(spec.name):
        return f"delete the folder {spec.packaged}, and run the lines with rr.dataset(..) again"
    if is_path(spec.name):
        return "set RELIEF_DATA to the folder that holds all of them, or mend `files` of the loader"
    return f"fetch the whole dataset again: `relief-ray data fetch {spec.name}`"


def bouts_of(*keys: NDArray[np.generic]) -> Ints:
    """Start and stop of every maximal run in which all `keys` stay constant: (num_runs, 2)."""
    changes = [np.flatnonzero(key[1:] != key[:-1]) + 1 for key in keys]
    return bouts_between(np.unique(np.concatenate([[0, len(keys[0])], *changes])))


def bouts_where(wanted: Mask, *keys: NDArray[np.generic]) -> Ints:
    """Those of ``bouts_of`` that are wanted; the rows of a run are all wanted or all not."""
    bouts = bouts_of(*keys)
    return bouts[wanted[bouts[:, 0]]]


def bouts_between(edges: Ints) -> Ints:
    """Start and stop of bouts that lie side by side, from the first row to one past the last: (len(edges) - 1, 2)."""
    return np.stack([edges[:-1], edges[1:]], axis=1).astype(np.int64)


def fill_linear(column: Floats) -> Floats:
    """Interpolate NaN linearly between neighbours (ends: nearest value); ``Recording.filled`` says where it was."""
    missing = np.isnan(column)
    if not missing.any():
        return column
    rows = np.arange(len(column))
    return np.interp(rows, rows[~missing], column[~missing]).astype(np.float32)


def fill_forward(column: Floats) -> Floats:
    """Repeat the last reading; rows before the first reading stay NaN (filling them would look ahead)."""
    last = np.maximum.accumulate(np.where(np.isnan(column), 0, np.arange(len(column))))
    return column[last].astype(np.float32)
