"""Standardised data as training reads them: clients' windows, validation, test, digest and coverage.

Mean and standard deviation per channel are exactly those over all training windows of the clients that own a modality.
Overlapping windows repeat rows; instead of copying them, every row counts as often as windows contain it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np

from relief_ray.data.config import DataConfig
from relief_ray.data.dataset import DataReference, Dataset, Origin
from relief_ray.data.loader import DatasetSpec, Doubles, Floats, Ints
from relief_ray.data.partition import (
    Split,
    Starts,
    Table,
    available,
    people_of,
    split_windows,
    stride_rows,
    training_positions,
)
from relief_ray.data.window_set import WindowSet, open_signal, row_counts
from relief_ray.support.errors import UserError, listed
from relief_ray.support.files import sha256_json

_CHUNK = 1 << 16

# A deviation below float32's resolution of the mean is a channel that never moves, in whatever unit it is recorded.
_RESOLUTION = 2.0**-24


def _weighted_stats(signal: Floats, counts: Ints, columns: slice) -> tuple[Doubles, Doubles]:
    """Population mean and standard deviation per channel over rows weighted by `counts`; two passes in float64."""
    rows = np.flatnonzero(counts)
    chunks = [rows[first : first + _CHUNK] for first in range(0, len(rows), _CHUNK)]
    total = float(counts.sum())
    mean = sum(counts[part] @ signal[part, columns].astype(np.float64) for part in chunks) / total
    square = sum(counts[part] @ (signal[part, columns].astype(np.float64) - mean) ** 2 for part in chunks) / total
    return np.asarray(mean), np.sqrt(square)


def standardisation(
    signal: Floats,
    columns: Sequence[tuple[str, int, int]],
    window: int,
    clients: Sequence[Starts],
    owned: Sequence[Collection[str]],
) -> tuple[Floats, Floats]:
    """Mean and std (channels,) float32; std 1 where a channel never moves; UserError for an ownerless modality."""
    mean = np.zeros(signal.shape[1], np.float32)
    std = np.ones(signal.shape[1], np.float32)
    counted: dict[tuple[int, ...], Ints] = {}
    for name, first, stop in columns:
        owners = tuple(client for client, has in enumerate(owned) if name in has)
        if not owners:
            raise UserError(
                f"modality {name!r} is a modality without owner: none of the {len(owned)} clients has it; give it to a "
                "device type of the fleet or choose a dataset without it"
            )
        if owners not in counted:
            counted[owners] = row_counts(np.concatenate([clients[o] for o in owners]), window, len(signal))
        centre, spread = _weighted_stats(signal, counted[owners], slice(first, stop))
        mean[first:stop] = centre
        std[first:stop] = np.where(spread <= _RESOLUTION * np.abs(centre), 1.0, spread)
    return mean, std


@lru_cache(maxsize=1)
def _kept(
    signal_path: Path,
    signal_sha256: str,
    columns: tuple[tuple[str, int, int], ...],
    window: int,
    clients: tuple[bytes, ...],
    owned: tuple[frozenset[str], ...],
) -> tuple[Floats, Floats]:
    """The ``standardisation`` of the last content that this process asked for: cells of a fold have the same one.

    What is kept are two values a channel, and as its key the clients' first rows (``clients``: their bytes).
    """
    starts = [np.frombuffer(each, np.int64) for each in clients]
    values = standardisation(open_signal(signal_path), columns, window, starts, owned)
    for each in values:
        each.flags.writeable = False
    return values


Purpose = Literal["run", "tune"]


class ClientCoverage(TypedDict):
    """One client: its subject (`mixed`: several) and windows per class."""

    client: int
    subject: int | str
    train: list[int]
    validation: list[int]


class _Lacking(TypedDict, total=False):
    """Sensors that people who take part lack, by subject, and windows that were filled in too much; absent if none."""

    lacking: dict[str, list[str]]
    left_out: dict[str, int]


class Coverage(_Lacking):
    """Windows per client, part and class; JSON-able.

    Attributes:
        classes: class names.
        clients: training and validation windows of every client.
        train: training windows by class.
        validation: validation windows by class.
        test: test windows by class.
        single_class_clients: clients that train on one class only.
        window_s: seconds of a window.
    """

    classes: list[str]
    clients: list[ClientCoverage]
    train: list[int]
    validation: list[int]
    test: list[int]
    single_class_clients: list[int]
    window_s: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FederatedData:
    """Windows of every client, and pooled validation and test windows.

    Attributes:
        spec: the dataset's facts.
        digest: sha256 over source bytes, parser version and data configuration.
        origin: `real` or `SYNTHETIC`.
        clients: training windows by client id.
        validation: validation windows of all subjects together.
        coverage: windows per client, part and class.
        test_or_none: test windows of all subjects; None where the data were opened for tuning.
        reference: the dataset by name, for other machines; None: made-up windows that only this machine has.
    """

    spec: DatasetSpec
    digest: str
    origin: Origin
    clients: tuple[WindowSet, ...]
    validation: WindowSet
    coverage: Coverage
    test_or_none: WindowSet | None
    reference: DataReference | None = None

    @property
    def test(self) -> WindowSet:
        """The pooled test windows; UserError where the data were opened for tuning."""
        if self.test_or_none is None:
            raise UserError(
                "the test part is closed: these data were opened with purpose='tune', which may read training and "
                "validation only; score the chosen configuration in a run of its own"
            )
        return self.test_or_none


# So many clients are dealt windows in no time; who of them has none is said then. A million of them takes minutes.
_CHEAP = 10_000


def num_clients(dataset: Dataset | DatasetSpec, config: DataConfig) -> int:
    """Clients of a run: `config.num_clients`, else one per subject that is not held out.

    Raises:
        UserError: another dataset than the configuration's, or more clients than it has windows.
    """
    spec, expected = dataset.spec if isinstance(dataset, Dataset) else dataset, config.spec()
    if spec != expected:
        raise UserError(
            f"dataset {spec.name!r} (units {spec.units}, windows of {spec.window_s:g} s) does not fit the "
            f"configuration's {config.name!r} (units {expected.units}, windows of {expected.window_s:g} s); "
            "load it with open_dataset(config)"
        )
    number = config.num_clients or len(training_positions(config))
    if isinstance(dataset, Dataset):
        most = len(dataset.labels) // stride_rows(config.stride_s, dataset.spec.rate_hz) + len(dataset.bouts)
        if number > max(most, _CHEAP):
            raise UserError(
                f"data.num_clients = {number}: expected at most a client per window, {dataset.spec.name} has at most "
                f"{most} every {config.stride_s:g} s; lower data.num_clients, or data.stride_s"
            )
    return number


def federate(
    dataset: Dataset, config: DataConfig, owned: Sequence[Collection[str]], purpose: Purpose = "run"
) -> FederatedData:
    """Split the windows, assign them to clients and standardise them; `owned[n]` are client n's modalities.

    Raises UserError for a wrong number of clients, an unknown or ownerless modality, one that a client's subject lacks,
    or a client without windows.
    """
    _check(dataset, config, owned)
    split, spec = split_windows(dataset, config, len(owned)), dataset.spec
    starts = tuple(table[:, 0].tobytes() for table in split.train)
    content = dataset.signal_path, dataset.signal_sha256, spec.columns(), spec.window, starts
    mean, std = _kept(*content, tuple(map(frozenset, owned)))
    absent = {position: frozenset(spec.lacks[s]) for position, s in enumerate(spec.subjects) if s in spec.lacks}

    def windows(table: Table) -> WindowSet:
        return WindowSet(
            signal_path=str(dataset.signal_path),
            starts=np.ascontiguousarray(table[:, 0]),
            labels=np.ascontiguousarray(table[:, 1]),
            subjects=table[:, 2].astype(np.int16),
            window=spec.window,
            columns=spec.columns(),
            mean=mean,
            std=std,
            absent=absent,
        )

    return FederatedData(
        spec=spec,
        digest=sha256_json({"dataset": dataset.digest, "config": config.deciding()}),
        origin=dataset.origin,
        clients=tuple(map(windows, split.train)),
        validation=windows(np.concatenate(split.validation)),
        coverage=_cover(spec, config, split),
        test_or_none=windows(split.test) if purpose == "run" else None,
        reference=DataReference(
            name=config.name,
            key=dataset.digest,
            signal_sha256=dataset.signal_sha256,
            units=config.units,
            settings=config.deciding(),
        ),
    )


def _check(dataset: Dataset, config: DataConfig, owned: Sequence[Collection[str]]) -> None:
    expected = num_clients(dataset, config)
    if len(owned) != expected:
        raise UserError(f"{len(owned)} clients have modalities, but data.num_clients gives {expected} clients")
    for client, has in enumerate(owned):
        unknown = sorted(set(has) - set(dataset.spec.names))
        if unknown or not has:
            raise UserError(f"client {client}: modalities {sorted(has)}, expected some of {dataset.spec.names}")
    for client, worn in enumerate(available(config, expected)):
        if impossible := [name for name in dataset.spec.names if name in owned[client] and name not in worn]:
            raise UserError(
                f"client {client}: has {listed(impossible)}, which its subject {people_of(config, expected)[client]} "
                f"lacks (DatasetSpec.lacks of {dataset.spec.name}); expected some of {worn}"
            )


def _cover(spec: DatasetSpec, config: DataConfig, split: Split) -> Coverage:
    """Count the windows of a split.

    Raises UserError where the test windows are all of one class: any score would be 0 or 100 %.
    """
    test = _per_class(spec, split.test)
    present = [name for name, count in zip(spec.classes, test, strict=True) if count]
    if len(present) < 2:
        raise UserError(
            f"{spec.name}: all {len(split.test)} test windows are of the class {' '.join(present)!r}, expected at "
            f"least two classes; check the label column of the files (`relief-ray data describe {spec.name}`)"
        )
    clients: list[ClientCoverage] = [
        {
            "client": client,
            "subject": spec.subjects[int(train[0, 2])] if len(set(train[:, 2].tolist())) == 1 else "mixed",
            "train": _per_class(spec, train),
            "validation": _per_class(spec, validation),
        }
        for client, (train, validation) in enumerate(zip(split.train, split.validation, strict=True))
    ]
    coverage: Coverage = {
        "classes": list(spec.classes),
        "clients": clients,
        "train": _per_class(spec, np.concatenate(split.train)),
        "validation": _per_class(spec, np.concatenate(split.validation)),
        "test": test,
        "single_class_clients": [c["client"] for c in clients if sum(count > 0 for count in c["train"]) == 1],
        "window_s": spec.window_s,
    }
    if lacks := {str(s): sorted(spec.lacks[s]) for s in config.subject_ids() if s in spec.lacks}:
        coverage["lacking"] = lacks
    if split.left_out:
        coverage["left_out"] = split.left_out
    return coverage


def _per_class(spec: DatasetSpec, table: Table) -> list[int]:
    return [int(count) for count in np.bincount(table[:, 1], minlength=len(spec.classes))]
