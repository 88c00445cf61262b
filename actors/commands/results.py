"""`relief-ray compare`, `report` and `sync`: tables, figures and verdict of finished runs; copies in MLflow."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean

from pydantic import JsonValue

from actors.commands.folders import refuse_nested
from actors.terminal.exit_codes import Result, say
from actors.terminal.mlflow_export import export, where_to_look
from relief_ray.config.runtime import TrackingConfig
from relief_ray.records.cells import PLAN_FILE, find_runs, read_plan_file
from relief_ray.records.committed import FILE, write_committed
from relief_ray.records.identity import NOT_DECIDING, flat, foreign, why_foreign
from relief_ray.records.run_folder import RUN_FILE, read_run
from relief_ray.records.sync.mlflow import DATABASE, sync
from relief_ray.report.build import build, command_of, default_place, write
from relief_ray.report.claims import Registry, judge, last_lines, registry_of
from relief_ray.report.comparison import Comparison, by_setting, compare
from relief_ray.report.figures.progress import curves
from relief_ray.report.figures.timeline import featured, timeline
from relief_ray.report.formats import text as render
from relief_ray.report.runs import STATUSES, Inventory, is_committed, take_inventory
from relief_ray.strategies.citations import cite
from relief_ray.studies.plan import Plan
from relief_ray.studies.reasons import reasons_of
from relief_ray.support.errors import UserError
from relief_ray.support.files import disk_errors, write_atomic
from relief_ray.support.table import grouped
from relief_ray.support.text import WIDTH, filled, first_few, table, typed


def report_command(folders: Sequence[Path], out: Path | None, commit: Path | None, title: str | None) -> Result:
    """Write the page and its files; a partial grid renders too, with its gaps.

    ``commit``: the small form as well, called ``title`` or as the grids are.

    Raises:
        UserError: a folder holds neither plan nor run, nothing can be written, or a title has nothing to name.
    """
    if title is not None and commit is None:
        raise UserError(f"--title {title!r}: found no --commit; expected --commit DIR, whose results it names")
    inventory, registry = take_inventory(folders), registry_of(folders)
    place = out or default_place(folders, is_committed=is_committed(folders[0]))
    document = build(inventory, registry, explain=reasons_of, command=command_of(folders))
    written = write(document, place)
    written += [] if commit is None else [_write_small(inventory, registry, commit, title)]
    failure = _export(folders, written)
    number = {status: inventory.count(status) for status in STATUSES}
    facts = {"event": "report", "cells": number, "files": [str(path) for path in written], "lead": document.lead}
    shown = ", ".join(f"{n} {status}" for status, n in number.items() if n) or "none"
    figures = f"{len(document.tables)} tables, {len(document.figures)} figures"
    lines = [f"Cells   {shown}", f"Holds   {figures}", *(f"Written {path}" for path in written), *failure]
    return Result(lines, facts)


def _export(folders: Sequence[Path], files: Sequence[Path]) -> list[str]:
    """Copy a report's page to the MLflow store of the runs that it is of, as ``export`` does.

    It becomes an artifact of the run that stands for the grid or preset, or of the single run that it is about; of
    several folders it is none's. A store that only a record names gets no copy.
    """
    place, *others = folders
    if others:
        return []
    if (place / RUN_FILE).exists():
        config, run, study = read_run(place).config, place, ""
    elif (place / PLAN_FILE).exists() and (plan := read_plan_file(place / PLAN_FILE)).cells:
        config, run, study = plan.cells[0].config, place / "run", plan.name
    else:
        return []
    tracking = TrackingConfig.model_validate(config.get("tracking", {}))
    if run != place and tracking.uri is None and not (place / DATABASE).exists():
        return []
    if address := foreign(config).get("tracking.uri"):
        why = why_foreign("tracking.uri", address)
        return [f"not copied to MLflow: {why}: `relief-ray sync DIR --uri URI` does it"]
    return export(tracking, run, [file for file in files if file.suffix in (".html", ".md")], study)


def _write_small(inventory: Inventory, registry: Registry, place: Path, title: str | None) -> Path:
    """``cells.json`` with every finished cell and the claims about them, for the repository and `relief-ray reproduce`.

    Raises:
        UserError: no cell is finished, two have one name, or claims of several studies are about them.
    """
    done = [(item.name, loaded) for item in inventory.items if (loaded := item.done) is not None]
    twice = [name for name, number in Counter(name for name, _ in done).items() if number > 1]
    if twice or not done or len(registry.files) > 1:
        found = f"{len(registry.files)} claims files" if done else "no finished cell"
        found = f"cells named {', '.join(twice[:3])} more than once" if twice else found
        raise UserError(f"--commit {place}: found {found}; commit the folders of one grid at a time")
    cells = ((name, loaded.small) for name, loaded in done)
    claims = registry.files[0].committed if registry.files else None
    return write_committed(place / FILE, title or "; ".join(inventory.titles) or place.name, cells, claims)


_FIGURE = "timeline.png"


def results_of(plan: Plan) -> Iterator[Result]:
    """Table, figure file and verdict of all runs of a plan."""
    from actors.commands.plan_text import next_steps  # loads Ray, which `compare` and `report` do without

    if not plan.is_tested:
        say("\nno table: these runs were never evaluated on the test part (evaluation.parts)")
        return
    comparison = compare([plan.out / cell.name for cell in plan.cells])
    written = draw(comparison, plan.out / _FIGURE)
    tracking = plan.cells[0].config.tracking
    failure = export(tracking, plan.out / "run", written, plan.name)
    remarks = [*(f"Figure  {path}" for path in written), *failure, *where_to_look(tracking, plan.out)]
    yield _result(comparison, written, remarks, [plan.out], end=next_steps(plan))


_MAX_SHOWN = 3


def list_command(folder: Path) -> Result:
    """Run `relief-ray ls`: a row for each folder of runs directly below ``folder``, or for itself, and each setting.

    Raises:
        UserError: there is no such folder, or nothing was run in it.
    """
    names = (PLAN_FILE, RUN_FILE, FILE)
    places = sorted({path.parent for name in names for path in folder.glob(f"*/{name}")})
    if any((folder / name).exists() for name in names):
        places = [folder]
    if not places:
        found = "nothing that was run" if folder.is_dir() else "no such folder"
        raise UserError(f"{folder}: {found}; expected a folder of results, e.g. runs: relief-ray ls runs")
    found_at = sorted(chain(*map(_Listed.at, places)), key=lambda one: (one.last, str(one.place)), reverse=True)
    facts, rows = list[dict[str, object]](), []
    for one in found_at:
        differs = one.differences(found_at)
        rows.append([typed(one.place), f"{one.num_done}/{one.num_cells}", one.last[:10] or "-", one.summary(differs)])
        counts = {"folder": str(one.place), "done": one.num_done, "cells": one.num_cells, "last": one.last}
        facts.append({**counts, "f1_percent": one.scores, "differs": differs, "why": one.why})
    head = ("folder", "done", "last", "F1 %; settings that differ")
    return Result(table(head, rows, left=4, indent="", width=columns()), {"event": "list", "folders": facts})


@dataclass(frozen=True, kw_only=True, slots=True)
class _Listed:
    """The runs of one setting in a folder.

    Attributes:
        place: the folder.
        study: names of its grids, or that of its run; folders of one study are told apart by their settings.
        num_done, num_cells: finished cells, and all; those that cannot be read count with the first setting.
        last: when its last run ended or began, ISO; empty where nothing was begun.
        scores: mean F1 of each method over its finished runs, in percent.
        why: the first reason why a cell failed or the folder cannot be read; empty where all is well.
        common: the values that all its cells have, by key.
    """

    place: Path
    study: tuple[str, ...] = ()
    num_done: int = 0
    num_cells: int = 0
    last: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    why: str = ""
    common: Mapping[str, JsonValue] = field(default_factory=dict)

    @classmethod
    def at(cls, place: Path) -> list[_Listed]:
        try:
            inventory = take_inventory([place], None)
        except UserError as error:
            return [cls(place=place, why=str(error).splitlines()[0])]
        groups = [list(one.items) for one in by_setting(inventory)] or [[]]
        groups[0] += [item for item in inventory.items if not item.config]
        return [cls._of(place, replace(inventory, items=tuple(items))) for items in groups]

    @classmethod
    def _of(cls, place: Path, inventory: Inventory) -> _Listed:
        begun = [one.loaded.run for one in inventory.items if one.loaded is not None]
        values = [flat({k: v for k, v in one.config.items() if k not in NOT_DECIDING}) for one in inventory.items]
        by_method = grouped(
            (item.label, 100 * f1)
            for item in inventory.items
            if (run := item.done) and (f1 := run.tested.headline) is not None
        )
        return cls(
            place=place,
            study=inventory.titles or tuple(sorted({run.name for run in begun})),
            num_done=inventory.count("done"),
            num_cells=len(inventory.items),
            last=max((str(run.finished or run.created) for run in begun), default=""),
            scores={label: fmean(scores) for label, scores in by_method.items()},
            why=next((one.why.partition("\n")[0] for one in inventory.items if one.status == "failed"), ""),
            common={k: v for k, v in values[0].items() if all(k in other and other[k] == v for other in values)},
        )

    def differences(self, others: Sequence[_Listed]) -> dict[str, JsonValue]:
        """Values of this folder that another one of the same study has not."""
        alike = [other.common for other in others if other.study == self.study]
        return {k: v for k, v in self.common.items() if any(k in other and other[k] != v for other in alike)}

    def summary(self, differs: Mapping[str, JsonValue]) -> str:
        """F1 by method, what differs and why something is missing, in one line."""
        scores = [f"{label} {f1:.1f}" for label, f1 in self.scores.items()]
        values = [f"{key}={value}" for key, value in differs.items()]
        shown = [", ".join(first_few(words, _MAX_SHOWN)) for words in (scores, values)]
        return "; ".join(filter(None, [*shown, self.why])) or "-"


def compare_command(
    folders: Sequence[Path], out: Path | None, bibtex: bool, wide: bool, legend: bool, setting: str | None
) -> Iterator[Result]:
    """Run `relief-ray compare`.

    ``bibtex``: only the references that the methods stated when the runs began; ``wide``: all columns; ``legend``: what
    their headings mean; ``setting``: part of the name of one setting, where the results hold several.

    Raises:
        UserError: no finished run there, runs of different experiments, or no setting of that name.
    """
    if bibtex:
        citations = (read_run(folder).method.citation for folder in find_runs(folders))
        text = cite(filter(None, citations))
        yield Result(text, {"bibtex": text})
        return
    for title, comparison in _comparisons(folders, setting):
        place = out if out is None or not title else out / _slug(title)
        written = [] if place is None else _write_files(comparison, place)
        heading, remarks = f"## {title}" if title else "", [f"Written {path}" for path in written]
        yield _result(comparison, written, remarks, folders, wide=wide, legend=legend, heading=heading)


def _comparisons(folders: Sequence[Path], wanted: str | None) -> list[tuple[str, Comparison]]:
    """A comparison of run folders without a title, or one for every setting of committed results.

    Raises:
        UserError: no setting's title contains ``wanted``, or run folders of several settings.
    """
    refuse_nested(folders, "compare")
    if not any(map(is_committed, folders)):
        if wanted is not None:
            raise UserError("--setting: chooses among committed results; name the run folders to compare instead")
        return [("", compare(find_runs(folders)))]
    finished = [found for found in by_setting(take_inventory(folders)) if found.runs]
    chosen = [found for found in finished if wanted is None or wanted.lower() in found.title.lower()]
    if not chosen:
        titles = "; ".join(found.title for found in finished) or "none with finished cells"
        raise UserError(f"--setting {wanted!r}: fits none of the settings ({titles}); give a part of one's name")
    return [(found.title if len(finished) > 1 else "", found) for found in chosen]


def _slug(title: str) -> str:
    """A title as the name of a folder."""
    return re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-")


def _verdict(comparison: Comparison, folders: Sequence[Path]) -> tuple[str, ...]:
    """What runs decide about the claims in their folders' plans; none for a single method."""
    if len(comparison.rows) < 2:
        return ()
    (judgement,), problems = judge([comparison], registry_of(folders))
    return last_lines(comparison, judgement, problems)


