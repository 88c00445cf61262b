"""Backbones as blocks from input to output with early exits behind them; shared by depth-wise methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from relief_ray.core.extra_modules import Classifier
from relief_ray.core.groups import GroupId, GroupLayout, ParamGroup
from relief_ray.core.messages import ClientInfo, EvalPlan, EvalTarget, Fleet, Json, Receipt, ServerState, StageTimes
from relief_ray.strategies.common import fact_table, own_target, seconds_per_window
from relief_ray.support.errors import UserError

EXIT = "exit"
# Fact of the server's state: the output that each device type runs to, by type.
OUTPUTS = "outputs"


def num_layers(layout: GroupLayout) -> int:
    """Number of encoder layers ``L`` of the deepest modality."""
    return max((g.layer or 0 for g in layout if g.role == "encoder"), default=0)


def block(layout: GroupLayout, group: ParamGroup) -> int:
    """Block of a group: encoder layer l of every modality is l, the whole fusion L + 1, head layer i L + 1 + i."""
    if group.role == "encoder":
        return group.layer or 1
    if group.role == "head":
        return num_layers(layout) + 1 + (group.layer or 1)
    return num_layers(layout) + 1


def own_groups(layout: GroupLayout) -> tuple[ParamGroup, ...]:
    """Groups of the backbone, without exits."""
    return tuple(g for g in layout if g.role != EXIT)


def num_blocks(layout: GroupLayout) -> int:
    """Number of blocks ``B``."""
    return max(block(layout, g) for g in own_groups(layout))


def exits(layout: GroupLayout, depths: Iterable[int]) -> tuple[Classifier, ...]:
    """Linear exits on the outputs of these blocks, all modalities side by side."""
    read = [(g.id, block(layout, g)) for g in own_groups(layout) if g.role != "fusion_a"]
    return tuple(
        Classifier(id=f"{EXIT}.{depth}", after=tuple(j for j, at in read if at == depth), layer=depth)
        for depth in depths
    )


def output_of(layout: GroupLayout, depth: int) -> GroupId | None:
    """Exit behind block ``depth``; None (the backbone's own head) where there is none."""
    name = f"{EXIT}.{depth}"
    return name if name in layout else None


def last_layers(layout: GroupLayout, num_depths: int) -> tuple[int, ...]:
    """Last encoder layer of each depth class: at most ``num_depths`` classes, evenly apart, the last one at L."""
    layers = num_layers(layout)
    num = max(1, min(num_depths, layers))
    return tuple(-(-k * layers // num) for k in range(1, num + 1))


def check_depths(depth_by_type: Iterable[tuple[str, int]], deepest: int) -> None:
    """Refuse a depth class that does not exist.

    Raises:
        UserError: a device type's class lies beyond ``deepest``.
    """
    if beyond := {device: depth for device, depth in depth_by_type if depth > deepest}:
        raise UserError(
            f"strategy.depth_by_type: found {beyond}, expected 1 to {deepest}: at most num_depths classes, and "
            f"one per encoder layer; take {deepest} for the whole model"
        )


def level(group: ParamGroup, lasts: tuple[int, ...]) -> int:
    """Shallowest depth class (from 1) that holds ``group``: by layer; fusion and head belong to the last."""
    if group.role not in ("encoder", EXIT):
        return len(lasts)
    return next(k for k, last in enumerate(lasts, 1) if last >= (group.layer or 1))


def outputs(layout: GroupLayout, lasts: tuple[int, ...], depth: int) -> tuple[GroupId | None, ...]:
    """Exits of depth class ``depth``, shallow first; None is the backbone's own head."""
    return tuple(output_of(layout, last) for last in lasts[:depth])


def depths_by_speed(fleet: Fleet, deepest: int, times: Callable[[ClientInfo, int], StageTimes]) -> dict[str, int]:
    """Depth class by device type: the fastest takes the deepest, the slowest the first.

    Others take the deepest at which none of them is slower than the slowest type's last client at the first. Speed is
    computing time per window at full depth.
    """
    speed = seconds_per_window({c: times(c, deepest) for c in fleet.clients})
    fastest, slowest = (choose(speed, key=speed.__getitem__) for choose in (min, max))

    def slowest_s(device: str, depth: int) -> float:
        return max(times(c, depth).busy_s for c in fleet.clients if c.device == device)

    limit_s = slowest_s(slowest, 1)
    others = {t: max((k for k in range(1, deepest + 1) if slowest_s(t, k) <= limit_s), default=1) for t in speed}
    return {**others, slowest: 1, fastest: deepest}


def with_outputs(facts: Mapping[str, Json], receipts: Iterable[Receipt], fleet: Fleet) -> dict[str, Json]:
    """Facts with the output of every device type's latest task, for ``through_own_outputs``."""
    known = facts.get(OUTPUTS)
    seen: dict[str, Json] = {fleet[r.assignment.client].device: r.assignment.output for r in receipts}
    return {**facts, OUTPUTS: {**(known if isinstance(known, dict) else {}), **seen}}


def through_own_outputs(state: ServerState, fleet: Fleet) -> EvalPlan:
    """Evaluate the global model as each client runs it: up to its device type's output, with the client's sensors.

    A device that trains and runs a prefix of the model has no use for what lies behind its exit. The canonical model is
    the whole one, through the backbone's own output; so is that of a device type without a task so far. For any
    method with one global model whose aggregation keeps ``with_outputs`` in the state's facts.
    """
    outputs = fact_table(state, OUTPUTS, str)
    targets = tuple(replace(own_target(c), output=outputs.get(c.device)) for c in fleet.clients)
    return EvalPlan(canonical=EvalTarget(label="global"), clients=targets, personal=False)
