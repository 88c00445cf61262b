"""Partition of a dataset: bouts are split into parts, cut into windows, and assigned to clients.

Parts: train, validation and test are decided per subject, before clients are formed, so that the test set is the same
for every number of clients. One window of rows is left out between the parts of a bout; parts of one bout never share a
sample, except under the name `random_leaky`.

Windows lie inside one bout and are labelled by the majority of their rows; null windows are dropped.

Clients, under `data.partition=subject`: with N clients and S training subjects, the windows of every training bout are
cut into N/S consecutive pieces (the remainder to the lowest ids). Every client keeps all activities where length
allows, and the union of all clients is the same for every N. Windows are cut, not rows: neighbouring clients of one
subject share up to one window of samples at their border. That concerns training data only; a one-minute bout would
otherwise leave nothing for 100 clients. `dirichlet` and `quantity` deal the same training windows another way (`deal`).
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from relief_ray.core.messages import apportion
from relief_ray.core.streams import Streams
from relief_ray.data.config import DataConfig
from relief_ray.data.dataset import Dataset
from relief_ray.data.loader import NULL, Codes, Doubles, Ints, Mask
from relief_ray.support.errors import Setting, UserError, counted, listed, several

# Skewed partitions: windows dealt to clients in shares that a Dirichlet distribution gives.
#
# `dirichlet`, label skew: p_k ~ Dir(alpha) over the N clients for every class k, and p_kn of class k's windows go to
# client n. `quantity`: q ~ Dir(alpha) over the clients, and q_n of all windows, whatever their class. Small alpha: a
# few clients get most; large alpha: equal shares. Shares are drawn again until every client has `min_partition_size`
# training windows; the same shares then divide the validation windows. Terms and `self_balancing` are those of flwr-
# datasets' DirichletPartitioner (Yurochkin et al. 2019, arXiv:1905.12022; quantity skew: Li et al. 2022,
# arXiv:2102.02079).
#
# Test windows are split off in time before anything is dealt, so no test sample reaches a client. Windows of different
# clients may overlap in time, as neighbouring windows do. Every draw has a generator of its own, named by attempt,
# class and client: nothing depends on the order in which classes or clients are visited.


Labels = Ints
Shares = Doubles
Counts = Ints

# Shares are drawn again until there were so many gammas (about two seconds), but a few times in any case.
_MAX_GAMMAS = 50_000
_MIN_ATTEMPTS = 20


def deal(
    config: DataConfig, num_clients: int, num_classes: int, train: Labels, validation: Labels
) -> tuple[Labels, Labels]:
    """The client (n,) of every training and every validation window, given their class indices.

    Raises:
        UserError: there are too few windows, or no draw gave every client enough.
    """
    num_groups = num_classes
    if config.partition != "dirichlet":  # shares are drawn for all windows together, not class by class
        train, validation, num_groups = np.zeros_like(train), np.zeros_like(validation), 1
    shares = _shares(config, num_clients, np.bincount(train, minlength=num_groups))
    return owners_of(train, shares, config.seed, part=0), owners_of(validation, shares, config.seed, part=1)


def _shares(config: DataConfig, num_clients: int, sizes: Counts) -> Shares:
    """Shares (K, N) under which every client has enough of K groups of these sizes."""
    least, total = config.min_partition_size, int(sizes.sum())
    if least * num_clients > total:
        raise UserError(
            f"data.min_partition_size={least}: {num_clients} clients need {least * num_clients} training "
            f"windows, found {total}; lower it, data.num_clients or data.stride_s (here {config.stride_s:g} s)"
        )
    best, attempts = 0, max(_MIN_ATTEMPTS, _MAX_GAMMAS // (len(sizes) * num_clients))
    for attempt in range(attempts):
        shares, per_client = _draw(config, num_clients, attempt, sizes)
        best = max(best, int(per_client.min()))
        if best >= least:
            return shares
    enough = f"set data.min_partition_size={best}, " if best else ""
    raise UserError(
        f"data.partition={config.partition}, data.dirichlet_alpha={config.dirichlet_alpha:g}: the "
        f"smallest of {num_clients} clients got at most {best} training windows in {attempts} draws, expected "
        f"{least} (data.min_partition_size); {enough}raise data.dirichlet_alpha, or lower "
        f"data.stride_s (here {config.stride_s:g} s: more windows) or data.num_clients"
    )


def _draw(config: DataConfig, num_clients: int, attempt: int, sizes: Counts) -> tuple[Shares, Counts]:
    """One draw: shares (K, N), and the windows (N,) that each client gets by them."""
    streams, total = Streams(seed=config.seed), np.zeros(num_clients, np.int64)
    shares = np.empty((len(sizes), num_clients))
    for group, size in enumerate(sizes.tolist()):
        excluded = config.self_balancing & (total > sizes.sum() / num_clients)
        shares[group] = draw_shares(streams, config.dirichlet_alpha, range(num_clients), (attempt, group), excluded)
        total += apportion(size, shares[group].tolist())
    return shares, total


def owners_of(groups: Labels, shares: Shares, seed: int, part: int) -> Labels:
    """The client (n,) of every window of these groups by the clients' shares (K, N) of each group."""
    streams, owners = Streams(seed=seed), np.empty(len(groups), np.int64)
    for group, row in enumerate(shares.tolist()):
        windows = np.flatnonzero(groups == group)
        order = streams.numpy("data.partition.order", part, group).permutation(len(windows))
        owners[windows[order]] = np.repeat(np.arange(len(row)), apportion(len(windows), row))
    return owners


