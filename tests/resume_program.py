"""A process of its own that runs a conformance case and can be killed: from outside, or by itself at any file change.

``run CASE PATH`` drives the case; ``sweep CASE ROOT ROUND EVERY`` forks a child per chosen change of the file system in
``ROUND`` (every one of them, or each ``EVERY``-th), has it killed there with SIGKILL (in the middle where it is a
write), resumes in another child and prints one JSON row per point.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from relief_ray.experiment.setup import prepare
from relief_ray.records.run_folder import RUN_FILE, read_rounds
from tests.conformance.cases import config_of, drive, outcome
from tests.records.scenario import WRITES, forked, intercepted


def changes(case: str, path: Path) -> list[tuple[str, int]]:
    """Every change of the file system that a run makes, with the number of rounds in the ledger before it."""
    seen: list[tuple[str, int]] = []

    def note(number: int, name: str, half: Callable[[], None]) -> None:
        ledger = path / "rounds.jsonl"
        seen.append((name, ledger.read_bytes().count(b"\n") if ledger.exists() else 0))

    with intercepted(note):
        drive(config_of(case), path)
    return seen


def die_at(case: str, path: Path, at: int) -> None:
    def strike(number: int, name: str, half: Callable[[], None]) -> None:
        if number == at:
            if name in WRITES:
                half()
            os.kill(os.getpid(), signal.SIGKILL)

    with intercepted(strike):
        drive(config_of(case), path)


def write_outcome(case: str, path: Path, file: Path) -> None:
    drive(config_of(case), path)
    file.write_text(json.dumps(outcome(path)))


def sweep(case: str, root: Path, round_: int, every: int) -> list[dict[str, object]]:
    prepare(config_of(case))  # fills the data cache, so that all runs change the same files
    writes = changes(case, root / "counted")
    first = max(1, next(number for number, (_, stood) in enumerate(writes) if stood >= round_))
    rows: list[dict[str, object]] = []
    for number in range(first, len(writes) + 1, every):
        path, result = root / f"{number:03d}", root / f"{number:03d}.json"
        status = forked(lambda path=path, number=number: die_at(case, path, number))
        rounds = len(read_rounds(path)) if (path / RUN_FILE).exists() else 0
        ended = forked(lambda path=path, result=result: write_outcome(case, path, result))
        rows.append(
            {
                "event": writes[number - 1][0],
                "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
                "rounds": rounds,
                "resumed": ended == 0,
                "outcome": json.loads(result.read_text()) if result.exists() else None,
            }
        )
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    command, case, place, *rest = sys.argv[1:]
    if command == "run":
        drive(config_of(case), Path(place))
    else:
        print(json.dumps(sweep(case, Path(place), *map(int, rest))))
