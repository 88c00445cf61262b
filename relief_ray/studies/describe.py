"""Methods, models and data in words: ``relief_ray.methods()``, ``describe()`` and ``describe_data()``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np
from pydantic import ValidationError

from relief_ray.config.experiment import ExperimentConfig, assign, explain, settings_of
from relief_ray.core.groups import GroupLayout, ParamGroup
from relief_ray.core.messages import Fleet
from relief_ray.data import DataConfig, get_spec, num_clients, open_dataset
from relief_ray.data.describe import Description as DataFacts
from relief_ray.data.describe import describe as data_facts
from relief_ray.data.federated_data import Coverage
from relief_ray.data.loader import DatasetSpec, Loader
from relief_ray.data.registry import DATASETS
from relief_ray.devices.fleet import owners_lines
from relief_ray.experiment.setup import Model, choose_engine, configured_fleet, model_of, uncalibrated
from relief_ray.models.registry import backbone_name
from relief_ray.plugins.load import is_path
from relief_ray.records.run_folder import RUN_FILE
from relief_ray.strategies import DESCRIBED
from relief_ray.studies.plan import target_config
from relief_ray.studies.presets import PRESETS as RUNS
from relief_ray.studies.presets import make_preset
from relief_ray.studies.request import (
    Target,
    check_words,
    config_of,
    data_name,
    refuse_unknown_keywords,
)
from relief_ray.studies.study import as_frame
from relief_ray.support.errors import Setting, UserError, counted, in_python, listed, value_text
from relief_ray.support.table import Table, word_table
from relief_ray.support.text import WIDTH, Printed, filled, si, table, tables, wrapped

if TYPE_CHECKING:
    from pandas import DataFrame
    from typing_extensions import Unpack

    from relief_ray.studies.loop import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodInfo:
    """A method with a name.

    Attributes:
        name: what ``strategies=`` takes.
        title: its own name.
        idea: what it does, in a line.
        family: ``baseline``, ``proposed``, ``ablation``, ``bound``, ...
    """

    name: str
    title: str
    idea: str
    family: str


class Methods(Sequence[MethodInfo]):
    """All built-in methods in the order of tables; printed, one line each."""

    def __init__(self, methods: Sequence[MethodInfo]) -> None:
        """Hold these methods."""
        self._methods = tuple(methods)

    @property
    def frame(self) -> DataFrame:
        """The methods as a data frame: ``name``, ``title``, ``idea``, ``family``."""
        return as_frame(map(asdict, self))

    def __len__(self) -> int:
        """Return their number."""
        return len(self._methods)

    @overload
    def __getitem__(self, index: int) -> MethodInfo: ...
    @overload
    def __getitem__(self, index: slice) -> Methods: ...
    def __getitem__(self, index: int | slice) -> MethodInfo | Methods:
        """Return one of them by its place, or some of them."""
        return Methods(self._methods[index]) if isinstance(index, slice) else self._methods[index]

    def __repr__(self) -> str:
        """Return a line per method."""
        return table(["name", "family", "idea"], [[m.name, m.family, m.idea] for m in self], left=3)

    def _repr_html_(self) -> str:
        return word_table(
            ["name", "title", "family", "idea"], [[m.name, m.title, m.family, m.idea] for m in self]
        ).html()


def methods() -> Methods:
    """Return the built-in methods: name, title, idea and family of each, in the order of tables."""
    return Methods([MethodInfo(name=name, title=m.title, idea=m.about, family=m.kind) for name, m in DESCRIBED.items()])


_MIB = 2**20
_ROLES = {
    "fusion_a": "a sensor's block of the fusion",
    "fusion_b": "the part of the fusion that all share",
    "encoder": "a layer of a sensor's encoder",
    "head": "the classifier, shared by all",
}


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Description(Printed):
    """Groups of a model; prints as a table.

    Attributes:
        text: what `relief-ray model describe` prints.
        facts: the same for programs.
    """

    text: str
    facts: Mapping[str, object]

    @property
    def frame(self) -> DataFrame:
        """A row per group: role, sensor, values, bytes, FLOPs per window, and how many clients can train it."""
        groups = cast("list[dict[str, object]]", self.facts["groups"])
        return as_frame([{key: value for key, value in group.items() if key != "tensors"} for group in groups])


def describe(
    experiment: Target = None, *, set: Mapping[str, object] | None = None, **settings: Unpack[Settings]
) -> Description:
    """Return the parameter groups of the model that ``run`` would train, as `relief-ray model describe` prints them.

    Args:
        experiment: a preset's name, a file, an ``ExperimentConfig``, a mapping of its values, the folder of a run, or
            None.
        set: settings by dotted key.
        settings: sections of the configuration: ``backbone="my_net:MyNet"``.

    Raises:
        UserError: bad input; the message names the place, what was found, what was expected and the fix.
    """
    with in_python(settings):
        check_words({}, set or {})
        refuse_unknown_keywords(settings)
        name = str(experiment) if isinstance(experiment, str | Path) else "a configuration"
        return description(config_of(experiment, set or {}, settings), name)


def description(config: ExperimentConfig, name: str) -> Description:
    """Return the groups of a configuration's model; ``name``: what the text calls the configuration."""
    spec = config.data.spec()
    fleet, types = configured_fleet(config, num_clients(spec, config.data))
    model = model_of(config, spec, fleet, types, choose_engine(config))
    facts = _facts(model)
    return Description(text=_text(model, facts, name), facts=facts)


