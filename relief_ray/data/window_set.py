"""Windows by reference: the signal's file and each window's first row. Values are loaded when they are used.

`WindowSet.cut` copies the windows' rows into the object, for another machine.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from relief_ray.data.loader import Codes, Floats, Ints, Mask
from relief_ray.support.errors import UserError


def open_signal(path: Path | str) -> Floats:
    """A signal's file, memory-mapped and read-only."""
    signal: Floats = np.load(path, mmap_mode="r", allow_pickle=False)
    return signal


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WindowSet:
    """Windows of one client or part, as references into a signal file; small and picklable. ``cut`` adds the rows.

    Attributes:
        signal_path: .npy of (rows, channels) float32 in raw units.
        starts: (n,) int64 first row of every window.
        labels: (n,) int64 class index.
        subjects: (n,) int16 subject position.
        window: samples per window.
        columns: modality, first column and one past its last, in canonical order.
        mean: (channels,) float32, subtracted from raw values.
        std: (channels,) float32, by which they are divided.
        rows: (rows, channels) float32 in raw units, the windows' part of the signal (``cut``): ``starts`` count in it
            and the file is not read; None: the signal is in the file.
        absent: sensors that subjects lack, by subject position (``DatasetSpec.lacks``).
    """

    signal_path: str
    starts: Ints
    labels: Ints
    subjects: Codes
    window: int
    columns: tuple[tuple[str, int, int], ...]
    mean: Floats
    std: Floats
    rows: Floats | None = None
    absent: Mapping[int, frozenset[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of windows."""
        return len(self.starts)

    @property
    def modalities(self) -> tuple[str, ...]:
        """Modality names in canonical order."""
        return tuple(name for name, _, _ in self.columns)

    def load(self, modalities: Collection[str] | None = None) -> dict[str, Floats]:
        """The standardised windows, modality -> (n, C_m, window) float32, C-contiguous; all modalities if None.

        A sensor that a window's subject lacks is zero there, which is its mean.

        Raises UserError for a modality that the dataset does not have.
        """
        columns = self._columns(modalities)
        signal = self._signal()  # where no window was cut out it may be shorter than one
        view = sliding_window_view(signal, self.window, axis=0) if len(self) else signal
        blocks = {name: self._block(view, first, stop) for name, first, stop in columns}
        for lacked, rows in self.lacking():
            for name in lacked & blocks.keys():
                blocks[name][rows] = 0.0
        return blocks

    def digest(self, modalities: Collection[str]) -> str:
        """The sha256 of everything except the signal's file on which ``load`` and the labels depend."""
        absent = sorted((position, sorted(names)) for position, names in self.absent.items())
        rows = None if self.rows is None else self.rows.shape
        digest = sha256(repr((len(self), self.window, self.columns, [*modalities], absent, rows)).encode())
        for values in (self.starts, self.labels, self.subjects, self.mean, self.std, self.rows):
            digest.update(b"" if values is None else values.tobytes())
        return digest.hexdigest()

    def lacking(self) -> list[tuple[frozenset[str], Mask]]:
        """Each set of sensors that subjects of these windows lack, with their windows (n,); empty where nobody does."""
        return [
            (lacked, rows)
            for lacked in dict.fromkeys(self.absent.values())
            if (rows := np.isin(self.subjects, [who for who, names in self.absent.items() if names == lacked])).any()
        ]

    def complete(self) -> "WindowSet":
        """The windows of subjects who have every sensor."""
        return self.take(np.flatnonzero(~np.isin(self.subjects, list(self.absent)))) if self.absent else self

    def _columns(self, modalities: Collection[str] | None) -> list[tuple[str, int, int]]:
        wanted = self.modalities if modalities is None else modalities
        unknown = sorted(set(wanted) - set(self.modalities))
        if unknown:
            raise UserError(f"modalities {unknown} unknown; the dataset has {', '.join(self.modalities)}")
        return [column for column in self.columns if column[0] in wanted]

    def _signal(self) -> Floats:
        return open_signal(self.signal_path) if self.rows is None else self.rows

    def _block(self, view: Floats, first: int, stop: int) -> Floats:
        block = np.empty((len(self), stop - first, self.window), np.float32)
        for row, start in enumerate(self.starts):
            block[row] = view[start, first:stop]
        block -= self.mean[first:stop, None]
        block /= self.std[first:stop, None]
        return block

    def cut(self, modalities: Collection[str] | None = None) -> "WindowSet":
        """The same windows with their rows in memory: only rows that a window covers, only columns of `modalities`.

        `load` gives the same bits. Raises UserError for a modality that the dataset does not have.
        """
        signal, columns = np.asarray(self._signal()), self._columns(modalities)
        covered = np.flatnonzero(row_counts(self.starts, self.window, len(signal)))
        kept = np.concatenate([np.empty(0, np.int64), *(np.arange(first, stop) for _, first, stop in columns)])
        ends = np.cumsum([stop - first for _, first, stop in columns]).tolist()
        return replace(
            self,
            signal_path="",
            starts=np.searchsorted(covered, self.starts),
            columns=tuple(
                (name, end - stop + first, end) for (name, first, stop), end in zip(columns, ends, strict=True)
            ),
            mean=self.mean[kept],
            std=self.std[kept],
            rows=np.ascontiguousarray(signal[np.ix_(covered, kept)]),
        )

    def take(self, index: Ints | Sequence[int]) -> "WindowSet":
        """The windows at these places, in this order."""
        chosen = np.asarray(index, np.int64)
        return replace(self, starts=self.starts[chosen], labels=self.labels[chosen], subjects=self.subjects[chosen])


def row_counts(starts: Ints, window: int, num_rows: int) -> Ints:
    """Number of windows that contain each row: (num_rows,)."""
    edges = np.bincount(starts, minlength=num_rows + 1) - np.bincount(starts + window, minlength=num_rows + 1)
    return np.cumsum(edges[:num_rows])


def pool(sets: Sequence[WindowSet]) -> WindowSet:
    """All windows of sets over the same signal, one after the other."""
    assert sets and len({part.signal_path for part in sets}) == 1, "pooled sets share one signal"
    assert all(part.rows is None for part in sets), "what was cut out of it counts rows of its own"
    return replace(
        sets[0],
        starts=np.concatenate([part.starts for part in sets]),
        labels=np.concatenate([part.labels for part in sets]),
        subjects=np.concatenate([part.subjects for part in sets]),
    )
