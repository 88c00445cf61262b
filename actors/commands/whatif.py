"""`relief-ray fleet whatif`: recomputes the costs of finished runs on other hardware; allocations stay as they were."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from actors.commands.next_steps import refuse_nested
from relief_ray.records.cells import find_runs
from relief_ray.report.results import ClockSummary, summarise_run
from relief_ray.report.runs import Loaded, load_runs
from relief_ray.support.errors import UserError
from relief_ray.support.text import filled, table, typed
from relief_ray.support.user_yaml import read_mapping

if TYPE_CHECKING:
    from pydantic import JsonValue

_FIGURES = ("round_s", "energy_j", "speedup", "total_s", "total_j")
_HEAD = ["run", "clock", "round s", "then", "J/round", "then", "speedup", "then"]


def whatif(
    folders: Sequence[Path],
    fleet: Path | None,
    windows: int | None,
    epochs: int | None,
    as_json: bool,
    figure: Path | None = None,
) -> None:
    """Print seconds, joules and speedup as recorded and on the other fleet, by every clock.

    ``figure``: file for the timeline of a round there, FedAvg above RELIEF.

    Raises:
        UserError: nothing differs, no finished run there, or one that does not fit the other fleet; a figure without
            a pair of runs.
    """
    from relief_ray.studies.what_if import SAID, what_if

    refuse_nested(folders, "fleet whatif")
    if fleet is None and windows is None and epochs is None:
        raise UserError("what if what? give --fleet FILE.yaml, --windows N or --epochs E (the paper: 1900 and 5)")
    changed, profile = ({}, None) if fleet is None else _read_fleet(fleet)
    place = place_of(fleet, windows, epochs)
    runs = [loaded for loaded in load_runs(find_runs(folders)) if _is_finished(loaded)]
    pairs = [(loaded, what_if(loaded, changed, profile, windows=windows, epochs=epochs)) for loaded in runs]
    if figure is not None:
        _draw([after for _, after in pairs], figure, place)
    if as_json:
        rows_json: list[JsonValue] = [facts(*pair) for pair in pairs]
        differs = {"fleet": None if fleet is None else str(fleet), "windows": windows, "epochs": epochs}
        print(json.dumps({"event": "whatif", "said": SAID, **differs, "runs": rows_json}))
        return
    print(f"{len(pairs)} run(s) {place}\n")
    print(table(_HEAD, [row for pair in pairs for row in rows(*pair)], left=2))
    print("\n" + filled(f"{SAID[0].upper()}{SAID[1:]}."))


def _draw(runs: Sequence[Loaded], path: Path, place: str) -> None:
    """Draw the timeline of a round as recomputed.

    Raises:
        UserError: no run of FedAvg beside one of RELIEF or its variants, of the same fold and replicate.
    """
    from relief_ray.report.comparison import compare_runs
    from relief_ray.report.figures.timeline import featured, timeline

    methods = featured(compare_runs(runs))
    if len(methods) < 2:
        raise UserError("--figure: found no pair of FedAvg and RELIEF runs of one fold and replicate; name both runs")
    timeline(methods, path, note=place)


def place_of(fleet: Path | None, windows: int | None, epochs: int | None) -> str:
    """Say what differs: ``on the fleet of other.yaml, with 1900 windows a client, with 5 epochs``."""
    parts = [f"on the fleet of {fleet}"] * (fleet is not None)
    if windows is not None:
        parts.append(f"with {windows:,} windows a client")
    if epochs is not None:
        parts.append(f"with {epochs} local epochs")
    return ", ".join(parts)


def _read_fleet(path: Path) -> tuple[dict[str, object], str | None]:
    """A fleet file: keys of `fleet`, or sections `fleet` and `costs` (of which `profile` counts).

    Raises:
        UserError: unreadable, or other sections.
    """
    values = read_mapping(path)
    if not {"fleet", "costs"} & values.keys():
        return values, None
    fleet, costs = values.get("fleet") or {}, values.get("costs") or {}
    if not isinstance(fleet, dict) or not isinstance(costs, dict) or set(costs) - {"profile"}:
        raise UserError(
            f"{path}: expected the keys of a fleet, or the sections `fleet` and `costs` with `profile` alone"
        )
    profile = costs.get("profile")
    return dict(fleet), None if profile is None else str(profile)


def _is_finished(loaded: Loaded) -> bool:
    """True where all planned rounds are there.

    Raises:
        UserError: they are not.
    """
    if not loaded.complete:
        raise UserError(
            f"{loaded.where}: not finished; complete it with `relief-ray resume {typed(loaded.where)}`, or name "
            "another run"
        )
    return True


def _clocks_of(loaded: Loaded) -> Mapping[str, ClockSummary]:
    """Summary of a run by every clock.

    Raises:
        UserError: it was never evaluated on the test part.
    """
    if all(r.metrics is None for r in loaded.trained):
        raise UserError(f"{loaded.where}: no round was evaluated on the test part; name another run")
    return summarise_run(loaded).clocks


def rows(before: Loaded, after: Loaded) -> Iterator[list[str]]:
    """A line per clock."""
    old, new = _clocks_of(before), _clocks_of(after)
    for i, name in enumerate(new):
        cells = [c for figure, digits in (("round_s", 3), ("energy_j", 1), ("speedup", 2)) for c in (
            shown(old.get(name), figure, digits), shown(new[name], figure, digits)
        )]  # fmt: skip
        yield [before.title if i == 0 else "", name, *cells]


def shown(summary: ClockSummary | None, figure: str, digits: int) -> str:
    """A figure, or a dash."""
    value = None if summary is None else getattr(summary, figure)
    return "-" if value is None else f"{value:.{digits}f}"


def facts(before: Loaded, after: Loaded) -> JsonValue:
    """The recomputed costs as JSON."""
    recomputed: dict[str, JsonValue] = {"run": before.where, "title": before.title}
    for key, loaded in (("recorded", before), ("whatif", after)):
        recomputed[key] = {name: {f: getattr(c, f) for f in _FIGURES} for name, c in _clocks_of(loaded).items()}
    return recomputed