def _facts(model: Model) -> dict[str, Any]:
    """The description as JSON."""
    layout, costs = model.layout, model.accountant.counter.costs
    groups = [
        {
            "group": g.id,
            "role": g.role,
            "modality": g.modality,
            "values": g.numel,
            "bytes": 4 * g.numel,
            "flops_per_window": costs.group_flops(g.id),
            "clients": 1 if model.config.strategy.pooled else _num_owners(model.fleet, g),
            "tensors": {t.name: list(t.shape) for t in g.tensors},
        }
        for g in layout
    ]
    return {
        "backbone": model.config.backbone.model_dump(mode="json"),
        "groups": groups,
        "values": layout.numel,
        "subtotals": _subtotals(layout),
        "frozen": {**model.backbone.facts, **_frozen_shares(model)},
    }


def _num_owners(fleet: Fleet, group: ParamGroup) -> int:
    """Number of clients that can train the group."""
    return len(fleet) if group.modality is None else len(fleet.cohort(group.modality))


def _subtotals(layout: GroupLayout) -> dict[str, object]:
    """Values of each encoder and of a client with all sensors, with and without the head's last layer."""
    backbone_groups = [g for g in layout if g.role in _ROLES]
    encoders: dict[str, int] = {}
    for g in backbone_groups:
        if g.role == "encoder" and g.modality is not None:
            encoders[g.modality] = encoders.get(g.modality, 0) + g.numel
    whole, last = sum(g.numel for g in backbone_groups), [g.numel for g in backbone_groups if g.role == "head"][-1:]
    return {"encoders": encoders, "full_client": whole, "full_client_without_last_layer": whole - sum(last)}


def _frozen_shares(model: Model) -> dict[str, float]:
    """Shares of encoders' values and of all values that are trained, with and without unused token tables."""
    if not model.backbone.facts:
        return {}
    each, table, number = (
        int(model.backbone.facts[k]) for k in ("encoder_values", "token_table_values", "num_encoders")
    )
    trained = model.layout.numel
    return {
        "trained_share": trained / (number * each + trained),
        "trained_share_with_token_tables": trained / (number * (each + table) + trained),
        "frozen_forward_flops_per_window": model.accountant.counter.costs.frozen_forward_flops(),
    }


def _frozen_text(known: Mapping[str, Any]) -> list[str]:
    """Sentences on the values that are not trained."""
    encoder, matrix, table = (int(known[k]) for k in ("encoder_values", "frozen_fusion_values", "token_table_values"))
    number = known["num_encoders"]
    return [
        "",
        f"Frozen: {number} x {encoder:,} encoder values (held once), {matrix:,} of the fusion matrix",
        f"Unused token tables, never loaded: {number} x {table:,} values; an encoder with its own has "
        f"{encoder + table:,}",
        f"Trained: {100 * known['trained_share']:.2f} % of encoders and trained values,"
        f" {100 * known['trained_share_with_token_tables']:.2f} % if the token tables are counted",
        f"Frozen forward pass: {si(known['frozen_forward_flops_per_window'])} FLOPs per window, in no group's row",
        f"Weights: {known['weights']} (sha256 {str(known['weights_sha256'])[:12]})",
    ]


