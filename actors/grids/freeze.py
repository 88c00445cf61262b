"""The choice of a search: the best try of every method by validation F1, frozen in a file that other grids read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from statistics import fmean
from typing import cast

from pydantic import JsonValue

from actors.grids.book import Book, Entry
from relief_ray.config import ExperimentConfig
from relief_ray.errors import UserError
from relief_ray.records.atomic import replace_file
from relief_ray.records.reading import read_rounds
from tune_configs.search_lr import RATES, own_parameter

LR = "training.lr"
Try = tuple[float, float]
Scores = dict[Try, list[float]]


def freeze(book: Book, path: Path) -> list[str]:
    """Writes the choices of all methods whose tries are all done; gives a line per method.

    Raises:
        UserError: no method's search is complete, or the file cannot be written.
    """
    entries = book.entries()
    scores = collect(entries)
    open_ = {(dataset_of(e), e.cell.label) for e in entries if e.state != "done"}
    choices: dict[str, dict[str, JsonValue]] = {}
    lines = []
    for (dataset, method), tries in scores.items():
        if (dataset, method) in open_:
            lines.append(f"{dataset} {method}: left out, not all of its tries are done")
            continue
        choice = choose(method, tries)
        choices.setdefault(dataset, {})[method] = cast(JsonValue, choice)
        lines.append(f"{dataset} {method}: {sentence(choice)}")
    if not choices:
        raise UserError(f"{book.out}: no method has all of its tries done; expected some; run: relief-ray grid resume")
    facts = {"grid": book.name, "score": "last validation F1, mean over folds and seeds", "choices": choices}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(facts, indent=1) + "\n").encode())
    return lines


def dataset_of(entry: Entry) -> str:
    """The level of the dataset axis."""
    return entry.cell.setting.partition("-")[0]


def collect(entries: Iterable[Entry]) -> dict[tuple[str, str], Scores]:
    """Validation F1 of every finished cell, by dataset and method, then by try."""
    found: dict[tuple[str, str], Scores] = {}
    for entry in entries:
        if entry.state == "done":
            key, _, _ = own_parameter(entry.cell.label)
            config = entry.cell.config
            tries = found.setdefault((dataset_of(entry), entry.cell.label), {})
            tries.setdefault((value_at(config, LR), value_at(config, key)), []).append(score(entry))
    return found


def value_at(config: ExperimentConfig, path: str) -> float:
    """A number of a configuration by its dotted path."""
    return float(reduce(getattr, path.split("."), cast(float, config)))


def score(entry: Entry) -> float:
    """The last validation F1; of own models where clients have such.

    Raises:
        UserError: the cell was never evaluated on the validation part, or it opened the test part.
    """
    rounds = read_rounds(entry.folder)
    last = rounds[-1].validation
    if last is None or any(r.metrics is not None for r in rounds):
        raise UserError(
            f"{entry.folder}: a search reads the validation part alone; run it with --set evaluation.parts=[validation]"
        )
    return cast(float, last.headline)


def choose(method: str, tries: Scores) -> dict[str, JsonValue]:
    """The best try; ``at_edge`` names the parameters whose optimum lies at the end of what was tried."""
    key, _, values = own_parameter(method)
    means = {attempt: fmean(found) for attempt, found in sorted(tries.items())}
    rate, own = max(means, key=lambda attempt: means[attempt])
    edges = {LR: (rate, (min(RATES), max(RATES))), key: (own, (min(values), max(values)))}
    whole = key == "training.batch_size"
    return {
        "settings": {LR: rate, key: int(own) if whole else own},
        "f1_validation": means[rate, own],
        "num_tries": len(means),
        "num_cells": sum(len(found) for found in tries.values()),
        "at_edge": [name for name, (value, ends) in edges.items() if value in ends],
    }


def sentence(choice: Mapping[str, JsonValue]) -> str:
    """A choice in a line."""
    settings, edges = cast(dict[str, float], choice["settings"]), cast(list[str], choice["at_edge"])
    shown = ", ".join(f"{name}={value:g}" for name, value in settings.items())
    edge = f"; optimum at the edge of {', '.join(edges)}" if edges else ""
    return (
        f"{shown} (validation F1 {100 * cast(float, choice['f1_validation']):.1f} %, {choice['num_tries']} tries){edge}"
    )