def draw_shares(streams: Streams, alpha: float, clients: Sequence[int], key: tuple[int, int], excluded: Mask) -> Shares:
    """A draw of Dir(alpha, .., alpha): the clients' shares (N,), in their order; 0 for those excluded.

    Shares are normalised gammas. Their logarithms are drawn, log G(alpha + 1) + log(U) / alpha, since gammas of small
    alpha underflow to 0.
    """
    generators = [streams.numpy("data.partition", *key, client) for client in clients]
    logs = np.array([np.log(rng.gamma(alpha + 1.0)) + np.log1p(-rng.random()) / alpha for rng in generators])
    logs[excluded] = -np.inf
    weights = np.exp(logs - logs.max())
    shares: Shares = weights / weights.sum()
    return shares


Starts = Ints
Table = Ints


def clients_of(num_subjects: int, num_clients: int) -> list[list[int]]:
    """The client ids of every subject: N/S consecutive ones, one more each for the first subjects.

    Raises:
        UserError: there are fewer clients than subjects.
    """
    if num_clients < num_subjects:
        raise UserError(
            f"data.num_clients={num_clients}: fewer than the {num_subjects} training subjects; use at least "
            f"{num_subjects}, or choose subjects with data.subjects"
        )
    return [ids.tolist() for ids in np.array_split(np.arange(num_clients), num_subjects)]


def thin(num_windows: int, limit: int | None) -> Ints:
    """Indices of at most `limit` windows, evenly spread over all of them."""
    if limit is None or num_windows <= limit:
        return np.arange(num_windows)
    return np.round(np.linspace(0, num_windows - 1, limit)).astype(np.int64)


def window_starts(start: int, stop: int, window: int, stride: int) -> Starts:
    """First rows of all windows that lie wholly in [start, stop), `stride` rows apart: (n,)."""
    return np.arange(start, stop - window + 1, stride, dtype=np.int64)


def stride_rows(stride_s: float, rate_hz: int) -> int:
    """The stride in rows, at least one."""
    return max(1, round(stride_s * rate_hz))


def majority_labels(labels: Codes, starts: Starts, window: int) -> Ints:
    """The most frequent class index of each window's rows, -1 where that is the null class; ties to the lower: (n,)."""
    if not len(starts):
        return np.empty(0, np.int64)
    first, last = int(starts.min()), int(starts.max()) + window
    piece = labels[first:last]
    if (piece == piece[0]).all():
        return np.full(len(starts), int(piece[0]), np.int64)
    classes = np.unique(piece)
    counts = np.stack([_count(piece == code, starts - first, window) for code in classes])
    chosen: Ints = classes[counts.argmax(axis=0)].astype(np.int64)
    return chosen


def _count(hit: Mask, offsets: Starts, window: int) -> Ints:
    total = np.concatenate([[0], np.cumsum(hit)])
    counted: Ints = total[offsets + window] - total[offsets]
    return counted


def tabulate(labels: Codes, starts: Starts, window: int, subject: int) -> Table:
    """The windows whose majority is an activity, as rows (first row, class index, subject position): (n, 3)."""
    majority = majority_labels(labels, starts, window)
    kept = majority != NULL
    return np.column_stack([starts[kept], majority[kept], np.full(int(kept.sum()), subject)]).astype(np.int64)


