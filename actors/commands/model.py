"""`relief-ray model describe`: the parameter groups, which are the unit of training, aggregation and sending."""

from __future__ import annotations

import json
from collections.abc import Sequence

from actors.commands.open import open_target
from actors.commands.tables import MIB, counted, si, table
from relief_ray.groups import ParamGroup
from relief_ray.models.registry import name_of
from relief_ray.setup import Setup

ROLES = {
    "fusion_a": "fusion block of a sensor",
    "fusion_b": "shared by all",
    "encoder": "encoder layer of a sensor",
    "head": "classifier, shared by all",
}


def describe(target: str, settings: Sequence[str], as_json: bool) -> None:
    """Prints the groups of the backbone that a preset, a file or a run trains."""
    setup = open_target(target, settings)
    print(json.dumps(facts(setup), indent=1) if as_json else text(setup, target))


def flops(setup: Setup, group: ParamGroup) -> float:
    """Forward and backward FLOPs of a group per window."""
    return setup.accountant.counter.costs.group_flops(group.id)


def owners(setup: Setup, group: ParamGroup) -> int:
    """How many clients can train the group."""
    return len(setup.fleet) if group.modality is None else len(setup.fleet.cohort(group.modality))


def facts(setup: Setup) -> dict[str, object]:
    """The same as JSON."""
    groups = [
        {
            "group": g.id,
            "role": g.role,
            "modality": g.modality,
            "values": g.numel,
            "bytes": 4 * g.numel,
            "flops_per_window": flops(setup, g),
            "clients": owners(setup, g),
            "tensors": {t.name: list(t.shape) for t in g.tensors},
        }
        for g in setup.layout
    ]
    return {
        "backbone": setup.config.backbone.model_dump(mode="json"),
        "groups": groups,
        "values": setup.layout.numel,
        "frozen": {**setup.frozen, **frozen_shares(setup)},
    }


def frozen_shares(setup: Setup) -> dict[str, float]:
    """How much of encoders and trained values is trained, with and without the encoders' unused token tables."""
    if not setup.frozen:
        return {}
    each, table, number = (int(setup.frozen[k]) for k in ("encoder_values", "token_table_values", "num_encoders"))
    trained = setup.layout.numel
    return {
        "trained_share": trained / (number * each + trained),
        "trained_share_with_token_tables": trained / (number * (each + table) + trained),
        "frozen_forward_flops_per_window": setup.accountant.counter.costs.frozen_forward_flops(),
    }


def frozen_text(setup: Setup) -> list[str]:
    """What is not trained, in words."""
    if not setup.frozen:
        return []
    known, shares = setup.frozen, frozen_shares(setup)
    number = known["num_encoders"]
    encoder, matrix, tables = (
        f"{int(known[k]):,}" for k in ("encoder_values", "frozen_fusion_values", "token_table_values")
    )
    return [
        "",
        f"Frozen: {number} x {encoder} encoder values (held once), {matrix} of the fusion matrix",
        f"Unused token tables, never loaded: {number} x {tables} values",
        f"Trained: {100 * shares['trained_share']:.2f} % of encoders and trained values,"
        f" {100 * shares['trained_share_with_token_tables']:.2f} % if the token tables are counted",
        f"Frozen forward pass: {si(shares['frozen_forward_flops_per_window'])} FLOPs per window, in no group's row",
        f"Weights: {known['weights']} (sha256 {str(known['weights_sha256'])[:12]})",
        *(f"NOTE: {warning}" for warning in setup.warnings),
    ]


def text(setup: Setup, target: str) -> str:
    """The groups as a table, and G put together."""
    layout, shape = setup.layout, setup.job.build().shape
    sensors = ", ".join(f"{name} ({channels} channels)" for name, channels in shape.channels)
    rows = [row(setup, g) for g in layout]
    total = sum(flops(setup, g) for g in layout)
    rows.append(["total", "", "", f"{layout.numel:,}", f"{4 * layout.numel / MIB:.3f}", "100.0", si(total), ""])
    head = ["group", "role", "shape", "values", "MiB", "%", "FLOPs/window", "clients"]
    encoders = sum(g.role == "encoder" for g in layout)
    heads = sum(g.role == "head" for g in layout)
    blocks = sum(g.role == "fusion_a" for g in layout)
    return "\n".join(
        [
            f"Backbone {name_of(setup.config.backbone)} of {target}: {sensors}",
            f"Windows of {shape.window} samples, {shape.num_classes} classes",
            "",
            table(head, rows, left=3),
            "",
            f"G = {len(layout)} groups = {counted(blocks, 'fusion block')} + 1 shared fusion part"
            f" + {counted(encoders, 'encoder layer')} + {counted(heads, 'head layer')}",
            "FLOPs: forward and backward of the group's own layer for one window. Clients: how many can train it.",
            *frozen_text(setup),
        ]
    )


def row(setup: Setup, group: ParamGroup) -> list[str]:
    """One group."""
    shapes = " + ".join("x".join(map(str, t.shape)) for t in group.tensors)
    if len(group.tensors) > 2:
        shapes = f"{len(group.tensors)} LoRA factors, r = {group.tensors[0].shape[0]}"
    share = 100 * group.numel / setup.layout.numel
    mib, spent = 4 * group.numel / MIB, si(flops(setup, group))
    role = ROLES.get(group.role, group.role)
    return [group.id, role, shapes, f"{group.numel:,}", f"{mib:.3f}", f"{share:.1f}", spent, str(owners(setup, group))]
