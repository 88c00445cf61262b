"""`relief-ray data ...`: lists, fetches, verifies, synthesises and describes datasets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from actors.terminal.progress import is_interactive, make_console
from relief_ray.data import DataConfig, get_spec, open_dataset
from relief_ray.data.describe import VerifyReport, list_datasets, verify
from relief_ray.data.fetch import FetchReport, fetch, import_from, synth
from relief_ray.data.loader import how_to_bring
from relief_ray.data.shard import write_shard
from relief_ray.data.source import search_roots
from relief_ray.plugins.load import is_path
from relief_ray.studies.data_description import data_config, data_description
from relief_ray.support.errors import UserError
from relief_ray.support.text import WIDTH, table


def show_list(as_json: bool) -> None:
    """Run `data list`."""
    datasets = list_datasets()
    if as_json:
        print(json.dumps(datasets, indent=1))
        return
    rows = [[d["name"], d["origin"] or "absent", d["title"]] for d in datasets]
    print(table(["name", "here", "what"], rows, left=3, width=WIDTH))
    print(f"\nLooked in: {', '.join(map(str, search_roots(None)))} (RELIEF_DATA names the first)")
    if absent := [d["name"] for d in datasets if d["origin"] is None]:
        print(f"Bring one here: relief-ray data fetch {absent[0]} [--from FILE|DIR]")


def bring(name: str, source: Path | None, url: str | None, as_json: bool) -> None:
    """Run `data fetch`."""
    if source is not None:
        report = import_from(name, source)
    elif as_json or not is_interactive():
        report = fetch(name, url=url)
    else:
        report = _fetch_with_bar(name, url)
    if as_json:
        print(json.dumps(report, indent=1))
        return
    print(f"{name}: {report['num_bytes'] / 1e6:.1f} MB in {report['path']}")
    _finish_verification(report["verification"])


def _fetch_with_bar(name: str, url: str | None) -> FetchReport:
    """Download a dataset and show a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=make_console(), transient=True) as bar:
        task = bar.add_task(name, total=None)
        return fetch(name, url=url, progress=lambda done, total: bar.update(task, completed=done, total=total))


def check(name: str, as_json: bool) -> None:
    """Run `data verify`."""
    report = verify(name)
    if as_json:
        print(json.dumps(report, indent=1))
    _finish_verification(report, silent=as_json)


def _finish_verification(report: VerifyReport, silent: bool = False) -> None:
    """Print the result of a verification.

    Raises:
        UserError: the structure is not the dataset's.
    """
    if not silent:
        print(f"{report['name']}: {report['origin']}, {report['path']}")
        print(f"  files     {len(report['files'])}, {report['num_known']} with a known sha256")
        for line in report["warnings"][:10]:
            print(f"  warning   {line}")
        if report["ok"]:
            print("  structure as expected (columns, lengths, gaps, physical ranges)")
    if not report["ok"]:
        lines = "\n".join(report["problems"][:10])
        remedy = "mend the files, or the loader" if is_path(report["name"]) else how_to_bring(get_spec(report["name"]))
        raise UserError(f"{report['path']}: {len(report['problems'])} problem(s) in its structure\n{lines}\n{remedy}")


def make(name: str, out: Path | None, seed: int, scale: float) -> None:
    """Run `data synth`."""
    folder = synth(name, out if out is not None else search_roots(None)[0], seed, scale)
    print(f"{name}: SYNTHETIC files in {folder}")
    print("Whatever is computed from them carries that word in its record, tables and figures.")
    if out is not None:
        print(f"Use them: RELIEF_DATA={out} relief-ray ...")


def look(name: str, stride_s: float | None, settings: Sequence[str], as_json: bool) -> None:
    """Run `data describe`; ``stride_s`` None: that of the preset, file or run, else the default."""
    described = data_description(name, stride_s, settings)
    print(json.dumps(described.facts, indent=1) if as_json else described)


def shard(name: str, client: int, out: Path, settings: Sequence[str], as_json: bool) -> None:
    """Run `data shard`."""
    config = data_config(name, DataConfig().stride_s, settings)
    facts = write_shard(open_dataset(config), config, client, out)
    if as_json:
        print(facts.model_dump_json(indent=1))
        return
    print(f"{name}: {facts.num_windows} training windows of client {client} ({facts.split}), {facts.num_rows:,} rows")
    print(f"  in {out}; on the device: RELIEF_DATA={out} before `ray start`")