_NONE: Starts = np.empty(0, np.int64)


class BoutWindows(NamedTuple):
    """First rows of one bout's windows by part; a short bout may have none for some."""

    subject: int
    train: Starts = _NONE
    validation: Starts = _NONE
    test: Starts = _NONE


def held_out(config: DataConfig, positions: Sequence[int]) -> tuple[int, ...]:
    """Those of the subjects' `positions` that are test subjects: `test_subjects`, or the f-th `leave_out` in fold f.

    Raises:
        UserError: nobody is left to train.
    """
    if config.split != "held_out_subject":
        return ()
    first, subjects = config.leave_out * config.fold, config.spec().subjects
    tested = tuple(p for p in positions if subjects[p] in config.test_subjects)
    tested = tested or tuple(positions[first : first + config.leave_out])
    if len(positions) <= len(tested):
        raise UserError(
            f"data.split=held_out_subject: all of the {counted(len(positions), 'subject')} are held out "
            f"(data.leave_out={config.leave_out}, data.test_subjects={list(config.test_subjects)}); leave one to train"
        )
    return tested


def cut_tail(start: int, stop: int, fraction: float, window: int, step: int = 1) -> tuple[int, int] | None:
    """End of the head and start of the tail, one window apart; None where either would be shorter than a window.

    ``step``: rows that the tail is a multiple of: a window's, where windows were cut before.
    """
    length = stop - start
    if length < 3 * window:
        return None
    tail = min(max(step * round(fraction * length / step), window), length - 2 * window)
    return stop - tail - window, stop - tail


def split_bouts(
    bouts: Ints, config: DataConfig, positions: Sequence[int], window: int, stride: int
) -> Iterator[BoutWindows]:
    """The bouts (subject position, start, stop) of the subjects at `positions`, with their windows by part."""
    step = window if config.spec().cut else 1
    fractions = {"validation": config.validation_fraction}
    if config.split == "within_subject":
        fractions = {"test": config.test_fraction, **fractions}
    rng = np.random.default_rng(config.seed)
    tested = held_out(config, positions)
    for subject, start, stop in bouts[np.isin(bouts[:, 0], positions)].tolist():
        if stop - start < window:
            yield BoutWindows(subject=subject)
        elif config.split == "random_leaky":
            yield _random(subject, window_starts(start, stop, window, stride), config, rng)
        elif subject in tested:
            yield BoutWindows(subject=subject, test=window_starts(start, stop, window, stride))
        else:
            yield _chronological(subject, (start, stop), fractions, (window, stride), step)


def _chronological(
    subject: int, bout: tuple[int, int], fractions: Mapping[str, float], size: tuple[int, int], step: int
) -> BoutWindows:
    """Training first, then the parts of these ``fractions``, the first one last; a short bout keeps the former."""
    start, stop = bout
    tails: dict[str, Starts] = {}
    for part, fraction in fractions.items():
        if cut := cut_tail(start, stop, fraction, size[0], step):
            tails[part] = window_starts(cut[1], stop, *size)
            stop = cut[0]
    return BoutWindows(subject=subject, train=window_starts(start, stop, *size), **tails)


def _random(subject: int, starts: Starts, config: DataConfig, rng: np.random.Generator) -> BoutWindows:
    """Assign overlapping windows to parts at random: test and training share samples (a leak, for comparison only)."""
    order = rng.permutation(len(starts))
    num_test = round(config.test_fraction * len(starts))
    num_validation = round(config.validation_fraction * (len(starts) - num_test))
    parts = np.split(order, [num_test, num_test + num_validation])
    test, validation, train = (np.sort(starts[part]) for part in parts)
    return BoutWindows(subject=subject, train=train, validation=validation, test=test)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Split:
    """Windows as (n, 3) tables (first row, class index, subject position): per client, and the pooled test.

    ``left_out``: number of windows by subject that were filled in too much (``data.max_filled``).
    """

    train: tuple[Table, ...]
    validation: tuple[Table, ...]
    test: Table
    left_out: dict[str, int]


def training_positions(config: DataConfig) -> tuple[int, ...]:
    """Positions, among all the dataset's subjects, of those that become clients."""
    chosen = chosen_positions(config)
    tested = held_out(config, chosen)
    return tuple(position for position in chosen if position not in tested)


