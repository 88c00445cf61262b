"""Committed results: one JSON file per grid, a line per cell, with enough to check a rerun.

A cell keeps its configuration and identities, the machine, the last metrics, a row per round, means over its rounds,
and the hash of the last model. Clients, costs per device and confusion matrices stay in the run folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from pydantic import Field, model_validator

from relief_ray.core.messages import BOOTSTRAP, StageTimes
from relief_ray.records.facts import DataFacts, data_facts, warnings_of
from relief_ray.records.metrics import chance_f1
from relief_ray.records.schema import (
    SCHEMA_VERSION,
    ClientRecord,
    FedAvgRecord,
    Metrics,
    Record,
    RoundRecord,
    RunFacts,
    RunRecord,
    Share,
    read_page,
)
from relief_ray.support.errors import UserError, nearest
from relief_ray.support.files import disk_errors, page, stamp, write_atomic

FILE = "cells.json"


class RoundRow(Record):
    """A round of a committed cell.

    Attributes:
        round: its number, from 1 on.
        f1: F1 as tables show it, a share; None where the round was not evaluated.
        time_s: simulated seconds of all rounds so far.
        energy_j: simulated joules so far.
        bytes_up: uploaded bytes so far.
        bytes_down: downloaded bytes so far.
        diagnostics: what the method's ``diagnose`` tells of the state, by table and row.
    """

    round: int = Field(ge=1)
    f1: Share | None
    time_s: float
    energy_j: float
    bytes_up: int
    bytes_down: int
    diagnostics: dict[str, dict[str, float]] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: object) -> object:
        """Fields by name, also of a row in a file: their values in order, of which the last may be missing."""
        if not isinstance(values, list):
            return values
        if len(values) > len(cls.model_fields):
            raise ValueError(f"{len(values)} values in a row, expected at most {len(cls.model_fields)}")
        return dict(zip(cls.model_fields, values, strict=False))


class Means(Record):
    """Means over the rounds of a committed cell, by its planning clock; tables of a report need them.

    Attributes:
        num_clients: clients of the fleet.
        compute_s: longest compute time of a client, seconds.
        link_share: share of the slowest client's busy time that is link.
        fedavg: FedAvg's round of the same participants; None where it has no meaning, as for pooled data.
        speedup_paper: speedup of the same allocations at the paper's protocol.
        trained_fraction: share of the trainable values that a client trained.
        client_bytes_up: upload of a client in a round.
        client_bytes_down: download of a client in a round.
        wall_s: real seconds of a round.
        rare: F1 with the rare sensors alone after each evaluated round, a share.
        own: F1 of the shared model through every client's own sensors after each evaluated round, a share; empty for
            methods whose clients have models of their own, whose F1 this is.
        bootstrap_s: seconds of the rounds that trained everything before groups were ranked; 0 without one.
        sent: share of all uploaded bytes by device type; empty where nothing was sent.
    """

    num_clients: int
    compute_s: float
    link_share: float
    fedavg: FedAvgRecord | None = None
    speedup_paper: float | None = None
    trained_fraction: float | None = None
    client_bytes_up: float | None = None
    client_bytes_down: float | None = None
    wall_s: float
    rare: dict[int, Share] = Field(default_factory=dict)
    own: dict[int, Share] = Field(default_factory=dict)
    bootstrap_s: float = 0.0
    sent: dict[str, Share] = Field(default_factory=dict)


class CommittedCell(RunFacts):
    """A finished run in its small form.

    Attributes:
        metrics: the last evaluation, without its confusion matrix; None without one.
        rounds: a row per round, whose seconds and joules are by ``planning_model``.
        model_sha256: of the last round's model.
        warnings: lines for the user.
        means: means over its rounds.
        created: time at which the run began (UTC, ISO 8601).
        chance: F1 of a model that knows nothing (``metrics.chance_f1``), a share; None without an evaluation.
        data: windows by part, and the clients; None of pooled data.
        stages: of the last round, by client: seconds of forward, backward, optimizer, upload and download by
            ``planning_model``; empty of pooled data.
        deadline_s: T* of the last round; None without one.
    """

    metrics: Metrics | None
    rounds: tuple[RoundRow, ...]
    model_sha256: str
    warnings: tuple[str, ...] = ()
    means: Means
    created: str
    chance: Share | None = None
    data: DataFacts | None = None
    stages: dict[int, tuple[float, float, float, float, float]] = Field(default_factory=dict)
    deadline_s: float | None = None


# What a cell keeps of its run's record as it stands there.
SHARED = (*RunFacts.model_fields, "created")


class CommittedClaims(Record):
    """Claims that were named before the first of these cells, so that the file alone can be judged.

    Attributes:
        text: content of the claims file.
        at: time at which the plan took it in (UTC, ISO 8601).
        planned: per method the (fold, rotation, seed, repetition key) of every planned cell that the claims are about.
    """

    text: str
    at: str
    planned: dict[str, tuple[tuple[int, int, int, int, int], ...]]


class Committed(Record):
    """Cells of a grid, by folder name, with the claims about them, if there are any."""

    schema_version: Literal[4] = SCHEMA_VERSION
    title: str
    claims: CommittedClaims | None = None
    cells: dict[str, CommittedCell]


def condense(run: RunRecord, rounds: Sequence[RoundRecord]) -> CommittedCell:
    """Bring a finished run into its small form."""
    last = next((r.metrics for r in reversed(rounds) if r.metrics is not None), None)
    clients = () if run.method.pooled else rounds[-1].costs[run.planning_model].clients
    return CommittedCell(
        **{name: getattr(run, name) for name in SHARED},
        metrics=None if last is None else last.model_copy(update={"confusion": ()}),
        rounds=tuple(_row(r, run.planning_model) for r in rounds),
        model_sha256=rounds[-1].model_sha256,
        warnings=warnings_of(run, rounds, run.name),
        means=means_of(run, rounds, run.planning_model),
        chance=None if last is None else chance_f1(last.confusion),
        data=None if run.method.pooled else data_facts(run),
        stages={c.client: _seconds(c.times) for c in clients},
        deadline_s=rounds[-1].deadline_s,
    )


def _seconds(times: StageTimes) -> tuple[float, float, float, float, float]:
    return tuple(float(f"{seconds:.6g}") for seconds in astuple(times))  # type: ignore[return-value]


def means_of(run: RunRecord, rounds: Sequence[RoundRecord], clock: str) -> Means:
    """Means over a run's rounds by a clock."""
    costs = [r.costs[clock] for r in rounds]
    clients = [] if run.method.pooled else [c for r in rounds for c in r.clients]
    return Means(
        num_clients=max(len(c.clients) for c in costs),
        compute_s=mean(c.compute_s for c in costs),
        link_share=mean(c.link_share for c in costs),
        fedavg=None if run.method.pooled else _mean_fedavg(run, rounds, clock),
        speedup_paper=_mean(r.speedup_paper for r in rounds),
        trained_fraction=_mean(r.trained_fraction for r in rounds),
        client_bytes_up=_mean(c.bytes_up for c in clients),
        client_bytes_down=_mean(c.bytes_down for c in clients),
        wall_s=mean(r.wall_s for r in rounds),
        rare={r.round: f1 for r in rounds if r.metrics is not None and (f1 := r.metrics.f1_rare) is not None},
        own={r.round: f1 for r in rounds if (f1 := _through_own(r.metrics)) is not None},
        bootstrap_s=sum(r.costs[clock].round_s for r in rounds if r.phase == BOOTSTRAP),
        sent=_sent(run, clients),
    )


