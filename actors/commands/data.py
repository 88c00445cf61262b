"""`relief-ray data ...`: lists, fetches, verifies, synthesises, describes and tries out datasets."""

from __future__ import annotations

import json
import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from actors.terminal.exit_codes import Result, figure
from relief_ray import __version__
from relief_ray.config.experiment import assign, parse
from relief_ray.data import get_spec, open_dataset
from relief_ray.data.describe import VerifyReport, describe, list_datasets, strips, verify
from relief_ray.data.fetch import FetchReport, fetch, import_from, synth
from relief_ray.data.loader import how_to_bring
from relief_ray.data.shard import write_shard
from relief_ray.data.source import search_roots
from relief_ray.experiment.experiment import run_cell
from relief_ray.plugins.load import modules_of
from relief_ray.records.identity import machine_facts, source_digest
from relief_ray.records.run_folder import read_rounds
from relief_ray.report.build import draw
from relief_ray.report.document import Document, Paragraphs, Section
from relief_ray.report.figures.data import classes_figure, strips_figure
from relief_ray.report.formats.pages import html
from relief_ray.strategies import PRESETS
from relief_ray.studies.describe import DataDescription, data_config, data_description, quality_tables
from relief_ray.studies.progress import is_interactive, make_console
from relief_ray.studies.spec import as_typed
from relief_ray.support.errors import Setting, UserError
from relief_ray.support.files import write_atomic
from relief_ray.support.process import use_threads
from relief_ray.support.text import WIDTH, table

_MAX_LINES = 10


def show_list() -> Result:
    """Run `data list`."""
    datasets = list_datasets()
    rows = [[d["name"], d["origin"] or "absent", d["title"]] for d in datasets]
    lines = [
        table(["name", "here", "what"], rows, left=3, width=WIDTH),
        f"\nLooked in: {', '.join(map(str, search_roots(None)))} (RELIEF_DATA names the first)",
    ]
    if absent := [d["name"] for d in datasets if d["origin"] is None]:
        lines.append(f"Bring one here: relief-ray data fetch {absent[0]} [--from FILE|DIR]")
    return Result(lines, datasets)


def bring(name: str, source: Path | None, url: str | None) -> Iterator[Result]:
    """Run `data fetch`."""
    if source is not None:
        report = import_from(name, source)
    else:
        report = _fetch_with_bar(name, url) if is_interactive() else fetch(name, url=url)
    yield Result(f"{name}: {report['num_bytes'] / 1e6:.1f} MB in {report['path']}", report)
    yield Result(_verification_lines(report["verification"]))
    _refuse_wrong(report["verification"])


