"""Oddities of a dataset that no rule forbids, in words: what `data describe`, a run's screen and its record warn of."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from relief_ray.data.config import DataConfig
from relief_ray.data.dataset import Dataset
from relief_ray.data.federated_data import Coverage
from relief_ray.data.partition import chosen_positions, held_out
from relief_ray.plugins.load import is_path
from relief_ray.support.errors import listed, several

# A class with less data than so many windows side by side is too small to be learned or tested.
_FEW_WINDOWS = 10
# Share of missing readings from which filling them in decides what a model sees.
_MANY_GAPS = 0.05


def data_warnings(dataset: Dataset, config: DataConfig, coverage: Coverage) -> tuple[str, ...]:
    """Sentences on channels, rows, classes, subjects and clients that may not be as their owner thinks.

    ``coverage``: windows by client and class, as the configuration cuts them. Empty where nothing is odd.
    """
    seconds = activity_s(dataset)
    return (
        *_still_channels(dataset),
        *_still_for_one(dataset),
        *_tested_without(dataset, config),
        *_filled(dataset),
        *_rows_left_out(dataset),
        *_small_classes(dataset, seconds),
        *_lacking_subjects(dataset, seconds),
        *_without_windows(
            coverage, [name for name, all_s in zip(dataset.spec.classes, seconds.sum(0), strict=True) if all_s]
        ),
        *_single_class(config, coverage),
    )


def activity_s(dataset: Dataset) -> NDArray[np.float64]:
    """Seconds of data by subject and class: (S, K), rows outside of bouts left out."""
    spec = dataset.spec
    rows = np.zeros((len(spec.subjects), len(spec.classes)))
    for subject, start, stop in dataset.bouts:
        labels = dataset.labels[start:stop]
        rows[subject] += np.bincount(labels[labels >= 0], minlength=len(spec.classes))
    return rows / spec.rate_hz


def _still_channels(dataset: Dataset) -> list[str]:
    """Channels that have one value in all rows."""
    still = _still(dataset.signal_path.as_posix(), dataset.signal_sha256)
    return [
        f"{name}: column {column} is {value:g} in all {len(dataset.labels)} rows"
        for name, first, stop in dataset.spec.columns()
        for column, value in still
        if first <= column < stop
    ]


@lru_cache(maxsize=16)
def _still(signal_path: str, sha256: str) -> tuple[tuple[int, float], ...]:
    """Columns of a signal that never change, with their value; read once for all runs of a process."""
    signal = np.load(signal_path, mmap_mode="r", allow_pickle=False)
    return tuple((int(c), float(signal[0, c])) for c in np.flatnonzero((signal == signal[:1]).all(axis=0)))


def _still_for_one(dataset: Dataset) -> list[str]:
    """Channels that move for some people and have one value in all rows of a person's bouts."""
    spec, texts = dataset.spec, []
    everywhere = {column for column, _ in _still(dataset.signal_path.as_posix(), dataset.signal_sha256)}
    for position, subject in enumerate(spec.subjects):
        values = _still_of(dataset, position)
        for name, first, stop in spec.columns():
            columns = [column for column in values if first <= column < stop and column not in everywhere]
            if columns:
                which = ", ".join(f"column {column} is {values[column]:g}" for column in columns)
                remedy = f"; if that person has no {name}, say so in its DatasetSpec: lacks={{{subject}: ({name!r},)}}"
                whole = f"{name} of subject {subject}: {which} in all its bouts"
                texts.append(whole + (remedy if is_path(spec.name) else ""))
    return texts


def _still_of(dataset: Dataset, position: int) -> dict[int, float]:
    """Columns that never change in the bouts of a subject, with their value; a sensor that it lacks (NaN) is none."""
    signal = dataset.signal()
    bouts = [(start, stop) for subject, start, stop in dataset.bouts.tolist() if subject == position]
    if not bouts:
        return {}
    value = signal[bouts[0][0]]
    columns = np.flatnonzero(~np.isnan(value))
    for start, stop in bouts:
        columns = columns[(signal[start:stop, columns] == value[columns]).all(axis=0)]
        if not len(columns):
            break
    return {int(column): float(value[column]) for column in columns}