def _through_own(metrics: Metrics | None) -> float | None:
    return None if metrics is None or metrics.f1_fleet is not None else metrics.f1_own_sensors


def _sent(run: RunRecord, clients: Sequence[ClientRecord]) -> dict[str, float]:
    """Share of the uploaded bytes by device type; empty where nothing was sent or the fleet is not known."""
    entries: Any = run.fleet.get("clients", ())
    types = {entry["id"]: str(entry["device"]) for entry in entries}
    total = sum(c.bytes_up for c in clients)
    if not total or not types:
        return {}
    order: Any = run.fleet.get("types") or sorted(types.values())
    by_type = {name: 0 for name in order if name in types.values()}
    for c in clients:
        by_type[types[c.client]] += c.bytes_up
    return {name: num_bytes / total for name, num_bytes in by_type.items()}


def _mean_fedavg(run: RunRecord, rounds: Sequence[RoundRecord], clock: str) -> FedAvgRecord | None:
    """A FedAvg round of the same participants and data, on average over ``rounds``; None where it has no meaning."""
    table: Any = run.budget.get("fedavg_reference", {})
    if clock not in table:
        return None
    # Of all clients, as recorded before the run began.
    everyone = FedAvgRecord.model_validate(table[clock])
    if not (everyone.round_s > 0 and everyone.energy_j > 0):
        return None
    each = [r.fedavg.get(clock, everyone) for r in rounds]
    return FedAvgRecord(**{name: mean(getattr(r, name) for r in each) for name in FedAvgRecord.model_fields})


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return mean(known) if known else None