def _result(
    comparison: Comparison,
    written: Sequence[Path],
    remarks: Sequence[str],
    folders: Sequence[Path],
    *,
    wide: bool = False,
    legend: bool = False,
    heading: str = "",
    end: Sequence[str] = (),
) -> Result:
    """Heading, table, remarks, the verdict and the ``end``; ``wide`` and ``legend`` as `compare` takes them."""
    sentences = _verdict(comparison, folders)
    width = render.WIDTH if wide else min(render.WIDTH, columns())
    options = ["--wide (all columns)"] * (not wide) + ["--legend (what headings mean)"] * (not legend)
    more = [f"More    relief-ray compare {' '.join(map(typed, folders))} {' '.join(options)}"] if options else []
    shown = render.plain(comparison, width, wide=wide, legend=legend).rstrip()
    width_of_text = min(WIDTH, width)
    verdict = "\n".join(filled(sentence, width=width_of_text) for sentence in sentences)
    parts = [filled(heading, width=width_of_text), shown, "\n".join([*more, *remarks]), verdict, "\n".join(end)]
    facts = json.loads(render.as_json(comparison))
    files = [str(path) for path in written]
    return Result(
        "\n" + "\n\n".join(filter(None, parts)),
        {"event": "comparison", **facts, "files": files, "verdict": " ".join(sentences) or None},
    )