def chosen_positions(config: DataConfig) -> tuple[int, ...]:
    """Positions, among all the dataset's subjects, of those that take part."""
    subjects = config.spec().subjects
    return tuple(map(subjects.index, config.subject_ids()))


def people_of(config: DataConfig, num_clients: int) -> tuple[int | None, ...]:
    """The person whose windows each client has; None where the partition mixes people.

    Raises:
        UserError: it does, and somebody lacks a sensor (``DatasetSpec.lacks``).
    """
    spec = config.spec()
    people = [spec.subjects[position] for position in training_positions(config)]
    if config.partition == "subject":
        cohorts = zip(people, clients_of(len(people), num_clients), strict=True)
        return tuple(person for person, clients in cohorts for _ in clients)
    if not spec.lacks.keys().isdisjoint(people):
        who = "; ".join(f"subject {s} lacks {listed(spec.lacks[s])}" for s in people if s in spec.lacks)
        whole = [s for s in config.subject_ids() if s not in spec.lacks]
        raise UserError(
            f"data.partition={config.partition} mixes people in a client, but {who}: a client has one set of sensors; "
            f"take data.partition=subject"
            + (f", or only people with all sensors: data.subjects={whole}" if whole else "")
        )
    return (None,) * num_clients


def available(config: DataConfig, num_clients: int) -> list[tuple[str, ...]]:
    """The sensors that each client's subject wore, whatever its device has.

    Raises:
        UserError: the partition mixes people in a client, and somebody lacks a sensor.
    """
    spec = config.spec()
    return [spec.names if p is None else spec.sensors_of(p) for p in people_of(config, num_clients)]


def split_windows(dataset: Dataset, config: DataConfig, num_clients: int) -> Split:
    """Assign the dataset's windows to clients and parts; UserError where a client or the test part stays empty."""
    spec = dataset.spec
    stride = stride_rows(config.stride_s, spec.rate_hz)
    bouts = list(split_bouts(dataset.bouts, config, chosen_positions(config), spec.window, stride))
    filled: Ints = np.cumsum(np.insert(dataset.filled, 0, False))
    left_out = Counter[int]()

    def table_of(starts: Starts, subject: int) -> Table:
        windows = tabulate(dataset.labels, starts, spec.window, subject)
        lost = filled[windows[:, 0] + spec.window] - filled[windows[:, 0]]
        kept: Table = windows[lost <= config.max_filled * spec.window]
        left_out[spec.subjects[subject]] += len(windows) - len(kept)
        return kept

    # The windows of every part, a table per bout.
    trained, validated, tested = (
        [table_of(getattr(bout, part), bout.subject) for bout in bouts] for part in ("train", "validation", "test")
    )
    if config.partition == "subject":
        positions = training_positions(config)
        owners = dict(zip(positions, clients_of(len(positions), num_clients), strict=True))
        cohorts = [owners.get(bout.subject, []) for bout in bouts]
        train, validation = (_assign(tables, cohorts, num_clients) for tables in (trained, validated))
    else:
        # Out of all bouts together; every client's windows stay in order of time.
        tables = np.concatenate(trained), np.concatenate(validated)
        owned = deal(config, num_clients, len(spec.classes), *(table[:, 1] for table in tables))
        dealt = zip(tables, owned, strict=True)
        train, validation = (tuple(table[owners == n] for n in range(num_clients)) for table, owners in dealt)
    split = Split(
        train=tuple(table[thin(len(table), config.max_windows_per_client)] for table in train),
        validation=validation,
        test=np.concatenate(tested),
        left_out={str(subject): number for subject, number in left_out.items() if number},
    )
    _refuse_in_both(split, config)
    longest = max((stop - start for _, start, stop in dataset.bouts.tolist()), default=0)
    room = Counter[int]()
    for bout, table in zip(bouts, trained, strict=True):
        room[bout.subject] = max(room[bout.subject], len(table))
    _require_windows(split, config, longest / spec.rate_hz, room)
    return split


def _refuse_in_both(split: Split, config: DataConfig) -> None:
    """Check that people who are held out are in the test part alone.

    Raises:
        UserError: some are not; they are named.
    """
    trained = {int(p) for table in (*split.train, *split.validation) for p in np.unique(table[:, 2])}
    if config.split == "held_out_subject" and (both := trained & set(split.test[:, 2].tolist())):
        names = several("subject", [config.spec().subjects[p] for p in both])
        raise UserError(f"data.split=held_out_subject: windows of {names} are in training and in test, expected in one")