def _tested_without(dataset: Dataset, config: DataConfig) -> list[str]:
    """People who are tested although they lack a sensor."""
    spec = dataset.spec
    tested = held_out(config, chosen_positions(config)) or chosen_positions(config)
    people = [spec.subjects[position] for position in tested]
    return [
        f"subject {s} lacks {listed(spec.lacks[s])}: its test windows count, and are read with that missing"
        for s in people
        if spec.lacks.get(s)
    ]


def _filled(dataset: Dataset) -> list[str]:
    """Subjects of whom many readings were missing."""
    shares = {subject: share for subject, facts in dataset.facts.items() if (share := _nan_share(facts)) > _MANY_GAPS}
    if not shares:
        return []
    return [f"{several('subject', map(int, shares))}: up to {max(shares.values()):.0%} of the readings were missing"]


def _nan_share(facts: object) -> float:
    share = facts.get("nan_share") if isinstance(facts, dict) else None
    return share if isinstance(share, float) else 0.0


def _rows_left_out(dataset: Dataset) -> list[str]:
    """Count the labelled rows that no window can hold."""
    in_bout = np.zeros(len(dataset.labels), bool)
    for _, start, stop in dataset.bouts:
        in_bout[start:stop] = True
    outside = int(((dataset.labels >= 0) & ~in_bout).sum())
    return [f"{outside} of {len(dataset.labels)} rows have a class but lie in no bout"] if outside else []


def null_rows(dataset: Dataset) -> str:
    """Sentence on the rows of ``null_labels``, which the description itself leaves out; empty where there are none."""
    unlabelled = int((dataset.labels < 0).sum())
    if not unlabelled:
        return ""
    codes = several("code", dataset.spec.null_labels) if dataset.spec.null_labels else "a code"
    remedy = "; where that is a class, list it in labels and take it out of null_labels"
    share = f"{unlabelled:,} of {len(dataset.labels):,} rows"
    said = f"{share} have {codes}, no activity (null_labels): no window is labelled with it"
    return said + (remedy if is_path(dataset.spec.name) else "")


def _small_classes(dataset: Dataset, seconds: NDArray[np.float64]) -> list[str]:
    """Classes without data, and those with little."""
    spec, texts = dataset.spec, []
    seen = set(np.unique(dataset.labels).tolist())
    for i, (name, code, all_s) in enumerate(zip(spec.classes, spec.labels, seconds.sum(0).tolist(), strict=True)):
        if not all_s:
            texts.append(f"class {name!r} (code {code}) has no row in any {'bout' if i in seen else 'file'}")
        elif all_s < _FEW_WINDOWS * spec.window_s:
            texts.append(f"class {name!r} has {all_s:.0f} s of data in all, fewer than {_FEW_WINDOWS} windows")
    return texts


def _lacking_subjects(dataset: Dataset, seconds: NDArray[np.float64]) -> list[str]:
    """Classes that some subjects have data of and others have none of."""
    spec = dataset.spec
    lacking = {
        name: [subject for subject, own_s in zip(spec.subjects, column, strict=True) if not own_s]
        for name, column in zip(spec.classes, seconds.T, strict=True)
        if column.any() and not column.all()
    }
    if not lacking:
        return []
    return ["no data of " + "; of ".join(f"{name} from {several('subject', who)}" for name, who in lacking.items())]


def _without_windows(coverage: Coverage, with_data: list[str]) -> list[str]:
    """Classes with data that nobody trains on, or that nobody is tested on."""
    texts = []
    for part, counts in (("training", coverage["train"]), ("test", coverage["test"])):
        lacking = [n for n, count in zip(coverage["classes"], counts, strict=True) if not count and n in with_data]
        if lacking:
            texts.append(f"no {part} window of {listed(lacking)}")
    return texts


def _single_class(config: DataConfig, coverage: Coverage) -> list[str]:
    """Clients that train on one class; where labels are skewed on purpose that is no news."""
    alone = coverage["single_class_clients"]
    if not alone or config.partition == "dirichlet":
        return []
    return [f"{len(alone)} of {len(coverage['clients'])} clients have training windows of one class only"]