def _row(record: RoundRecord, clock: str) -> RoundRow:
    metrics, total = record.metrics, record.totals[clock].model_dump()
    f1 = None if metrics is None else metrics.headline
    return RoundRow(round=record.round, f1=f1, diagnostics=record.diagnostics, **total)


def write_committed(
    path: Path, title: str, cells: Iterable[tuple[str, CommittedCell]], claims: CommittedClaims | None = None
) -> Path:
    """Write the file, a line per cell, so that a changed cell is one changed line.

    Raises:
        UserError: it cannot be written.
    """
    lines = [f"{json.dumps(name)}: {_compact(cell)}" for name, cell in cells]
    named = "" if claims is None else f'"claims": {json.dumps(claims.model_dump(mode="json"))},\n'
    head = f'{{"schema_version": {SCHEMA_VERSION}, "title": {json.dumps(title)}, {named}"cells": {{'
    with disk_errors(path, "write the results"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, page(head + "\n" + ",\n".join(lines) + "\n}}"))
    return path


def _compact(cell: CommittedCell) -> str:
    value = cell.model_dump(mode="json", exclude_defaults=True)
    # Values of a row in the fields' order; diagnostics only where there are any.
    rows = [list(row.model_dump(mode="json", exclude_defaults=True).values()) for row in cell.rounds]
    return json.dumps(value | {"rounds": rows}, separators=(",", ":"))


def read_committed(path: Path) -> Committed:
    """Read the cells of a file, or of the ``cells.json`` in a folder.

    Raises:
        UserError: there is none, it is damaged, or of another schema version.
    """
    file = path / FILE if path.is_dir() else path
    try:
        return _read(file, stamp(file))
    except FileNotFoundError:
        raise UserError(f"{file}: not there; name a file or folder that `relief-ray report --commit` wrote") from None


@lru_cache(maxsize=4)
def _read(file: Path, stamped: str) -> Committed:
    """Parse a file once, as long as its ``stamp`` stays: a page asks for its cells and its claims."""
    try:
        return read_page(file, Committed)
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: damaged ({error}); restore it, or write it anew with `relief-ray report`") from error


def pick(target: str) -> tuple[str, CommittedCell]:
    """Find the cell of ``RESULTS#CELL``: by the name of its folder, or any beginning that fits only one.

    Raises:
        UserError: no such file or cell, or several fit.
    """
    place, mark, wanted = target.partition("#")
    known = read_committed(Path(place)).cells
    names = [wanted] if wanted in known else [n for n in known if mark and wanted and n.startswith(wanted)]
    if len(names) == 1:
        return names[0], known[names[0]]
    shown = ", ".join(names[:3] or list(known)[:3])
    what = f"{len(names)} cells fit" if names else f"no cell {wanted!r}{nearest(wanted, known)}"
    raise UserError(f"{target}: {what}; expected {place}#CELL, e.g. {shown}")
