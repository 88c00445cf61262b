"""Records, ledger, checkpoints and identities of runs, and their copies elsewhere."""

from relief_ray.records.base import WALL_FIELDS, comparable
from relief_ray.records.checkpoint import Binding, Checkpoint, CheckpointStateStore
from relief_ray.records.costs import Totals
from relief_ray.records.identity import (
    cell_id,
    config_hash,
    layout_digest,
    machine_facts,
    params_sha256,
    source_digest,
    state_sha256,
)
from relief_ray.records.run_folder import Restored, RunFolder, read_rounds, read_run, restore
from relief_ray.records.schema import Metrics, RoundRecord, RunRecord
from relief_ray.records.selection_text import selection, tokens

__all__ = [
    "WALL_FIELDS",
    "Binding",
    "Checkpoint",
    "CheckpointStateStore",
    "Metrics",
    "Restored",
    "RoundRecord",
    "RunFolder",
    "RunRecord",
    "Totals",
    "cell_id",
    "comparable",
    "config_hash",
    "layout_digest",
    "machine_facts",
    "params_sha256",
    "read_rounds",
    "read_run",
    "restore",
    "selection",
    "source_digest",
    "state_sha256",
    "tokens",
]
