"""Where an interrupted run goes on: the newest whole checkpoint, and the ledger up to its round."""

from __future__ import annotations

from dataclasses import dataclass

from relief_ray.records import checkpoint
from relief_ray.records.ledger import RunFolder
from relief_ray.records.schema import RoundRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """``checkpoint`` is none where the run starts again from its first round; ``repairs`` are lines for the user."""

    checkpoint: checkpoint.Checkpoint | None
    rounds: tuple[RoundRecord, ...]
    repairs: tuple[str, ...]


def restore(folder: RunFolder, binding: checkpoint.Binding) -> Restored:
    """Loads the newest whole checkpoint and drops what came after it, to be computed again to the same bits.

    Raises:
        UserError: no generation is usable, it belongs to another computation, or the ledger misses its round.
    """
    found = checkpoint.load(folder.path, binding)
    before = len(folder.rounds())
    if found is not None:
        checkpoint.drop_after(folder.path, found.round)
    rounds = folder.rewind(found.round if found is not None else None)
    repairs = [*folder.repairs, *(f"checkpoint {line}" for line in (found.skipped if found is not None else ()))]
    if len(rounds) < before:
        repairs.append(f"{before - len(rounds)} rounds after the checkpoint are computed again")
    return Restored(checkpoint=found, rounds=rounds, repairs=tuple(repairs))
