"""`relief-ray model describe` and `export`: a backbone's parameter groups; a run's model for use elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from actors.commands.next_steps import refuse_several
from actors.commands.output import MIB, si
from relief_ray.config import ExperimentConfig
from relief_ray.data import num_clients
from relief_ray.devices.planner import Counter
from relief_ray.errors import counted
from relief_ray.experiment.clocks import uncalibrated
from relief_ray.experiment.export import export_model
from relief_ray.experiment.setup import build_backbone, choose_engine, configured_fleet, count
from relief_ray.groups import GroupLayout, ParamGroup
from relief_ray.messages import Fleet
from relief_ray.models.backbone import Backbone, InputShape
from relief_ray.models.registry import backbone_name
from relief_ray.studies.planning import target_config
from relief_ray.text import table, typed


def export(run: Path, out: Path, round_: int | None, with_encoder: bool, as_json: bool) -> None:
    """Export a run's model to a folder and print what is in it."""
    refuse_several(run, "model export", f"--out {typed(out)}")
    facts = export_model(run, out, round_, with_encoder=with_encoder)
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    event = {"event": "exported", "folder": str(out), "files": files, **facts}
    print(json.dumps(event) if as_json else _export_text(out, files, facts))


def _export_text(out: Path, files: list[str], facts: dict[str, JsonValue]) -> str:
    """Report on an export: its files and notes on the model."""
    f1 = facts["f1"]
    seen = f"F1 {100 * f1:.1f} %" if isinstance(f1, float) else "not evaluated in that round"
    warnings = facts["warnings"]
    notes = [str(w) for w in warnings] if isinstance(warnings, list) else []
    notes += [f"the run is {facts['status']}, not done"] if facts["status"] != "done" else []
    notes += [f"computed by another program: {facts['other_program']}"] if facts["other_program"] else []
    return "\n".join(
        [
            f"{out}: {facts['strategy']} on {facts['dataset']} after round {facts['round']}, {seen}",
            *(f"  {name}" for name in files),
            f"{counted(len(files), 'file')}; README.md has code that loads them",
            *(f"NOTE: {note}" for note in notes),
        ]
    )


