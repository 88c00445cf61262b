"""`relief-ray report`: the paper's tables and figures from whatever cells there are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

OUT = "report"


def report(folders: Sequence[Path], out: Path | None, as_json: bool) -> None:
    """Writes the page and its files; a partial grid renders too, with its gaps.

    Raises:
        UserError: a folder holds neither plan nor run, or nothing can be written.
    """
    from relief_ray.report.page.build import build
    from relief_ray.report.page.write import write
    from relief_ray.report.stock import STATES, take_stock

    stock = take_stock(folders)
    place = out or (folders[0] if folders[0].is_dir() else folders[0].parent) / OUT
    document = build(stock)
    written = write(document, place)
    number = {state: stock.count(state) for state in STATES}
    if as_json:
        facts = {"event": "report", "cells": number, "files": [str(path) for path in written], "lead": document.lead}
        print(json.dumps(facts))
        return
    shown = ", ".join(f"{n} {state}" for state, n in number.items() if n) or "none"
    figures = f"{len(document.sheets)} tables, {len(document.plots)} figures"
    print(f"Cells   {shown}\nHolds   {figures}")
    print("\n".join(f"Written {path}" for path in written))
