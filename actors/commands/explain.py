"""`relief-ray explain`: why a client trains what it trains; the reasons are ``relief_ray.studies.reasons``'."""

from __future__ import annotations

import json
from pathlib import Path

from actors.commands.next_steps import refuse_several
from relief_ray.studies.reasons import reasons_for
from relief_ray.support.text import WIDTH


def explain_command(folder: Path, round_: int, client: int, as_json: bool) -> None:
    """Print the reasons for one client's task in one round.

    Raises:
        UserError: no such round or client, or a folder of several runs.
    """
    refuse_several(folder, "explain", f"--round {round_} --client {client}")
    reasons = reasons_for(folder, round_, client, width=WIDTH)
    print(json.dumps(reasons.facts, indent=1) if as_json else reasons.text)