_ROLES = {
    "fusion_a": "fusion block of a sensor",
    "fusion_b": "shared by all",
    "encoder": "encoder layer of a sensor",
    "head": "classifier, shared by all",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
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


def describe(target: str, settings: Sequence[str], as_json: bool) -> None:
    """Print the groups of the backbone that a preset, a file or a run trains."""
    if (folder := Path(target)).is_dir():
        refuse_several(folder, "model describe")
    model = described(target_config(target, settings))
    print(json.dumps(facts(model), indent=1) if as_json else text(model, target))


def described(config: ExperimentConfig) -> Described:
    """The model of a configuration, without its data."""
    spec, engine, strategy = config.data.spec(), choose_engine(config), config.strategy.build()
    fleet, _ = configured_fleet(config, num_clients(spec, config.data))
    shape = InputShape(channels=tuple(spec.modalities), window=spec.window, num_classes=len(spec.classes))
    backbone = build_backbone(config, shape, engine)
    if additions := strategy.adapt(backbone.layout, fleet):
        backbone = build_backbone(config, shape, engine, additions)
    return Described(
        config=config,
        fleet=fleet,
        backbone=backbone,
        counter=count(backbone, config),
        is_pooled=strategy.pooled,
        warnings=(*backbone.warnings, *uncalibrated(config)),
    )


def flops(model: Described, group: ParamGroup) -> float:
    """Forward and backward FLOPs of a group per window."""
    return model.counter.costs.group_flops(group.id)


def owners(model: Described, group: ParamGroup) -> int:
    """Number of clients that can train the group."""
    if model.is_pooled:
        return 1
    return len(model.fleet) if group.modality is None else len(model.fleet.cohort(group.modality))


def subtotals(layout: GroupLayout) -> dict[str, object]:
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
    known = subtotals(layout)
    encoders = known["encoders"]
    assert isinstance(encoders, dict)
    listed = ", ".join(f"{m} {n:,}" for m, n in encoders.items())
    return [
        f"Values of an encoder's groups: {listed}",
        f"A client with all sensors trains {known['full_client']:,} values,"
        f" {known['full_client_without_last_layer']:,} without the last layer of the head",
    ]


def facts(model: Described) -> dict[str, object]:
    """The description as JSON."""
    groups = [
        {
            "group": g.id,
            "role": g.role,
            "modality": g.modality,
            "values": g.numel,
            "bytes": 4 * g.numel,
            "flops_per_window": flops(model, g),
            "clients": owners(model, g),
            "tensors": {t.name: list(t.shape) for t in g.tensors},
        }
        for g in model.layout
    ]
    return {
        "backbone": model.config.backbone.model_dump(mode="json"),
        "groups": groups,
        "values": model.layout.numel,
        "subtotals": subtotals(model.layout),
        "frozen": {**model.backbone.facts, **_frozen_shares(model)},
    }


def _frozen_shares(model: Described) -> dict[str, float]:
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


def _frozen_text(model: Described) -> list[str]:
    """Sentence on the values that are not trained."""
    if not model.backbone.facts:
        return []
    known, shares = model.backbone.facts, _frozen_shares(model)
    number, whole = known["num_encoders"], int(known["encoder_values"]) + int(known["token_table_values"])
    encoder, matrix, tables = (
        f"{int(known[k]):,}" for k in ("encoder_values", "frozen_fusion_values", "token_table_values")
    )
    return [
        "",
        f"Frozen: {number} x {encoder} encoder values (held once), {matrix} of the fusion matrix",
        f"Unused token tables, never loaded: {number} x {tables} values; an encoder with its own has {whole:,}",
        f"Trained: {100 * shares['trained_share']:.2f} % of encoders and trained values,"
        f" {100 * shares['trained_share_with_token_tables']:.2f} % if the token tables are counted",
        f"Frozen forward pass: {si(shares['frozen_forward_flops_per_window'])} FLOPs per window, in no group's row",
        f"Weights: {known['weights']} (sha256 {str(known['weights_sha256'])[:12]})",
        *(f"NOTE: {warning}" for warning in model.warnings),
    ]


def text(model: Described, target: str) -> str:
    """The description as text: a table of groups, and the total G."""
    layout, shape = model.layout, model.backbone.shape
    sensors = ", ".join(f"{name} ({channels} channels)" for name, channels in shape.channels)
    rows = [row(model, g) for g in layout]
    total = sum(flops(model, g) for g in layout)
    rows.append(["total", "", "", f"{layout.numel:,}", f"{4 * layout.numel / MIB:.3f}", "100.0", si(total), ""])
    head = ["group", "role", "shape", "values", "MiB", "%", "FLOPs/window", "clients"]
    encoders = sum(g.role == "encoder" for g in layout)
    heads = sum(g.role == "head" for g in layout)
    blocks = sum(g.role == "fusion_a" for g in layout)
    return "\n".join(
        [
            f"Backbone {backbone_name(model.config.backbone)} of {target}: {sensors}",
            f"Windows of {shape.window} samples, {shape.num_classes} classes",
            "",
            table(head, rows, left=3),
            "",
            f"G = {len(layout)} groups = {counted(blocks, 'fusion block')} + 1 shared fusion part"
            f" + {counted(encoders, 'encoder layer')} + {counted(heads, 'head layer')}",
            *_subtotals_text(layout),
            "FLOPs: forward and backward of the group's own layer for one window. Clients: how many can train it.",
            *_frozen_text(model),
        ]
    )


def row(model: Described, group: ParamGroup) -> list[str]:
    """Table row of one group."""
    shapes = " + ".join("x".join(map(str, t.shape)) for t in group.tensors)
    if len(group.tensors) > 2:
        rank = f" LoRA factors, r = {group.tensors[0].shape[0]}" if group.lora else " tensors"
        shapes = f"{len(group.tensors)}{rank}"
    share = 100 * group.numel / model.layout.numel
    mib, spent = 4 * group.numel / MIB, si(flops(model, group))
    role = _ROLES.get(group.role, group.role)
    return [group.id, role, shapes, f"{group.numel:,}", f"{mib:.3f}", f"{share:.1f}", spent, str(owners(model, group))]
