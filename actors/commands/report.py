"""`relief-ray report`: the paper's tables and figures from whatever cells there are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from relief_ray.errors import UserError

if TYPE_CHECKING:
    from relief_ray.report.inventory import Inventory

OUT = "report"


def report_command(folders: Sequence[Path], out: Path | None, commit: Path | None, as_json: bool) -> None:
    """Writes the page and its files; a partial grid renders too, with its gaps. ``commit``: the small form as well.

    Raises:
        UserError: a folder holds neither plan nor run, or nothing can be written.
    """
    from relief_ray.report.build import build
    from relief_ray.report.inventory import STATES, take_inventory
    from relief_ray.report.write import write

    inventory = take_inventory(folders)
    place = out or (folders[0] if folders[0].is_dir() else folders[0].parent) / OUT
    document = build(inventory)
    written = write(document, place)
    written += [] if commit is None else [write_small(inventory, commit)]
    number = {state: inventory.count(state) for state in STATES}
    if as_json:
        facts = {"event": "report", "cells": number, "files": [str(path) for path in written], "lead": document.lead}
        print(json.dumps(facts))
        return
    shown = ", ".join(f"{n} {state}" for state, n in number.items() if n) or "none"
    figures = f"{len(document.tables)} tables, {len(document.figures)} figures"
    print(f"Cells   {shown}\nHolds   {figures}")
    print("\n".join(f"Written {path}" for path in written))


def write_small(inventory: Inventory, place: Path) -> Path:
    """``cells.json`` with every finished cell, for the repository and for `relief-ray reproduce`.

    Raises:
        UserError: no cell is finished, or two have one name.
    """
    from relief_ray.records.committed import FILE, condense, write_committed

    done = [(s.name, s.loaded) for s in inventory.items if s.state == "done" and s.loaded is not None]
    twice = [name for name, number in Counter(name for name, _ in done).items() if number > 1]
    if twice or not done:
        found = f"cells named {', '.join(twice[:3])} more than once" if twice else "no finished cell"
        raise UserError(f"--commit {place}: found {found}; commit the folders of one grid at a time")
    cells = ((name, condense(loaded.run, loaded.rounds)) for name, loaded in done)
    return write_committed(place / FILE, "; ".join(inventory.titles) or place.name, cells)