def _fetch_with_bar(name: str, url: str | None) -> FetchReport:
    """Download a dataset and show a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=make_console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        return fetch(name, url=url, progress=lambda done, total: bar.update(task, completed=done, total=total))


def check(name: str) -> Iterator[Result]:
    """Run `data verify`.

    Raises:
        UserError: the structure is not the dataset's.
    """
    report = verify(name)
    yield Result(_verification_lines(report), report)
    _refuse_wrong(report)


def _verification_lines(report: VerifyReport) -> list[str]:
    """The result of a verification."""
    lines = [
        f"{report['name']}: {report['origin']}, {report['path']}",
        f"  files     {len(report['files'])}, {report['num_known']} with a known sha256",
        *(f"  warning   {line}" for line in report["warnings"][:_MAX_LINES]),
    ]
    if report["ok"]:
        lines.append("  structure as expected (columns, lengths, gaps, physical ranges)")
    return lines


def _refuse_wrong(report: VerifyReport) -> None:
    """Check the result of a verification.

    Raises:
        UserError: the structure is not the dataset's.
    """
    if not report["ok"]:
        lines = "\n".join(report["problems"][:_MAX_LINES])
        name = report["name"]
        remedy = "mend the files, or the loader" if modules_of([name]) else how_to_bring(get_spec(name))
        raise UserError(f"{report['path']}: {len(report['problems'])} problem(s) in its structure\n{lines}\n{remedy}")


def make(name: str, out: Path | None, seed: int, scale: float) -> Result:
    """Run `data synth`."""
    folder = synth(name, out or search_roots(None)[0], seed, scale)
    lines = [
        f"{name}: SYNTHETIC files in {folder}",
        "Whatever is computed from them carries that word in its record, tables and figures.",
        *([] if out is None else [f"Use them: RELIEF_DATA={shlex.quote(str(out))} relief-ray ..."]),
    ]
    return Result(lines)


def look(name: str, stride_s: float | None, settings: Sequence[Setting], html: Path | None) -> Result:
    """Run `data describe`; ``stride_s`` None: that of the preset, file or run, else the default."""
    given = [] if stride_s is None else [Setting("data.stride_s", stride_s)]
    description = data_description(name, [*given, *settings])
    if html is not None:
        _write_page(description, html)
    return Result(description, description.facts)


def _write_page(description: DataDescription, path: Path) -> None:
    """Write warnings, tables and pictures of a dataset as one page."""
    facts, config = description.facts, description.config
    told = Paragraphs(lines=tuple(facts["warnings"]) or ("Nothing is odd.",), is_list=True)
    people, sensors = quality_tables(facts)
    pictures = strips_figure(strips(open_dataset(config), config)), classes_figure(facts["activity_s"])
    page = Document(
        title=f"Data: {facts['title']}",
        lead=f"{facts['origin']}, {facts['num_rows']:,} rows at {facts['rate_hz']} Hz, {len(facts['people'])} people.",
        sections=(
            Section(title="Warnings", slug="warnings", blocks=(told,)),
            Section(title="People", slug="of-people", blocks=(people, pictures[1])),
            Section(title="Sensors", slug="of-sensors", blocks=(sensors, pictures[0])),
        ),
        footer=f"{facts['path']}, sha256 {facts['digest']}",
    )
    with tempfile.TemporaryDirectory(prefix="relief-ray-") as folder:
        write_atomic(path, html(page, draw(pictures, Path(folder))).encode())


def shard(name: str, client: int, out: Path, settings: Sequence[Setting]) -> Result:
    """Run `data shard`."""
    config = data_config(name, settings)
    facts = write_shard(open_dataset(config), config, client, out)
    text = (
        f"{name}: {facts.num_windows} training windows of client {client} ({facts.split}), {facts.num_rows:,} rows\n"
        f"  in {out}; on the device: RELIEF_DATA={shlex.quote(str(out))} before `ray start`"
    )
    return Result(text, facts.model_dump(mode="json"))


# `relief-ray data accept`: tries everything out on a dataset's files and writes a receipt to share.

_ROUNDS = 2


def accept(name: str, stride_s: float, settings: Sequence[Setting], out: Path) -> Iterator[Result]:
    """Verify, cache, describe, and train two rounds of every strategy; write ``accept-NAME.json``.

    Raises:
        UserError: the files are not the dataset.
    """
    use_threads(1)
    verification = verify(name)
    _refuse_wrong(verification)
    config = data_config(name, [Setting("data.stride_s", stride_s)])
    dataset = open_dataset(config)
    described = describe(dataset, config)
    rows = []
    for label in PRESETS:
        rows.append(_two_rounds(name, label, stride_s, settings))
        yield Result(f"  {label}: {rows[-1]['wall_s']:.1f} s")
    receipt = {
        "receipt": 1,
        "dataset": name,
        "origin": dataset.origin,
        "digest": dataset.digest,
        "load_s": dataset.load_s,
        "verification": {**verification, "files": len(verification["files"])},
        "windows": described["windows"],
        "coverage": described["coverage"],
        "stride_s": stride_s,
        "settings": as_typed(settings),
        "strategies": rows,
        "code_version": __version__,
        "source_digest": source_digest(),
        "machine": machine_facts().model_dump(mode="json"),
    }
    path = out / f"accept-{name}.json"
    write_atomic(path, (json.dumps(receipt, indent=1) + "\n").encode())
    lines = [
        [row["strategy"], figure(row["f1"] and 100 * row["f1"], 1), figure(row["loss"], 3), figure(row["wall_s"], 1)]
        for row in rows
    ]
    text = (
        f"{name} ({dataset.origin}): files, cache, windows and {_ROUNDS} rounds of {len(rows)} strategies are fine\n"
        + table(["strategy", f"F1 after {_ROUNDS} rounds, %", "loss", "seconds"], lines)
        + f"\nReceipt: {path}"
    )
    yield Result(text, receipt)


def _two_rounds(name: str, strategy: str, stride_s: float, settings: Sequence[Setting]) -> dict[str, Any]:
    """Run two rounds of one strategy in this process, in a temporary folder."""
    values = {
        "name": f"accept-{strategy}",
        "strategy": strategy,
        "data": {"name": name, "stride_s": stride_s},
        "training": {"epochs": 1},
        "rounds": _ROUNDS,
    }
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="relief-ray-accept-") as place:
        run_cell(parse(assign(values, settings)), Path(place) / "run")
        last = read_rounds(Path(place) / "run")[-1]
    wall_s = time.perf_counter() - began
    f1 = None if last.metrics is None else last.metrics.headline
    return {"strategy": strategy, "f1": f1, "loss": last.loss, "wall_s": wall_s, "model_sha256": last.model_sha256}
