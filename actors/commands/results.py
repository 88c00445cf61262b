"""What a user sees at the end: the comparison, the figure and a plain verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from actors.commands.plan import Plan, find_runs
from relief_ray.records.tracking import sync as tell


def show_results(plan: Plan, as_json: bool) -> None:
    """Table, figure file, verdict."""


def compare(folders: Sequence[Path], out: Path | None, as_json: bool) -> None:
    """`relief-ray compare`."""


def sync(folders: Sequence[Path], uri: str | None, as_json: bool) -> None:
    """`relief-ray sync`."""
    for folder in find_runs(folders):
        done = tell(folder, uri)
        if as_json:
            print(
                json.dumps(
                    {"folder": str(folder), "uri": done.uri, "run_id": done.run_id, "num_points": done.num_points}
                )
            )
        else:
            print(f"{folder}: {done.num_points} new points in {done.uri} (run {done.run_id})")
