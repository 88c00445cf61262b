"""Describes a data set in words and figures: `relief-ray data describe` and ``rr.describe_data``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from relief_ray.config.experiment import explain, override
from relief_ray.config.keys import value_text
from relief_ray.data import DataConfig, get_spec, open_dataset
from relief_ray.data.describe import Description, describe
from relief_ray.data.federated_data import Coverage
from relief_ray.data.loader import DatasetSpec, Loader
from relief_ray.data.registry import DATASETS
from relief_ray.devices.fleet import owners_lines, type_counts_for
from relief_ray.plugins.load import is_path
from relief_ray.records.run_folder import RUN_FILE
from relief_ray.studies.plan import target_config
from relief_ray.studies.presets import PRESETS as RUNS
from relief_ray.studies.presets import make_preset
from relief_ray.studies.request import check_words, data_name, in_python, settings_of
from relief_ray.support.errors import UserError, listed
from relief_ray.support.text import WIDTH, Printed, filled, table, tables, wrapped


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class DataDescription(Printed):
    """A data set's files, signal, windows, value ranges and activities, and which clients have which sensors.

    Attributes:
        text: what `relief-ray data describe` prints.
        facts: the same for programs, as with `--json`.
    """

    text: str
    facts: Description

    def __str__(self) -> str:
        """Return the text."""
        return self.text


def describe_data(data: str | Path | Loader, *, set: Mapping[str, object] | None = None) -> DataDescription:
    """Return what a data set holds, as `relief-ray data describe` prints it; reads and caches its files.

    Args:
        data: a data set's name, import path or loader, or a preset, a file or a run's folder: the data of its run.
        set: settings of the section `data` by dotted key: ``{"data.stride_s": 2.5}``.

    Raises:
        UserError: bad input, or files that are missing or broken; the message names the place and the fix.
    """
    with in_python():
        check_words({}, set or {})
        name = data_name(data) if isinstance(data, Loader) else str(data)
        return data_description(name, None, [*settings_of(set or {})])


def data_description(name: str, stride_s: float | None, settings: Sequence[str]) -> DataDescription:
    """Return the description of a data set, or of a run's data; ``stride_s`` None: theirs, else the default.

    Raises:
        UserError: see ``describe_data``.
    """
    config = _config_of(name, stride_s, settings)
    facts = describe(open_dataset(config), config)
    return DataDescription(text=_text(facts, config), facts=facts)


def _config_of(name: str, stride_s: float | None, settings: Sequence[str]) -> DataConfig:
    """The data configuration of a dataset, or of the first run of a preset, a file or a run folder."""
    is_run = name in RUNS or Path(name).suffix in (".yaml", ".yml", ".json") or (Path(name) / RUN_FILE).exists()
    if not is_run or name in DATASETS:
        return data_config(name, DataConfig().stride_s if stride_s is None else stride_s, settings)
    given = [] if stride_s is None else [f"data.stride_s={stride_s:g}"]
    return target_config(name, [*settings, *given]).data


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


def _text(description: Description, config: DataConfig) -> str:
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
        values = make_preset(name).settings["data"]
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
