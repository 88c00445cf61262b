"""Parameter groups of the model that an experiment trains: known from the dataset's description, without its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from relief_ray.config.experiment import ExperimentConfig
from relief_ray.core.groups import GroupLayout, ParamGroup
from relief_ray.core.messages import Fleet
from relief_ray.data import num_clients
from relief_ray.devices.accounting import Counter
from relief_ray.experiment.setup import build_backbone, choose_engine, configured_fleet, count, uncalibrated
from relief_ray.models.backbone import Backbone, InputShape
from relief_ray.models.registry import backbone_name
from relief_ray.studies.keywords import check_words, in_python, refuse_unknown_keywords
from relief_ray.studies.request import Target, config_of
from relief_ray.studies.single import as_frame
from relief_ray.support.errors import counted
from relief_ray.support.text import WIDTH, Printed, filled, si, tables

if TYPE_CHECKING:
    from pandas import DataFrame
    from typing_extensions import Unpack

    from relief_ray.studies.call import Settings

_MIB = 2**20
_ROLES = {
    "fusion_a": "a sensor's block of the fusion",
    "fusion_b": "the part of the fusion that all share",
    "encoder": "a layer of a sensor's encoder",
    "head": "the classifier, shared by all",
}


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Description(Printed):
    """Groups of a model; printed, a table of them.

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

    def __str__(self) -> str:
        """Return the text."""
        return self.text


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
        refuse_unknown_keywords(settings, "here")
        name = str(experiment) if isinstance(experiment, str | Path) else "a configuration"
        return description(config_of(experiment, set or {}, settings), name)


def description(config: ExperimentConfig, name: str) -> Description:
    """Return the groups of a configuration's model; ``name``: what the text calls the configuration."""
    model = _modelled(config)
    return Description(text=_text(model, name), facts=_facts(model))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Model:
    """A run's model as far as it is known without data: everything comes from the dataset's description."""

    config: ExperimentConfig
    fleet: Fleet
    backbone: Backbone
    counter: Counter
    is_pooled: bool
    warnings: tuple[str, ...]

    @property
    def layout(self) -> GroupLayout:
        """The groups, those that the strategy added among them."""
        return self.backbone.layout


def _modelled(config: ExperimentConfig) -> _Model:
    """The model of a configuration, without its data."""
    spec, engine, strategy = config.data.spec(), choose_engine(config), config.strategy.build()
    fleet, _ = configured_fleet(config, num_clients(spec, config.data))
    shape = InputShape(channels=tuple(spec.modalities), window=spec.window, num_classes=len(spec.classes))
    backbone = build_backbone(config, shape, engine)
    if additions := strategy.adapt(backbone.layout, fleet):
        backbone = build_backbone(config, shape, engine, additions)
    return _Model(
        config=config,
        fleet=fleet,
        backbone=backbone,
        counter=count(backbone, config),
        is_pooled=strategy.pooled,
        warnings=(*backbone.warnings, *uncalibrated(config)),
    )


def _flops(model: _Model, group: ParamGroup) -> float:
    """Forward and backward FLOPs of a group per window."""
    return model.counter.costs.group_flops(group.id)


def _owners(model: _Model, group: ParamGroup) -> int:
    """Number of clients that can train the group."""
    if model.is_pooled:
        return 1
    return len(model.fleet) if group.modality is None else len(model.fleet.cohort(group.modality))


def _subtotals(layout: GroupLayout) -> dict[str, object]:
    """Values of each encoder and of a client with all sensors, with and without the head's last layer."""
    backbone_groups = [g for g in layout if g.role in _ROLES]
    encoders: dict[str, int] = {}
    for g in backbone_groups:
        if g.role == "encoder" and g.modality is not None:
            encoders[g.modality] = encoders.get(g.modality, 0) + g.numel
    whole, last = sum(g.numel for g in backbone_groups), [g.numel for g in backbone_groups if g.role == "head"][-1:]
    return {"encoders": encoders, "full_client": whole, "full_client_without_last_layer": whole - sum(last)}