def _assign(bouts: Sequence[Table], cohorts: Sequence[Sequence[int]], num_clients: int) -> tuple[Table, ...]:
    """Cut every bout among the clients of its subject, longer pieces first; the result is one table per client."""
    tables: list[list[Table]] = [[np.empty((0, 3), np.int64)] for _ in range(num_clients)]
    for table, clients in zip(bouts, cohorts, strict=True):
        for client, piece in zip(clients, np.array_split(table, len(clients)) if clients else (), strict=True):
            tables[client].append(piece)
    return tuple(map(np.concatenate, tables))


def _most_clients(config: DataConfig, num_clients: int, room: Mapping[int, int]) -> int:
    """The most clients below ``num_clients`` of whom each gets a window, 0 where none is known.

    ``room``: windows of a person's longest bout, which is as many clients as the person can be.
    """
    if config.partition != "subject":
        return 0
    people = training_positions(config)

    def is_too_many(number: int) -> bool:
        return any(len(ids) > room[p] for p, ids in zip(people, clients_of(len(people), number), strict=True))

    numbers = range(len(people), num_clients)
    fitting = bisect_left(numbers, True, key=is_too_many)
    return numbers[fitting - 1] if fitting else 0


def _require_windows(split: Split, config: DataConfig, longest_s: float, room: Mapping[int, int]) -> None:
    empty = [client for client, table in enumerate(split.train) if not len(table)]
    gaps = left_out_text(split.left_out, config)
    if empty:
        some = ", ".join(map(str, empty[:8])) + (", ..." if len(empty) > 8 else "")
        most = _most_clients(config, len(split.train), room)
        largest = f" (at most {most} have windows)" if most else ""
        lower = f"lower data.num_clients{largest}, data.window_s, data.stride_s or data.test_fraction"
        raise UserError(
            f"{len(empty)} of {len(split.train)} clients ({some}) have no training window under "
            f"data.name={config.name}, data.split={config.split}, data.stride_s={config.stride_s:g} and windows of "
            f"{config.spec().window_s:g} s; "
            + (gaps or (_shorter(config, longest_s) if longest_s < config.spec().window_s else lower))
        )
    if not len(split.test) or not any(map(len, split.validation)):
        raise UserError(
            f"data.name={config.name}, data.split={config.split}: no test or no validation windows of "
            f"{config.spec().window_s:g} s; {gaps or _shorter(config, longest_s)}"
        )


def left_out_text(left_out: Mapping[str, int], config: DataConfig) -> str:
    """Who lost windows to gaps, and the settings that mend it; empty where nobody did."""
    people = ", ".join(f"{number} of subject {subject}" for subject, number in left_out.items())
    return people and (
        f"windows left out, since more than {config.max_filled:.0%} of their rows have a filled-in reading "
        f"(data.max_filled): {people}; set data.max_filled=1 to take them, or leave people out with data.subjects"
    )


def _shorter(config: DataConfig, longest_s: float) -> str:
    """Remedy where the parts of a bout have no room: how long it must be, and the window that fits the longest one."""
    # As `cut_tail` twice: head, gap and tail are at least a window each, and the first tail is cut off before.
    within = config.split == "within_subject"
    needed = max(5.0, 4.0 / (1.0 - config.test_fraction)) if within else 3.0
    if longest_s >= needed * config.spec().window_s:
        return "choose more subjects, or a shorter data.window_s"
    parts = "training, validation and test" if within else "training and validation"
    if config.spec().cut:
        return (
            f"{parts}, a window apart, need {needed:.3g} windows of one class and recording in a row, and the longest "
            f"stretch has {longest_s / config.spec().window_s:.3g}; record longer stretches, or cut shorter windows"
        )
    return (
        f"{parts}, a window apart, need {needed:.3g} windows of one unbroken activity "
        f"({needed * config.spec().window_s:.3g} s), and the longest stretch (bout) has {longest_s:.3g} s; "
        f"{Setting('data.window_s', math.floor(100 * longest_s / needed) / 100)} just fits it, less leaves more "
        "windows; or record longer stretches, or put shuffled rows into the order of time"
    )
