"""Weighted sums of updates, and Eqs. (3) and (4).

The reduction tree depends on the participants only, never on hosts or arrival: blocks of consecutive clients are summed
in float64, blocks are merged in order. Serial and Ray runs therefore give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from relief_ray.groups import GroupId, GroupLayout, ParamGroup, Params, Selection
from relief_ray.messages import (
    Assignment,
    ClientId,
    ClientInfo,
    ClientState,
    Fleet,
    GroupSum,
    Reduced,
    Update,
    WeightedSum,
)

Sums = dict[str, dict[GroupId, GroupSum]]
Total = Callable[[ParamGroup, GroupSum], float]
FEW_CLIENTS, MAX_BLOCK = 8, 4


def num_in_block(num_clients: int) -> int:
    """Clients per block: one each up to eight (a device's load is then dealt out freely), at most four beyond."""
    return max(1, min(MAX_BLOCK, -(-num_clients // FEW_CLIENTS)))


def blocks(tasks: Sequence[Assignment]) -> list[tuple[Assignment, ...]]:
    """Consecutive clients' tasks in client order: the leaves of the reduction tree."""
    ordered = sorted(tasks, key=lambda t: t.client)
    size = num_in_block(len(ordered))
    return [tuple(ordered[i : i + size]) for i in range(0, len(ordered), size)]


def sum_block(updates: Iterable[Update], reduction: WeightedSum, layout: GroupLayout, fleet: Fleet) -> Sums:
    """Float64 sums of a block's updates, one after the other in client order."""
    sums: Sums = {}
    for update in updates:
        sums = merge(sums, _leaf(update, reduction, layout, fleet))
    return sums


def _leaf(update: Update, reduction: WeightedSum, layout: GroupLayout, fleet: Fleet) -> Sums:
    task = update.receipt.assignment
    leaf: dict[GroupId, GroupSum] = {}
    for j, delta in update.delta.items():
        weight = float(reduction.weight(layout[j], fleet[task.client], task))
        exact = delta.to(torch.float64)
        leaf[j] = GroupSum(
            weight=weight,
            weighted=exact if weight == 1.0 else exact * weight,
            plain=exact,
            sq_norm=float(exact.dot(exact)),
            members=(task.client,),
        )
    return {reduction.bucket(task): leaf}


def merge(first: Sums, second: Sums) -> Sums:
    """Adds two sums whose members do not overlap; ``first`` comes first in client order."""
    merged = {bucket: dict(groups) for bucket, groups in first.items()}
    for bucket, groups in second.items():
        into = merged.setdefault(bucket, {})
        for j, other in groups.items():
            into[j] = _add(j, into[j], other) if j in into else other
    return merged


def _add(group: GroupId, a: GroupSum, b: GroupSum) -> GroupSum:
    assert not set(a.members) & set(b.members), f"group {group!r}: a client counts twice among {a.members + b.members}"
    if a.plain.shape != b.plain.shape:
        raise ValueError(
            f"group {group!r}: clients {a.members} and {b.members} uploaded {len(a.plain)} and {len(b.plain)} values; "
            "a weighted sum needs the same part from all (use Collect where parts differ)"
        )
    plain = a.plain + b.plain
    same = a.weighted is a.plain and b.weighted is b.plain
    return GroupSum(
        weight=a.weight + b.weight,
        weighted=plain if same else a.weighted + b.weighted,
        plain=plain,
        sq_norm=a.sq_norm + b.sq_norm,
        members=a.members + b.members,
    )


def merge_blocks(parts: Iterable[Sums]) -> Sums:
    """Merges all blocks in block order."""
    total: Sums = {}
    for part in parts:
        total = merge(total, part)
    return total


def uniform(group: ParamGroup, client: ClientInfo, assignment: Assignment) -> float:
    """Every client counts the same (the default; Lemma 1's 1/N)."""
    return 1.0


def by_samples(group: ParamGroup, client: ClientInfo, assignment: Assignment) -> float:
    """Clients count by their number of training windows (McMahan et al.)."""
    return float(client.num_windows)


def one_bucket(assignment: Assignment) -> str:
    """Everything goes into the one global model."""
    return "global"


def mean_step(sums: Mapping[GroupId, GroupSum], total: Total, layout: GroupLayout) -> dict[GroupId, Tensor]:
    """``sum_n w_n Delta_n / total`` per group, in float64; ``total`` decides over whom the weights are normalised."""
    return {j: part.weighted / total(layout[j], part) for j, part in sums.items()}


def over_members(group: ParamGroup, part: GroupSum) -> float:
    """Normalises over the clients that trained the group: Eq. (3)'s active cohort, Eq. (4)'s ``w_n``."""
    return part.weight


def apply_step(theta: Params, step: Mapping[GroupId, Tensor]) -> dict[GroupId, Tensor]:
    """``theta_j + step_j`` added in float64; groups without a step stay bit for bit."""
    return {
        j: (value.to(torch.float64) + step[j]).to(torch.float32) if j in step else value for j, value in theta.items()
    }


def apply_parts(
    theta: Params, step: Mapping[GroupId, Tensor], selection: Selection, layout: GroupLayout
) -> dict[GroupId, Tensor]:
    """``apply_step`` where only a part of each group was sent: everything outside ``selection`` stays bit for bit."""
    after = dict(theta)
    for j, moved in step.items():
        index = layout.indices(j, selection[j])
        after[j] = theta[j].clone()
        after[j][index] = (theta[j][index].to(torch.float64) + moved).to(torch.float32)
    return after


def check_update(update: Update, layout: GroupLayout) -> str | None:
    """Why an update must not be summed or kept: wrong groups, wrong length, not finite. None where it is sound."""
    up = update.receipt.assignment.up
    if set(update.delta) != set(up):
        return f"sent groups {sorted(set(update.delta) ^ set(up))} that do not match its assignment"
    for j, delta in update.delta.items():
        expected = layout.num_values({j: up[j]})
        if delta.dtype != torch.float32 or delta.shape != (expected,):
            return f"group {j!r}: sent {delta.dtype} of shape {tuple(delta.shape)}, expected float32 ({expected},)"
        if not bool(torch.isfinite(delta).all()):
            return f"group {j!r}: the update is not finite"
    for name, value in update.state.items():
        if not bool(torch.isfinite(value).all()):
            return f"personal state {name!r} is not finite"
    return None


def over_participants(reduction: WeightedSum, reduced: Reduced, fleet: Fleet) -> Total:
    """Normalises over all clients of the round: who did not train a group counts as zero change (Lemma 1, term I)."""

    def total(group: ParamGroup, part: GroupSum) -> float:
        tasks = (r.assignment for r in reduced.receipts)
        return sum(float(reduction.weight(group, fleet[t.client], t)) for t in tasks)

    return total


def without(update: Update, keep: Callable[[ParamGroup], bool], layout: GroupLayout) -> Update:
    """The update with only the groups that ``keep`` accepts (what a diagnostic asks for)."""
    return replace(update, delta={j: d for j, d in update.delta.items() if keep(layout[j])})


def mean_personal(
    theta: Params, states: Mapping[ClientId, ClientState], keep: Selection, layout: GroupLayout
) -> dict[GroupId, Tensor]:
    """``theta`` with the parts of ``keep`` replaced by their mean over all clients that have any, in float64.

    Clients are summed in ascending order; a part that nobody keeps yet stays as it is.
    """
    after = dict(theta)
    for j, part in keep.items():
        kept = [states[c][j].to(torch.float64) for c in sorted(states) if j in states[c]]
        if kept:
            after[j] = theta[j].clone()
            after[j][layout.indices(j, part)] = (sum(kept[1:], kept[0]) / len(kept)).to(torch.float32)
    return after


def members(reduced: Reduced, bucket: str = "global") -> dict[GroupId, tuple[ClientId, ...]]:
    """Who trained what in this round."""
    return {j: part.members for j, part in reduced.sums.get(bucket, {}).items()}
