"""Reading run folders without a lock: for reports, for exports, and for the driver itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue, ValidationError

from relief_ray.errors import UserError
from relief_ray.records.schema import SCHEMA_VERSION, RoundRecord, RunRecord

RUN_FILE = "run.json"
ROUNDS_FILE = "rounds.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """Parsed rounds, in order, each round's last line only; ``num_bytes`` is where the intact part of the file ends."""

    rounds: tuple[RoundRecord, ...]
    num_bytes: int
    torn: str | None


def refuse_other_schema(found: JsonValue, where: Path) -> None:
    """Refuses what another version of the schema wrote, before any of its fields are read.

    Raises:
        UserError: no version, an older or a newer one.
    """
    if found == SCHEMA_VERSION:
        return
    newer = isinstance(found, int) and found > SCHEMA_VERSION
    fix = "upgrade relief-ray" if newer else "read it with the release that wrote it, or run the cell again elsewhere"
    raise UserError(f"{where}: schema_version is {found!r}, expected {SCHEMA_VERSION}; {fix}")


def read_run(folder: Path) -> RunRecord:
    """``run.json`` of a folder; takes no lock.

    Raises:
        UserError: there is none, it is damaged, or of another schema version.
    """
    path = folder / RUN_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{folder}: no {RUN_FILE}, expected a run folder; name one that `relief-ray run` made"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: unreadable ({error}), expected JSON; restore it or run the cell again") from error
    refuse_other_schema(found.get("schema_version") if isinstance(found, dict) else None, path)
    try:
        return RunRecord.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(
            f"{path}: {place}: {first['msg']}, expected a RunRecord; restore it or run the cell again"
        ) from error


def is_done(run: RunRecord, rounds: Sequence[int], bootstrap: bool | None = None) -> bool:
    """Whether a run finished and its ledger has every round to the last planned one, in order and without a hole.

    Rounds are 1 .. R, and 0 before them where the method has a ``bootstrap`` (None: with or without).
    """
    planned = run.config.get("rounds")
    last = planned if isinstance(planned, int) else max(rounds, default=1)
    begins_at_0 = 0 in rounds if bootstrap is None else bootstrap
    return run.status == "finished" and list(rounds) == list(range(not begins_at_0, last + 1))


def read_rounds(folder: Path) -> tuple[RoundRecord, ...]:
    """All rounds in order; takes no lock and repairs nothing: a line that is being written is left out.

    Raises:
        UserError: a line before the last is damaged.
    """
    return scan(folder / ROUNDS_FILE).rounds


def scan(path: Path, start: int = 0) -> Lines:
    """Reads a ledger from byte ``start``; the last line counts only when it is whole.

    Raises:
        UserError: a line before the last is damaged.
    """
    data = b""
    if path.exists():
        with path.open("rb") as file:
            file.seek(start)
            data = file.read()
    *whole, rest = data.split(b"\n")
    rounds: dict[int, RoundRecord] = {}
    end = start
    for number, line in enumerate(whole, 1):
        try:
            record = RoundRecord.model_validate_json(line)
        except ValidationError as error:
            if number == len(whole) and not rest:
                return Lines(rounds=_ordered(rounds), num_bytes=end, torn=f"line {number} was torn")
            raise UserError(
                f"{path}: line {number} is damaged ({error.errors()[0]['msg']}), expected a round's JSON; "
                "restore the file or run the cell again"
            ) from error
        rounds[record.round] = record
        end += len(line) + 1
    torn = f"line {len(whole) + 1} was torn after {len(rest)} bytes" if rest else None
    return Lines(rounds=_ordered(rounds), num_bytes=end, torn=torn)


def _ordered(rounds: dict[int, RoundRecord]) -> tuple[RoundRecord, ...]:
    return tuple(rounds[r] for r in sorted(rounds))
