"""Committed results: one JSON file per grid, a line per cell, with enough to check a rerun.

A cell keeps its configuration and identities, the machine, the last metrics, a row per round, and the hash of the last
model. Clients, costs per device and confusion matrices stay in the run folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue, ValidationError

from relief_ray.errors import UserError, nearest
from relief_ray.files import disk_errors, write_atomic
from relief_ray.records.base import SCHEMA_VERSION, Facts, Origin, Record, refuse_other_schema
from relief_ray.records.schema import Machine, MethodFacts, Metrics, RoundRecord, RunRecord

FILE = "cells.json"


class RoundRow(Record):
    """A round of a committed cell.

    Attributes:
        round: its number.
        f1: F1 as tables show it, a share; None where the round was not evaluated.
        time_s: simulated seconds of all rounds so far.
        energy_j: simulated joules so far.
        bytes_up: uploaded bytes so far.
        bytes_down: downloaded bytes so far.
        diagnostics: what the method's ``diagnose`` tells of the state, by table and row.
    """

    round: int
    f1: float | None
    time_s: float
    energy_j: float
    bytes_up: int
    bytes_down: int
    diagnostics: dict[str, dict[str, float]] = Field(default_factory=dict)


class CommittedCell(Record):
    """A finished run in its small form.

    Attributes:
        cell: as in ``RunRecord``, like all others that are not explained here.
        strategy: label of the method.
        method: facts of the method, as its own class says them.
        config: all settings, credentials masked.
        config_hash: sha256 of the configuration's identity.
        data_digest: sha256 of the data.
        data_origin: real data, or SYNTHETIC.
        code_version: version of this package.
        source_digest: sha256 of its sources.
        own_sources: sha256 by file of the user's own classes.
        machine: the machine that began the run.
        engine: how training steps are computed.
        planning_model: the time model that ``rounds`` give seconds and joules by.
        metrics: the last evaluation, without its confusion matrix; None without one.
        rounds: a row per round.
        model_sha256: of the last round's model.
        warnings: lines for the user.
    """

    cell: str
    strategy: str
    method: MethodFacts
    config: Facts
    config_hash: str
    data_digest: str
    data_origin: Origin
    code_version: str
    source_digest: str
    own_sources: dict[str, str] = Field(default_factory=dict)
    machine: Machine
    engine: str
    planning_model: str
    metrics: Metrics | None
    rounds: tuple[RoundRow, ...]
    model_sha256: str
    warnings: tuple[str, ...] = ()


class Committed(Record):
    """Cells of a grid, by folder name."""

    schema_version: Literal[3] = SCHEMA_VERSION
    title: str
    cells: dict[str, CommittedCell]


def condense(run: RunRecord, rounds: Sequence[RoundRecord]) -> CommittedCell:
    """Bring a finished run into its small form."""
    last = next((r.metrics for r in reversed(rounds) if r.metrics is not None), None)
    return CommittedCell(
        cell=run.cell,
        strategy=run.strategy,
        method=run.method,
        config=run.config,
        config_hash=run.config_hash,
        data_digest=run.data_digest,
        data_origin=run.data_origin,
        code_version=run.code_version,
        source_digest=run.source_digest,
        own_sources=run.own_sources,
        machine=run.machine,
        engine=run.engine,
        planning_model=run.planning_model,
        metrics=None if last is None else last.model_copy(update={"confusion": ()}),
        rounds=tuple(_row(r, run.planning_model) for r in rounds),
        model_sha256=rounds[-1].model_sha256,
        warnings=(*run.warnings, *(w for r in rounds for w in r.warnings)),
    )


def _row(record: RoundRecord, clock: str) -> RoundRow:
    metrics, total = record.metrics, record.totals[clock]
    f1 = None if metrics is None else metrics.headline
    return RoundRow(
        round=record.round, f1=f1, time_s=total.time_s, energy_j=total.energy_j, bytes_up=total.bytes_up,
        bytes_down=total.bytes_down, diagnostics=record.diagnostics,
    )  # fmt: skip


def write_committed(path: Path, title: str, cells: Iterable[tuple[str, CommittedCell]]) -> Path:
    """Write the file, a line per cell, so that a changed cell is one changed line.

    Raises:
        UserError: it cannot be written.
    """
    lines = [f"{json.dumps(name)}: {_compact(cell)}" for name, cell in cells]
    head = f'{{"schema_version": {SCHEMA_VERSION}, "title": {json.dumps(title)}, "cells": {{'
    with disk_errors(path, "write the results"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, (head + "\n" + ",\n".join(lines) + "\n}}\n").encode())
    return path


def _compact(cell: CommittedCell) -> str:
    value = cell.model_dump(mode="json", exclude_defaults=True)
    value["rounds"] = [_row_values(row) for row in cell.rounds]
    return json.dumps(value, separators=(",", ":"))


def _row_values(row: RoundRow) -> list[JsonValue]:
    """Values of a row in the fields' order; diagnostics only where there are any."""
    values = list(row.model_dump(mode="json").values())
    return values if row.diagnostics else values[:-1]


def read_committed(path: Path) -> Committed:
    """Read the cells of a file, or of the ``cells.json`` in a folder.

    Raises:
        UserError: there is none, it is damaged, or of another schema version.
    """
    file = path / FILE if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file}: not there; name a file or folder that `relief-ray report --commit` wrote") from None
    except (OSError, ValueError) as error:
        raise _damaged(file, error) from error
    refuse_other_schema(content.get("schema_version") if isinstance(content, dict) else None, file)
    try:
        for cell in content["cells"].values():
            cell["rounds"] = [_named(row) for row in cell["rounds"]]
        return Committed.model_validate(content)
    except (ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
        raise _damaged(file, error) from error


def _named(values: list[JsonValue]) -> dict[str, JsonValue]:
    """Fields of a row by name; the last one may be missing."""
    names = list(RoundRow.model_fields)
    kept = names if len(values) == len(names) else names[:-1]
    return dict(zip(kept, values, strict=True))


def _damaged(file: Path, error: Exception) -> UserError:
    return UserError(f"{file}: damaged ({error}); restore it, or write it anew with `relief-ray report`")


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
