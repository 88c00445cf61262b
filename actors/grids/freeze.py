"""The choice of a search: the best try of every method by validation F1, frozen in a file that other grids read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import cast

from pydantic import JsonValue

from actors.grids.search import LOG_FROM
from relief_ray.config.experiment import Choice
from relief_ray.records.cells import CellState
from relief_ray.records.run_folder import read_rounds
from relief_ray.report.runs import config_value
from relief_ray.studies.plan import Plan
from relief_ray.studies.spec import Cell
from relief_ray.support.errors import UserError, listed
from relief_ray.support.files import PAGE, disk_errors, sealed, write_atomic
from relief_ray.support.text import typed
from tune_configs.search import Frozen, Place, Tuned, place_of, words

_SCORE = "last validation F1, mean over seeds, each fold for itself"
# The dotted keys that a try sets, each with its value as JSON.
Try = tuple[tuple[str, str], ...]
_EDGE = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """One method's tries at one place, in the order in which the grid lists them, with the scores that there are.

    Tries may set different keys: one of SGD sets a momentum, one of Adam does not. A try that was stopped early has no
    score and cannot win. ``bounds``: of numbers that a sampler suggests.
    """

    tries: dict[Try, list[float]] = field(default_factory=dict)
    num_open: int = 0
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def freeze(plan: Plan, path: Path) -> list[str]:
    """Write the choices of methods whose tries have all ended; return a line per dataset, fold, backbone and method.

    Raises:
        UserError: no search, no method's search is complete, or the file cannot be written.
    """
    choices, lines = [], []
    for place, search in _collect(plan).items():
        if search.num_open:
            lines.append(f"{words(place)}: left out, {search.num_open} of its cells are not done")
            continue
        if not any(search.tries.values()):
            lines.append(f"{words(place)}: left out, every try was stopped early")
            continue
        choices.append(choose(place, search))
        lines.append(f"{words(place)}: {sentence(choices[-1])}")
    if not lines:
        raise UserError(f"{plan.out}: {plan.name} is no search; expected cells of one, e.g. relief-ray grid search_lr")
    if not choices:
        raise UserError(
            f"{plan.out}: no method has all of its tries done; expected some; run: relief-ray grid resume "
            f"{typed(plan.out)}"
        )
    tuned = Tuned(grid=plan.name, score=_SCORE, choices=tuple(choices))
    with disk_errors(path, "write the choices"):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, sealed(json.dumps(tuned.model_dump(mode="json"), indent=1).encode(), PAGE))
    return [*lines, *_programs(plan)]


def _programs(plan: Plan) -> list[str]:
    """A line where several programs have computed the tries, which may then differ by more than their settings."""
    runs = (entry.run for entry in plan.look())
    programs = sorted({run.source_digest[:12] for run in runs if run is not None})
    if len(programs) < 2:
        return []
    again = f"relief-ray grid resume {typed(plan.out)} --rerun-stale"
    return [
        f"tries were computed by {len(programs)} programs ({listed(programs)}); to compute older ones again: {again}"
    ]


def _dataset_of(entry: CellState[Cell]) -> str:
    """The level of the dataset axis."""
    return entry.cell.setting.partition("-")[0]


def _collect(plan: Plan) -> dict[Place, Search]:
    """Validation F1 of every finished try, and how many are not finished, by place.

    Folds are never averaged: the validation windows of one fold come from subjects that another fold tests on.
    """
    searches: dict[Place, Search] = {}
    num_open: dict[Place, int] = {}
    for entry in plan.look():
        config = entry.cell.config
        if config.choice is None or config.choice.kind != "try":
            continue
        place = place_of(_dataset_of(entry), entry.cell.label, config)
        search = searches.setdefault(place, Search())
        values = config.model_dump(mode="json")
        attempt = tuple((key, json.dumps(config_value(values, key))) for key in config.choice.parameters)
        scores = search.tries.setdefault(attempt, [])
        if entry.status in ("done", "stale"):  # whole, whichever program computed it
            scores.append(score(entry))
        elif entry.status != "stopped":  # that one has lost
            num_open[place] = num_open.get(place, 0) + 1
    wanted = 0 if plan.search is None else plan.search.tries
    bounds = {} if plan.search is None else plan.search.bounds
    return {
        place: Search(
            tries=search.tries, bounds=bounds.get(place[3], {}),
            num_open=num_open.get(place, 0) + max(0, wanted - len(search.tries)),
        )
        for place, search in searches.items()
    }  # fmt: skip


def score(entry: CellState[Cell]) -> float:
    """The last validation F1; of clients' personal models where they have such.

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


def choose(place: Place, search: Search) -> Frozen:
    """The best try, the first listed where several are; with its values at the edge of what was tried."""
    means = {attempt: fmean(scores) for attempt, scores in search.tries.items() if scores}
    best = max(means, key=lambda attempt: means[attempt])
    chosen = dict(best)
    dataset, fold, backbone, method = place
    return Frozen(
        dataset=dataset,
        fold=fold,
        backbone=backbone,
        method=method,
        settings={key: json.loads(value) for key, value in chosen.items()},
        num_cells=sum(len(scores) for scores in search.tries.values()),
        choice=Choice(
            kind="tuned",
            parameters=tuple(chosen),
            at_edge=_edges(chosen, search),
            num_tries=len(search.tries),
            f1_validation=means[best],
        ),
    )


def _edges(chosen: Mapping[str, str], search: Search) -> tuple[str, ...]:
    """Keys whose chosen value is the first or last one tried, among tries with the same names (optimizer, say)."""
    names = {key for key, value in chosen.items() if isinstance(json.loads(value), str)}
    beside = [t for t in map(dict, search.tries) if all(t.get(key) == chosen[key] for key in names)]
    listed = {key: list(dict.fromkeys(t[key] for t in beside if key in t)) for key in chosen.keys() - names}
    return tuple(k for k in chosen if k in listed and _is_at_edge(chosen[k], listed[k], search.bounds.get(k)))


def _is_at_edge(value: str, listed: Sequence[str], bounds: tuple[float, float] | None) -> bool:
    """Whether a value is the first or last tried; of a suggested number, within a twentieth of its range of a bound."""
    if bounds is None:
        return len(listed) > 1 and value in (listed[0], listed[-1])
    low, high = bounds
    scale = math.log if low > 0 and high / low >= LOG_FROM else float
    share = (scale(float(value)) - scale(low)) / (scale(high) - scale(low))
    return not _EDGE < share < 1 - _EDGE


def sentence(frozen: Frozen) -> str:
    """A frozen choice as a line of text."""
    choice = frozen.choice
    shown = ", ".join(f"{name}={_shown(value)}" for name, value in frozen.settings.items())
    edge = f"; optimum at the edge of {', '.join(choice.at_edge)}" if choice.at_edge else ""
    return f"{shown} (validation F1 {100 * (choice.f1_validation or 0.0):.1f} %, {choice.num_tries} tries){edge}"


def _shown(value: JsonValue) -> str:
    if isinstance(value, Mapping):
        return "/".join(_shown(v) for v in value.values())
    return f"{value:g}" if isinstance(value, float) else str(value)