def _text(model: Model, facts: Mapping[str, Any], target: str) -> str:
    """The description as text: a table of groups, and the total G."""
    layout, shape, sums = model.layout, model.backbone.shape, facts["subtotals"]
    sensors = ", ".join(f"{name} ({channels} channels)" for name, channels in shape.channels)
    rows = [
        [
            g.id,
            g.role,
            _shapes(g),
            f"{g.numel:,}",
            f"{100 * g.numel / layout.numel:.1f}",
            si(of["flops_per_window"]),
            str(of["clients"]),
        ]
        for g, of in zip(layout, facts["groups"], strict=True)
    ]
    flops = sum(of["flops_per_window"] for of in facts["groups"])
    rows.append(["total", "", "", f"{layout.numel:,}", "100.0", si(flops), ""])
    head = ["group", "role", "shape", "values", "%", "FLOPs", "clients"]
    roles = dict.fromkeys(g.role for g in layout if g.role in _ROLES)
    warnings = (*model.backbone.warnings, *uncalibrated(model.config))
    encoders = ", ".join(f"{m} {n:,}" for m, n in sums["encoders"].items())
    sentences = [
        _counts(layout),
        *([f"Values of an encoder's groups: {encoders}"] if encoders else []),
        f"A client with all sensors trains {sums['full_client']:,} values, "
        f"{sums['full_client_without_last_layer']:,} without the last layer of the head",
        f"Values have 4 bytes: {4 * layout.numel / _MIB:.3f} MiB in all.",
        f"Roles: {'; '.join(f'{role}: {_ROLES[role]}' for role in roles)}.",
        "%: of all values. FLOPs: forward and backward of the group's own layer for one window. Clients: how many can "
        "train it.",
        *(["x LoRA r=8: so many factors of adapters of rank 8."] if any(g.lora for g in layout) else []),
        *([*_frozen_text(facts["frozen"]), *(f"NOTE: {w}" for w in warnings)] if facts["frozen"] else []),
    ]
    return "\n".join(
        [
            filled(f"Backbone {backbone_name(model.config.backbone)} of {target}: {sensors}"),
            f"Windows of {shape.window} samples, {shape.num_classes} classes",
            "",
            "\n\n".join(tables(head, rows, WIDTH, left=3)),
            "",
            *(filled(sentence) for sentence in sentences),
        ]
    )


def _counts(layout: GroupLayout) -> str:
    """Number of groups, and of which role."""
    names = {"fusion_a": "fusion block", "encoder": "encoder layer", "head": "head layer"}
    blocks, encoders, heads = (counted(sum(g.role == role for g in layout), noun) for role, noun in names.items())
    return f"G = {len(layout)} groups = {blocks} + 1 shared fusion part + {encoders} + {heads}"


def _shapes(group: ParamGroup) -> str:
    """The shapes of a group's tensors in words."""
    if len(group.tensors) <= 2:
        return " + ".join("x".join(map(str, t.shape)) for t in group.tensors)
    return f"{len(group.tensors)} {f'x LoRA r={group.tensors[0].shape[0]}' if group.lora else 'tensors'}"


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class DataDescription(Printed):
    """A data set's files, signal, windows, value ranges and activities, and which clients have which sensors.

    Attributes:
        text: what `relief-ray data describe` prints.
        facts: the same for programs, as with `--json`.
        config: the settings that cut the windows.
    """

    text: str
    facts: DataFacts
    config: DataConfig


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
        return data_description(name, [*settings_of(set or {})])


