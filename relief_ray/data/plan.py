"""Which window goes to whom: bouts split, null windows dropped, training and validation dealt to clients."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relief_ray.data.config import DataConfig
from relief_ray.data.dataset import Dataset
from relief_ray.data.partition import clients_of, cut_pieces, pieces_per_subject, thin
from relief_ray.data.splits import BoutWindows, held_out, notes, split_bouts
from relief_ray.data.windows import Table, stride_rows, tabulate
from relief_ray.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Plan:
    """Windows as (n, 3) tables (first row, class index, subject position): per client, and the pooled test."""

    train: tuple[Table, ...]
    validation: tuple[Table, ...]
    test: Table
    notes: dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Bout:
    subject: int
    train: Table
    validation: Table
    test: Table


def training_positions(config: DataConfig) -> tuple[int, ...]:
    """Positions, among all the dataset's subjects, of those that become clients."""
    chosen = chosen_positions(config)
    tested = held_out(config, chosen)
    return tuple(position for position in chosen if position not in tested)


def chosen_positions(config: DataConfig) -> tuple[int, ...]:
    """Positions, among all the dataset's subjects, of those taken part."""
    subjects = config.spec().subjects
    return tuple(subjects.index(subject) for subject in config.subject_ids())


def make_plan(dataset: Dataset, config: DataConfig, num_clients: int) -> Plan:
    """Deal the dataset's windows; UserError where a client or the test part stays empty."""
    spec = dataset.spec
    stride = stride_rows(config.stride_s, spec.rate_hz)
    split = list(split_bouts(dataset.bouts, config, chosen_positions(config), spec.window, stride))
    bouts = [_label(dataset, part) for part in split]
    positions = training_positions(config)
    owners = dict(zip(positions, clients_of(pieces_per_subject(len(positions), num_clients)), strict=True))
    train = _deal([(bout.subject, bout.train) for bout in bouts], owners, num_clients)
    plan = Plan(
        train=tuple(table[thin(len(table), config.max_windows_per_client)] for table in train),
        validation=_deal([(bout.subject, bout.validation) for bout in bouts], owners, num_clients),
        test=np.concatenate([bout.test for bout in bouts]),
        notes=notes(split),
    )
    _require_windows(plan, config)
    return plan


def _label(dataset: Dataset, part: BoutWindows) -> _Bout:
    window, subject = dataset.spec.window, part.subject
    train, validation, test = (
        tabulate(dataset.labels, starts, window, subject) for starts in (part.train, part.validation, part.test)
    )
    return _Bout(subject=subject, train=train, validation=validation, test=test)


def _deal(bouts: Sequence[tuple[int, Table]], owners: dict[int, range], num_clients: int) -> tuple[Table, ...]:
    """Every bout cut among its subject's clients."""
    hands: list[list[Table]] = [[np.empty((0, 3), np.int64)] for _ in range(num_clients)]
    for subject, table in bouts:
        clients = owners.get(subject, range(0))
        for client, piece in zip(clients, cut_pieces(table, len(clients)) if clients else (), strict=True):
            hands[client].append(piece)
    return tuple(np.concatenate(hand) for hand in hands)


def _require_windows(plan: Plan, config: DataConfig) -> None:
    empty = [client for client, table in enumerate(plan.train) if not len(table)]
    if empty:
        some = ", ".join(map(str, empty[:8])) + (", ..." if len(empty) > 8 else "")
        raise UserError(
            f"{len(empty)} of {len(plan.train)} clients ({some}) have no training window under "
            f"data.name={config.name}, data.split={config.split}, "
            f"data.stride_s={config.stride_s:g}; use fewer clients, a shorter stride or a smaller data.test_fraction"
        )
    if not len(plan.test) or not any(len(table) for table in plan.validation):
        raise UserError(
            f"data.name={config.name}, data.split={config.split}: no test or no validation windows; "
            "choose more subjects or a shorter stride"
        )
