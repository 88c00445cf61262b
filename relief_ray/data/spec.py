"""A dataset's facts: rates, windows, modalities, classes, subjects, device types, citation and licence."""

from dataclasses import dataclass

_WINDOW_S = 5.12
# The class index of rows without a known activity.
NULL = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetSpec:
    """Facts about a dataset; the format files hold those of the built-in ones, a user's file its own.

    Attributes:
        name: what ``data.name`` calls it; of a user's dataset its import path, whatever is written here.
        title: one line for lists and reports.
        rate_hz: samples per second after parsing; ``raw_rate_hz`` those of the files.
        modalities: (name, channels) in canonical order, the rarest last; columns of a parsed signal lie in that order.
        classes: class names; a label is an index into them.
        labels: the raw codes of ``classes``, in the same order.
        subjects: the subjects' numbers in the files.
        type_counts: clients of device type A, B and C (built-in sets: the paper, Section VI).
        citation, licence, doi: whom to cite, and what is allowed.
        member: regular expression of a raw file's path in its folder or archive.
        url: the archive to download; empty where there is none.
        hints: parts of the names of folders and archives that are searched below the data root.
        packaged: the file of the package's assets that holds the dataset; empty where the user's files do.
        own_folder: files are only looked for in folders named like ``hints``, since their names say too little.
        units: body units whose channels make up a modality, in canonical order.
        max_abs: largest plausible absolute value of each modality, in raw units.
        activity_s: shortest and longest usual seconds of an activity per subject.
    """

    name: str
    title: str
    rate_hz: int
    raw_rate_hz: int
    modalities: tuple[tuple[str, int], ...]
    classes: tuple[str, ...]
    labels: tuple[int, ...]
    subjects: tuple[int, ...]
    type_counts: tuple[int, int, int]
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

    @property
    def window(self) -> int:
        """Samples in one window of 5.12 s."""
        return round(_WINDOW_S * self.rate_hz)

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