def columns() -> int:
    """Width of the terminal, at least 60; 120 where the output goes to a file or another program."""
    return max(render.LEAST, shutil.get_terminal_size(fallback=(120, 24)).columns)


def draw(comparison: Comparison, path: Path) -> list[Path]:
    """Draw the timeline of a round, FedAvg above others; nothing without run folders or matplotlib."""
    methods = featured(comparison)
    return _drawn(lambda place: timeline(methods, place, comparison.clock), path) if len(methods) > 1 else []


def _drawn(make: Callable[[Path], Path], path: Path) -> list[Path]:
    """The figure that is made there; nothing where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    with disk_errors(path, "write the figure"):
        return [make(path)]


def _write_files(comparison: Comparison, out: Path) -> list[Path]:
    """Write the table as Markdown, JSON and CSV, the timeline and the curves.

    Raises:
        UserError: the folder cannot be written.
    """
    texts = {"md": render.markdown, "json": render.as_json, "csv": render.as_csv}
    written = {out / f"comparison.{suffix}": make(comparison) for suffix, make in texts.items()}
    for path, text in written.items():
        write_atomic(path, text.encode())
    return [*written, *draw(comparison, out / _FIGURE), *_drawn(partial(curves, comparison), out / "curves.png")]


def sync_command(folders: Sequence[Path], uri: str | None) -> Iterator[Result]:
    """Run `relief-ray sync`; a run that cannot be exported keeps none of the others back.

    Raises:
        UserError: runs could not be exported; the reasons are said.
    """
    refuse_nested(folders, "sync")
    runs, failures = find_runs(folders), list[UserError]()
    for folder in runs:
        try:
            done = sync(folder, uri)
        except UserError as error:
            failures.append(error)
            continue
        facts = {"folder": str(folder), "uri": done.uri, "run_id": done.run_id, "num_points": done.num_points}
        text = f"{folder}: {done.num_points} new points in {done.uri} (run {done.run_id})"
        yield Result(text, {"event": "synced", **facts})
    if failures and len(runs) == 1:
        raise failures[0]
    if failures:
        reasons = "\n".join(first_few([*map(str, failures)], _MAX_FAILURES))
        rest = "; the others are" if len(failures) < len(runs) else ""
        raise UserError(f"{len(failures)} of {len(runs)} runs were not exported{rest}\n{reasons}")


# A store that is down fails for every run in the same words.
_MAX_FAILURES = 5
