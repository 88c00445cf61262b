"""What clients learnt on their own, kept by the server until there is enough of it to tell who is like whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from relief_ray.groups import GroupId, GroupLayout
from relief_ray.messages import Assignment, ClientId, GroupSum

# A client's whole step since the start, as a sum of one.
Warmups = Mapping[ClientId, Mapping[GroupId, GroupSum]]
ALONE, ALLOCATION = "warm-up", "allocation"
KEPT = "warm-up."
# Of fewer the silhouette says nothing.
FEWEST = 3


def own_bucket(task: Assignment) -> str:
    """Clusters are summed apart; who is yet to be allocated is looked at alone."""
    return f"client.{task.client}" if task.phase == ALLOCATION else task.view


def came_in(sums: Mapping[str, Mapping[GroupId, GroupSum]]) -> dict[ClientId, Mapping[GroupId, GroupSum]]:
    """What clients without a cluster sent in this round."""
    return {int(name.removeprefix("client.")): step for name, step in sums.items() if name.startswith("client.")}


def warmups(
    kept: Mapping[str, Tensor],
    came: Warmups,
    layout: GroupLayout,
    groups: Sequence[GroupId],
    weights: Sequence[float],
) -> dict[ClientId, Mapping[GroupId, GroupSum]]:
    """Each client's newest step over ``groups``, in client order: those that ``came`` now, then those ``kept``."""
    sizes = [layout[j].numel for j in groups]
    found = {int(name.removeprefix(KEPT)): flat for name, flat in kept.items() if name.startswith(KEPT)}
    before = {
        n: {j: _alone(n, step, weights[n]) for j, step in zip(groups, torch.split(flat.double(), sizes), strict=True)}
        for n, flat in found.items()
    }
    return {n: came.get(n) or before[n] for n in sorted({*before, *came})}


def _alone(client: ClientId, step: Tensor, weight: float) -> GroupSum:
    return GroupSum(
        weight=weight, weighted=weight * step, plain=step, sq_norm=float(step.square().sum()), members=(client,)
    )


def to_keep(known: Warmups) -> dict[str, Tensor]:
    """One flat float32 vector per client, its sums' own precision: what ``warmups`` reads again in a later round."""
    return {f"{KEPT}{n}": torch.cat([part.plain for part in step.values()]).float() for n, step in known.items()}


def is_enough(num_known: int, num_clients: int, round_: int, planned: int) -> bool:
    """Whether to make clusters: of everybody, or of three at least once the warm-up has taken twice as long."""
    return num_known == num_clients or (round_ >= 2 * planned and num_known >= FEWEST)
