"""Progress of the copies in MLflow stores (``sync.json`` of a run folder), and a configuration as parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, JsonValue, ValidationError

from relief_ray.records.schema import Record, RunStatus, Text
from relief_ray.support.files import PAGE, Unsealed, sealed, unsealed, write_atomic
from relief_ray.support.masking import mask_text

_SYNC_FILE = "sync.json"

_MAX_PARAM_CHARS = 500


class Target(Record):
    """Progress of the export to one store.

    Attributes:
        run_id: id of the run in the store.
        step: the last exported round.
        status: final status that was sent; None before the end.
    """

    run_id: str
    step: int | None = None
    status: RunStatus | None = None


class SyncState(Record):
    """``sync.json``: one target per store (its URI without credentials), and the last failure."""

    targets: dict[str, Target] = Field(default_factory=dict)
    error: Text | None = None


def flat_params(config: Mapping[str, JsonValue], prefix: str = "") -> dict[str, str]:
    """Flatten a configuration to dotted names and short texts; lists stay one value."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= flat_params(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = (value if isinstance(value, str) else json.dumps(value))[:_MAX_PARAM_CHARS]
    return flat


def read_sync(folder: Path) -> SyncState:
    """Read ``sync.json`` of a run folder; empty where it is missing or unreadable: the store is asked in any case."""
    try:
        return SyncState.model_validate_json(unsealed((folder / _SYNC_FILE).read_bytes(), PAGE))
    except (OSError, Unsealed, ValidationError):
        return SyncState()


def write_sync(folder: Path, uri: str, target: Target) -> None:
    """Note the progress of one store."""
    state = SyncState(targets={**read_sync(folder).targets, mask_text(uri): target})
    _write(folder, state)


def write_failure(folder: Path, error: str) -> None:
    """Note why an export failed; the noted progress stays."""
    state = SyncState(targets=read_sync(folder).targets, error=error)
    _write(folder, state)


def _write(folder: Path, state: SyncState) -> None:
    write_atomic(folder / _SYNC_FILE, sealed(state.model_dump_json(indent=1).encode(), PAGE), make_folder=False)
