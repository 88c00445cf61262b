"""Reports on a dataset's content, JSON-able, for the command line and the run record."""

from pathlib import Path
from typing import TypedDict

import numpy as np

from relief_ray.data.config import DataConfig
from relief_ray.data.dataset import Dataset
from relief_ray.data.federated_data import Coverage, federate, num_clients
from relief_ray.data.oddities import activity_s, data_warnings, null_rows
from relief_ray.data.partition import available
from relief_ray.data.registry import DATASETS, get_spec
from relief_ray.data.source import find_source
from relief_ray.support.errors import UserError

_CHUNK = 1 << 16


class Range(TypedDict):
    """Smallest, largest and mean value of a modality in raw units."""

    min: float
    max: float
    mean: float


class Description(TypedDict):
    """A dataset in figures, as `relief-ray data describe` prints it; JSON-able.

    Attributes:
        name: the dataset's name.
        title: one line on it.
        origin: `real` or `SYNTHETIC`.
        path: place of the raw files.
        digest: sha256 of what was parsed.
        citation: whom to cite.
        licence: what is allowed.
        doi: its DOI; empty without one.
        rate_hz: samples per second after parsing.
        window: samples per window.
        window_s: seconds of a window.
        partition: how windows were divided among clients.
        num_rows: rows of the signal.
        subjects: the subjects' numbers.
        sensors: the sensors that each subject has.
        activity_s: seconds by subject and class.
        ranges: range of values by modality, in raw units.
        facts: the parser's findings by subject.
        windows: number of windows by part.
        coverage: windows per client, part and class.
        null_rows: a sentence on the rows of ``null_labels``; empty where there are none.
        warnings: oddities of its content (``relief_ray.data.oddities``).
    """

    name: str
    title: str
    origin: str
    path: str
    digest: str
    citation: str
    licence: str
    doi: str
    rate_hz: int
    window: int
    window_s: float
    partition: str
    num_rows: int
    subjects: list[int]
    sensors: dict[str, list[str]]
    activity_s: dict[str, dict[str, float]]
    ranges: dict[str, Range]
    facts: dict[str, dict[str, object]]
    windows: dict[str, int]
    coverage: Coverage
    null_rows: str
    warnings: list[str]


class Listing(TypedDict):
    """One line of `data list`: where the dataset is, or that it is absent."""

    name: str
    title: str
    path: str | None
    origin: str | None


def list_datasets(root: str | Path | None = None) -> list[Listing]:
    """Every known dataset and whether its raw files are found."""
    return [_listing(name, root) for name in DATASETS]


def _listing(name: str, root: str | Path | None) -> Listing:
    spec = get_spec(name)
    try:
        source = find_source(spec, root)
    except UserError:
        return {"name": name, "title": spec.title, "path": None, "origin": None}
    origin = "SYNTHETIC" if source.synthetic else "real"
    return {"name": name, "title": spec.title, "path": str(source.path), "origin": origin}


def describe(dataset: Dataset, config: DataConfig) -> Description:
    """Figures of the dataset and of its windows under a configuration, clients having all that their subjects have."""
    spec = dataset.spec
    data = federate(dataset, config, available(config, num_clients(dataset, config)))
    return {
        "name": spec.name,
        "title": spec.title,
        "origin": dataset.origin,
        "path": str(dataset.source.path),
        "digest": dataset.digest,
        "citation": spec.citation,
        "licence": spec.licence,
        "doi": spec.doi,
        "rate_hz": spec.rate_hz,
        "window": spec.window,
        "window_s": spec.window_s,
        "partition": config.partition,
        "num_rows": len(dataset.labels),
        "subjects": list(spec.subjects),
        "sensors": {str(subject): list(spec.sensors_of(subject)) for subject in spec.subjects},
        "activity_s": _activity_s(dataset),
        "ranges": _ranges(dataset),
        "facts": {subject: dict(facts) for subject, facts in dataset.facts.items()},
        "windows": {
            "train": sum(len(client) for client in data.clients),
            "validation": len(data.validation),
            "test": len(data.test),
        },
        "coverage": data.coverage,
        "null_rows": null_rows(dataset),
        "warnings": list(data_warnings(dataset, config, data.coverage)),
    }


def _activity_s(dataset: Dataset) -> dict[str, dict[str, float]]:
    spec = dataset.spec
    return {
        str(subject): dict(zip(spec.classes, row.tolist(), strict=True))
        for subject, row in zip(spec.subjects, activity_s(dataset), strict=True)
    }


def _ranges(dataset: Dataset) -> dict[str, Range]:
    signal = dataset.signal()
    chunks = [signal[first : first + _CHUNK] for first in range(0, len(signal), _CHUNK)]
    # NaN, where a subject lacks a sensor, counts for nothing.
    low = np.fmin.reduce([np.fmin.reduce(chunk) for chunk in chunks])
    high = np.fmax.reduce([np.fmax.reduce(chunk) for chunk in chunks])
    total = np.sum([np.nansum(chunk, axis=0, dtype=np.float64) for chunk in chunks], axis=0)
    mean = total / np.sum([(~np.isnan(chunk)).sum(axis=0) for chunk in chunks], axis=0)
    return {
        name: {"min": float(low[a:b].min()), "max": float(high[a:b].max()), "mean": float(mean[a:b].mean())}
        for name, a, b in dataset.spec.columns()
    }
