"""`relief-ray data ...`: lists, fetches, verifies, synthesises and describes datasets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from actors.terminal.reporter import is_interactive, make_console
from relief_ray.config import explain, override
from relief_ray.data import DataConfig, get_spec, open_dataset
from relief_ray.data.describe import Description, describe, list_datasets
from relief_ray.data.federated_data import Coverage
from relief_ray.data.fetch import FetchReport, fetch, import_from, synth
from relief_ray.data.loader import DatasetSpec, how_to_bring
from relief_ray.data.registry import DATASETS
from relief_ray.data.shard import write_shard
from relief_ray.data.source import search_roots
from relief_ray.data.verify import VerifyReport, verify
from relief_ray.devices.fleet import owners_lines, type_counts_for
from relief_ray.errors import UserError, listed
from relief_ray.keys import value_text
from relief_ray.plugins import is_path
from relief_ray.records.run_folder import RUN_FILE
from relief_ray.studies.planning import target_config
from relief_ray.studies.presets import PRESETS as RUNS
from relief_ray.studies.presets import make_preset
from relief_ray.text import WIDTH, filled, table, tables, wrapped


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
    config = _config_of(name, stride_s, settings)
    description = describe(open_dataset(config), config)
    print(json.dumps(description, indent=1) if as_json else text(description, config))


def _config_of(name: str, stride_s: float | None, settings: Sequence[str]) -> DataConfig:
    """The data configuration of a dataset, or of the first run of a preset, a file or a run folder."""
    is_run = name in RUNS or Path(name).suffix in (".yaml", ".yml", ".json") or (Path(name) / RUN_FILE).exists()
    if not is_run or name in DATASETS:
        return data_config(name, DataConfig().stride_s if stride_s is None else stride_s, settings)
    given = [] if stride_s is None else [f"data.stride_s={stride_s:g}"]
    return target_config(name, [*settings, *given]).data


def shard(name: str, client: int, out: Path, settings: Sequence[str], as_json: bool) -> None:
    """Run `data shard`."""
    config = data_config(name, DataConfig().stride_s, settings)
    facts = write_shard(open_dataset(config), config, client, out)
    if as_json:
        print(facts.model_dump_json(indent=1))
        return
    print(f"{name}: {facts.num_windows} training windows of client {client} ({facts.split}), {facts.num_rows:,} rows")
    print(f"  in {out}; on the device: RELIEF_DATA={out} before `ray start`")


def data_config(name: str, stride_s: float, settings: Sequence[str] = ()) -> DataConfig:
    """The data configuration of a dataset, by default but for ``settings`` (``data.window_s=2.56``).

    Raises:
        UserError: an unknown dataset, an impossible value, or a setting of another section.
    """
    get_spec(name)
    values = override({"data": {"name": name, "stride_s": stride_s}}, settings)
    if other := sorted(set(values) - {"data"}):
        raise UserError(f"--set {other[0]}: expected a key of data, e.g. --set data.window_s=2.56")
    try:
        return DataConfig.model_validate(values["data"])
    except ValidationError as error:
        raise UserError("\n".join(explain(error))) from error


def text(description: Description, config: DataConfig) -> str:
    """Description of a dataset on a page."""
    windows = description["windows"]
    ranges = [
        [name, f"{r['min']:.4g}", f"{r['max']:.4g}", f"{r['mean']:.4g}"] for name, r in description["ranges"].items()
    ]
    return "\n".join(
        [
            filled(f"{description['name']}: {description['title']} ({description['origin']})", rest="  "),
            f"  files     {description['path']}",
            filled(description["citation"], "  cite      "),
            filled(description["licence"] + (f"; DOI {doi}" if (doi := description["doi"]) else ""), "  licence   "),
            f"  signal    {description['num_rows']:,} rows at {description['rate_hz']} Hz, "
            f"{len(description['subjects'])} subjects",
            filled(
                f"{description['window']} samples ({description['window_s']:g} s) every {config.stride_s:g} s: "
                f"{windows['train']} training, {windows['validation']} validation, {windows['test']} test "
                f"({config.split})",
                "  windows   ",
            ),
            filled(_origin_of_windows(config), " " * 12),
            *_of_presets(config),
            *wrapped(description["null_rows"], "  null      "),
            *(filled(line, "  warning   ") for line in description["warnings"]),
            "",
            table(["sensor", "min", "max", "mean"], ranges),
            "",
            "Seconds of each activity, over all subjects, and its training windows",
            _activity_table(description),
            *([] if config.partition == "subject" else ["", *_client_table(description["coverage"], config)]),
            "",
            *owners_of(get_spec(description["name"]), len(description["coverage"]["clients"])),
        ]
    )


def owners_of(spec: DatasetSpec, num_clients: int | None = None) -> list[str]:
    """Lines on the setting ``fleet.owned``: which clients have which sensors, and on people who lack some."""
    counts = type_counts_for(num_clients or sum(spec.type_counts), spec.type_counts)
    lacking = [
        f"  subject {s}: lacks {listed(spec.lacks[s])}, has {listed(spec.sensors_of(s))}"
        for s in spec.subjects
        if spec.lacks.get(s)
    ]
    title = "Whatever its device has, the client of a person who lacks a sensor is without it"
    return [*owners_lines(spec.names, counts), *([title, *lacking] if lacking else [])]


def _origin_of_windows(config: DataConfig) -> str:
    """Name the settings behind the windows that were counted, and whether a run has the same ones by default."""
    window = "the dataset's own" if config.window_s is None else "as set here"
    stride = "the default" if config.stride_s == DataConfig().stride_s else "as set here"
    return f"data.window_s: {window}; data.stride_s = {config.stride_s:g}: {stride}"


def _of_presets(config: DataConfig) -> list[str]:
    """Lines on presets that have another split or stride than the windows shown: those of this dataset.

    Of a user's own: `quick`, which `relief-ray new dataset` and docs/data.md run it with.
    """
    others = []
    for name in RUNS:
        values = make_preset(name).values["data"]
        assert isinstance(values, Mapping)
        of_preset = {key: values.get(key, DataConfig.model_fields[key].default) for key in ("split", "stride_s")}
        changed = [f"data.{k}={value_text(v)}" for k, v in of_preset.items() if v != getattr(config, k)]
        is_for_it = values["name"] == config.name or (is_path(config.name) and name == "quick")
        if is_for_it and changed:
            others.append(f"{name} ({', '.join(changed)})")
    return wrapped(f"others in {', '.join(others)}; take them with --set" if others else "", "  presets   ")


def _client_table(coverage: Coverage, config: DataConfig) -> list[str]:
    """Training windows of every client and class, where shares were drawn."""
    rows = [[str(c["client"]), str(sum(c["train"])), *map(str, c["train"])] for c in coverage["clients"]]
    drawn = f"({config.partition}, alpha {config.dirichlet_alpha:g}, seed {config.seed})"
    title, names = f"Training windows of each client {drawn}", coverage["classes"]
    shown = tables(["client", "all", *names], rows, WIDTH)
    if len(shown) == 1:
        return [title, *shown]
    numbers = [str(number) for number in range(1, len(names) + 1)]
    legend = ", ".join(f"{number}={name}" for number, name in zip(numbers, names, strict=True))
    return [title, "\n\n".join(tables(["client", "all", *numbers], rows, WIDTH)), "", *wrapped(legend, "  ", "  ")]


def _activity_table(description: Description) -> str:
    """Seconds and windows per class."""
    seconds: Mapping[str, Mapping[str, float]] = description["activity_s"]
    train = dict(zip(description["coverage"]["classes"], description["coverage"]["train"], strict=True))
    rows = []
    for name in train:
        lacking = [s for s in seconds if not seconds[s][name]]
        total_s = sum(s[name] for s in seconds.values())
        rows.append([name, ", ".join(lacking) or "-", f"{total_s:.0f}", str(train[name])])
    return table(["activity", "missing in subjects", "seconds", "windows"], rows, left=2)