def _subtotals_text(layout: GroupLayout) -> list[str]:
    """Subtotals as text."""
    known = _subtotals(layout)
    encoders = known["encoders"]
    assert isinstance(encoders, dict)
    listed = ", ".join(f"{m} {n:,}" for m, n in encoders.items())
    return [
        f"Values of an encoder's groups: {listed}",
        f"A client with all sensors trains {known['full_client']:,} values, "
        f"{known['full_client_without_last_layer']:,} without the last layer of the head",
    ]


def _facts(model: _Model) -> dict[str, object]:
    """The description as JSON."""
    groups = [
        {
            "group": g.id,
            "role": g.role,
            "modality": g.modality,
            "values": g.numel,
            "bytes": 4 * g.numel,
            "flops_per_window": _flops(model, g),
            "clients": _owners(model, g),
            "tensors": {t.name: list(t.shape) for t in g.tensors},
        }
        for g in model.layout
    ]
    return {
        "backbone": model.config.backbone.model_dump(mode="json"),
        "groups": groups,
        "values": model.layout.numel,
        "subtotals": _subtotals(model.layout),
        "frozen": {**model.backbone.facts, **_frozen_shares(model)},
    }


def _frozen_shares(model: _Model) -> dict[str, float]:
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
        "frozen_forward_flops_per_window": model.counter.costs.frozen_forward_flops(),
    }


def _frozen_text(model: _Model) -> list[str]:
    """Sentence on the values that are not trained."""
    if not model.backbone.facts:
        return []
    known, shares = model.backbone.facts, _frozen_shares(model)
    number, whole = known["num_encoders"], int(known["encoder_values"]) + int(known["token_table_values"])
    encoder, matrix, table = (
        f"{int(known[k]):,}" for k in ("encoder_values", "frozen_fusion_values", "token_table_values")
    )
    return [
        "",
        f"Frozen: {number} x {encoder} encoder values (held once), {matrix} of the fusion matrix",
        f"Unused token tables, never loaded: {number} x {table} values; an encoder with its own has {whole:,}",
        f"Trained: {100 * shares['trained_share']:.2f} % of encoders and trained values,"
        f" {100 * shares['trained_share_with_token_tables']:.2f} % if the token tables are counted",
        f"Frozen forward pass: {si(shares['frozen_forward_flops_per_window'])} FLOPs per window, in no group's row",
        f"Weights: {known['weights']} (sha256 {str(known['weights_sha256'])[:12]})",
        *(f"NOTE: {warning}" for warning in model.warnings),
    ]


def _text(model: _Model, target: str) -> str:
    """The description as text: a table of groups, and the total G."""
    layout, shape = model.layout, model.backbone.shape
    sensors = ", ".join(f"{name} ({channels} channels)" for name, channels in shape.channels)
    rows = [_row(model, g) for g in layout]
    rows.append(["total", "", "", f"{layout.numel:,}", "100.0", si(sum(_flops(model, g) for g in layout)), ""])
    head = ["group", "role", "shape", "values", "%", "FLOPs", "clients"]
    roles = dict.fromkeys(g.role for g in layout if g.role in _ROLES)
    sentences = [
        _counts(layout),
        *_subtotals_text(layout),
        f"Values have 4 bytes: {4 * layout.numel / _MIB:.3f} MiB in all.",
        f"Roles: {'; '.join(f'{role}: {_ROLES[role]}' for role in roles)}.",
        "%: of all values. FLOPs: forward and backward of the group's own layer for one window. Clients: how many can "
        "train it.",
        *(["x LoRA r=8: so many factors of adapters of rank 8."] if any(g.lora for g in layout) else []),
        *_frozen_text(model),
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


def _row(model: _Model, group: ParamGroup) -> list[str]:
    """Table row of one group."""
    shapes = " + ".join("x".join(map(str, t.shape)) for t in group.tensors)
    if len(group.tensors) > 2:
        shapes = (
            f"{len(group.tensors)} x LoRA r={group.tensors[0].shape[0]}"
            if group.lora
            else f"{len(group.tensors)} tensors"
        )
    share, spent = 100 * group.numel / model.layout.numel, si(_flops(model, group))
    return [group.id, group.role, shapes, f"{group.numel:,}", f"{share:.1f}", spent, str(_owners(model, group))]
