"""`relief-ray conformance my_data:MINE`: judges a dataset's loader, as strategies are judged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import typer

from actors.commands.conformance import line, summary
from actors.commands.data import owners_of
from relief_ray.config import override
from relief_ray.conformance.datasets import DATA_RULES, check_loader
from relief_ray.conformance.rules import Verdict
from relief_ray.data.loader import Loader
from relief_ray.data.registry import DATASETS, load_own
from relief_ray.errors import UserError
from relief_ray.plugins import is_path, load


def names_dataset(target: str) -> bool:
    """Whether a name or import path is a dataset's; what cannot be loaded is none."""
    if not is_path(target):
        return target in DATASETS
    try:
        return isinstance(load(target, "conformance"), Loader)
    except UserError:
        return False


def conformance_of_data(target: str, settings: Sequence[str], as_json: bool) -> None:
    """Print a line per rule; end with 1 where one is broken.

    Raises:
        UserError: a setting of another section than data.
    """
    loader = load_own(target) if is_path(target) else DATASETS[target]
    values = override({"data": {}}, settings)
    section = values["data"]
    if not isinstance(section, Mapping) or set(values) != {"data"}:
        other = ", ".join(sorted(set(values) - {"data"}))
        raise UserError(f"--set {other}: expected keys of data, e.g. --set data.window_s=2.56")
    if not as_json:
        print(f"{loader.spec.name} (dataset): {loader.spec.title}")
    verdicts: list[Verdict] = []
    for verdict in check_loader(loader, section):
        verdicts.append(verdict)
        if not as_json:
            print(line(verdict, DATA_RULES), flush=True)
    broken = [v.rule for v in verdicts if v.status == "broken"]
    print(_as_text(loader, verdicts) if as_json else summary(loader.spec.name, verdicts))
    if broken:
        raise typer.Exit(1)
    if not as_json:
        print("", *owners_of(loader.spec), sep="\n")


def _as_text(loader: Loader, verdicts: Sequence[Verdict]) -> str:
    """The dataset and all verdicts as JSON."""
    rows = [
        {
            "rule": v.rule,
            "status": v.status,
            "found": v.found,
            "says": DATA_RULES[v.rule].says,
            "fix": DATA_RULES[v.rule].fix,
        }
        for v in verdicts
    ]
    keeps = not any(v.status == "broken" for v in verdicts)
    return json.dumps(
        {"dataset": loader.spec.name, "about": loader.spec.title, "keeps": keeps, "rules": rows}, indent=1
    )
