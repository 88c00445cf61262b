"""`relief-ray strategies`: what can be compared, in a sentence each."""

from __future__ import annotations

import json

from actors.commands.output import table
from relief_ray.citations import cite
from relief_ray.strategies import DESCRIBED


def strategies_command(bibtex: bool, as_json: bool) -> None:
    """Prints the list, or the references."""
    if bibtex:
        print(cite(p.config.citation for p in DESCRIBED.values() if p.config.citation is not None))
    elif as_json:
        described = {
            name: {"kind": p.kind, "about": p.about, "config": p.config.model_dump(mode="json")}
            for name, p in DESCRIBED.items()
        }
        print(json.dumps(described, indent=1))
    else:
        rows = [[name, p.kind, p.about] for name, p in DESCRIBED.items()]
        print(table(["strategy", "kind", "what it does"], rows, left=3))
        print("\nChange one value: --set strategy.gamma=0.5. Use in a run: --strategies fedavg,relief")
