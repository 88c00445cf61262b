"""`relief-ray strategies` lists methods; `relief-ray conformance my.module:Mine` checks that one keeps the rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Literal

import typer

from actors.launch import ray_executors
from relief_ray.conformance.trial import line, names_dataset, trial_of
from relief_ray.data.registry import DATASETS, load_own
from relief_ray.plugins.load import is_path
from relief_ray.strategies import DESCRIBED
from relief_ray.strategies.citations import cite
from relief_ray.studies.data_description import owners_of
from relief_ray.support.errors import UserError
from relief_ray.support.text import WIDTH, filled, table


def strategies_command(bibtex: bool, as_json: bool) -> None:
    """Print the list, or the references."""
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
        print(table(["strategy", "kind", "what it does"], rows, left=3, width=WIDTH))
        print("\n" + filled("Change one value: --set strategy.gamma=0.5. Use in a run: --strategies fedavg,relief"))


def one_of(target: str | None, address: str | None) -> Literal["rules", "nodes"]:
    """Choose what is judged: a target's rules, or the nodes of a cluster.

    Raises:
        UserError: both were given, or neither.
    """
    if (target is None) == (address is None):
        raise UserError(
            f"conformance: found {'both TARGET and' if target else 'neither TARGET nor'} --address, expected one of "
            "them: `conformance relief`, or `conformance --address HOST:PORT` for the nodes of a cluster"
        )
    return "rules" if address is None else "nodes"


def conformance_command(
    target: str, settings: Sequence[str], use_ray: bool, as_json: bool, equals: str = "", within: float = 0.0
) -> None:
    """Print a line per rule; end with 1 where one is broken. ``equals``: judge only whether it is that method."""
    with ExitStack() as stack:
        trial = trial_of(target, settings, ray_executors(stack) if use_ray else {}, equals, within)
        if as_json:
            result = trial.judge()
        else:
            print(trial.heading)
            result = trial.judge(lambda verdict: print(line(verdict, trial.rules), flush=True))
    print(json.dumps(result.facts, indent=1) if as_json else result.summary)
    if not result.ok:
        raise typer.Exit(1)
    if names_dataset(target) and not as_json:
        print("", *owners_of((load_own(target) if is_path(target) else DATASETS[target]).spec), sep="\n")