def data_description(name: str, settings: Sequence[Setting]) -> DataDescription:
    """Return the description of a data set, or of a run's data.

    Raises:
        UserError: see ``describe_data``.
    """
    is_run = name in RUNS or Path(name).suffix in (".yaml", ".yml", ".json") or (Path(name) / RUN_FILE).exists()
    if is_run and name not in DATASETS:
        config = target_config(name, settings, ("data",)).data
    else:
        config = data_config(name, settings)
    facts = data_facts(open_dataset(config), config)
    return DataDescription(text=_data_text(facts, config), facts=facts, config=config)


def data_config(name: str, settings: Sequence[Setting]) -> DataConfig:
    """The data configuration of a dataset, by default but for ``settings`` (``data.window_s=2.56``).

    Raises:
        UserError: an unknown dataset, an impossible value, or a setting of another section.
    """
    get_spec(name)
    values = assign({"data": {"name": name}}, settings)
    if other := sorted(set(values) - {"data"}):
        raise UserError(f"{Setting(other[0], ...)}: expected a key of data, e.g. {Setting('data.window_s', 2.56)}")
    try:
        return DataConfig.model_validate(values["data"])
    except ValidationError as error:
        raise UserError("\n".join(explain(error))) from error


def _data_text(description: DataFacts, config: DataConfig) -> str:
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
            *(line for quality in quality_tables(description) for line in [quality.caption, quality.text(), ""]),
            *owners_of(get_spec(description["name"]), len(description["coverage"]["clients"])),
        ]
    )


def quality_tables(description: DataFacts) -> tuple[Table, Table]:
    """Rows, bouts and windows of each person, and the figures of each person's sensors."""
    people = "Each person: rows in bouts, windows, those of tests, share with two activities"
    sensors = "Each person's sensors: shares of the worst channel, dead ones, relative level"
    usual = {
        name: [r["level"] for r in description["quality"] if r["sensor"] == name] for name in description["ranges"]
    }
    persons = [
        {
            **{key: row[key] for key in ("subject", "rows", "bouts")},
            "bout_s": "-".join(dict.fromkeys(f"{row[key]:.3g}" for key in ("shortest_s", "longest_s"))),
            **{key: row[key] for key in ("classes", "windows", "tested", "mixed", "left_out")},
        }
        for row in description["people"]
    ]
    rows = [
        {
            **{key: row[key] for key in ("subject", "sensor", "filled", "longest_gap_s", "outside", "code_rows")},
            "dead": len(row["still"]),
            "level": row["level"] / (np.median(usual[row["sensor"]]) or 1.0),
        }
        for row in description["quality"]
    ]
    return _as_table("people", people, persons), _as_table("sensors", sensors, rows)


def _as_table(slug: str, caption: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    texts = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
    return word_table([key.replace("_", " ") for key in rows[0]], texts, slug, caption)


def owners_of(spec: DatasetSpec, num_clients: int | None = None) -> list[str]:
    """Lines on the sensors of ``fleet.types``: which clients have which sensors, and on people who lack some."""
    lacking = [
        f"  subject {s}: lacks {listed(spec.lacks[s])}, has {listed(spec.sensors_of(s))}"
        for s in spec.subjects
        if spec.lacks.get(s)
    ]
    title = "Whatever its device has, the client of a person who lacks a sensor is without it"
    return [
        *owners_lines(spec.names, num_clients or len(spec.subjects), spec.name),
        *([title, *lacking] if lacking else []),
    ]


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
        changed = [
            f"data.{k}={value_text(v)}"
            for k, v in of_preset.items()
            if v != getattr(config, k) and not config.spec().cut
        ]
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


def _activity_table(description: DataFacts) -> str:
    """Seconds and windows per class."""
    seconds: Mapping[str, Mapping[str, float]] = description["activity_s"]
    train = dict(zip(description["coverage"]["classes"], description["coverage"]["train"], strict=True))
    rows = []
    for name in train:
        lacking = [s for s in seconds if not seconds[s][name]]
        total_s = sum(s[name] for s in seconds.values())
        rows.append([name, ", ".join(lacking) or "-", f"{total_s:.0f}", str(train[name])])
    return table(["activity", "missing in subjects", "seconds", "windows"], rows, left=2)
