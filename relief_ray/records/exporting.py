"""What an experiment tracker is told about a run: a dozen scalars per round, flat parameters, and how far it got."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path

from pydantic import Field, JsonValue, ValidationError

from relief_ray.records.atomic import replace_file
from relief_ray.records.redact import mask_text
from relief_ray.records.schema import Record, RoundRecord, Status, Text

SYNC_FILE = "sync.json"
SCALARS = (
    "f1",
    "f1_fleet",
    "f1_rare",
    "loss",
    "speedup",
    "trained_fraction",
    "round_s",
    "time_s",
    "energy_j",
    "bytes_up",
    "bytes_down",
    "wall_s",
)
MAX_PARAM_CHARS = 500


class Target(Record):
    """How far one store has been told: ``step`` is the last exported round, ``closed`` the status told at the end."""

    run_id: str
    step: int | None = None
    closed: Status | None = None


class SyncState(Record):
    """``sync.json``: one target per store (its URI without credentials), and the last failure."""

    targets: dict[str, Target] = Field(default_factory=dict)
    error: Text | None = None


def round_scalars(record: RoundRecord, planning_model: str) -> dict[str, float]:
    """The ``SCALARS`` of a round that exist and are finite; ``time_s``, ``energy_j`` and bytes are cumulative."""
    metrics, cost, totals = record.metrics, record.costs.get(planning_model), record.totals.get(planning_model)
    found = {
        "f1": metrics.f1 if metrics else None,
        "f1_fleet": metrics.f1_fleet if metrics else None,
        "f1_rare": metrics.f1_rare if metrics else None,
        "loss": record.loss,
        "speedup": record.speedup,
        "trained_fraction": record.trained_fraction,
        "round_s": cost.round_s if cost else None,
        "time_s": totals.time_s if totals else None,
        "energy_j": totals.energy_j if totals else None,
        "bytes_up": totals.bytes_up if totals else None,
        "bytes_down": totals.bytes_down if totals else None,
        "wall_s": record.wall_s,
    }
    return {name: float(value) for name in SCALARS if (value := found[name]) is not None and isfinite(value)}


def flat_params(config: Mapping[str, JsonValue], prefix: str = "") -> dict[str, str]:
    """A configuration as dotted names and short texts; lists stay whole."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= flat_params(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = (value if isinstance(value, str) else json.dumps(value))[:MAX_PARAM_CHARS]
    return flat


def read_sync(folder: Path) -> SyncState:
    """``sync.json`` of a run folder; empty where it is missing or unreadable, since the store itself knows better."""
    try:
        return SyncState.model_validate_json((folder / SYNC_FILE).read_bytes())
    except (OSError, ValidationError):
        return SyncState()


def write_sync(folder: Path, uri: str, target: Target) -> None:
    """Moves the watermark of one store."""
    state = SyncState(targets={**read_sync(folder).targets, mask_text(uri): target})
    replace_file(folder / SYNC_FILE, (state.model_dump_json(indent=1) + "\n").encode())


def write_failure(folder: Path, error: str) -> None:
    """Remembers why an export failed; the watermarks stay."""
    state = SyncState(targets=read_sync(folder).targets, error=error)
    replace_file(folder / SYNC_FILE, (state.model_dump_json(indent=1) + "\n").encode())
