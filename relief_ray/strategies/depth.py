"""A backbone as blocks from input to output, and early exits behind them: what depth-wise methods share."""

from __future__ import annotations

from collections.abc import Iterable

from relief_ray.additions import Classifier
from relief_ray.groups import GroupId, GroupLayout, ParamGroup

EXIT = "exit"


def num_layers(layout: GroupLayout) -> int:
    """``L``: encoder layers of the deepest modality."""
    return max((g.layer or 0 for g in layout if g.role == "encoder"), default=0)


def block(layout: GroupLayout, group: ParamGroup) -> int:
    """Its block: encoder layer l of every modality is l, the whole fusion L + 1, head layer i L + 1 + i."""
    if group.role == "encoder":
        return group.layer or 1
    if group.role == "head":
        return num_layers(layout) + 1 + (group.layer or 1)
    return num_layers(layout) + 1


def own_groups(layout: GroupLayout) -> tuple[ParamGroup, ...]:
    """The backbone's groups, without exits."""
    return tuple(g for g in layout if g.role != EXIT)


def num_blocks(layout: GroupLayout) -> int:
    """``B``."""
    return max(block(layout, g) for g in own_groups(layout))


def exit_behind(layout: GroupLayout, depth: int) -> Classifier:
    """A linear exit on what block ``depth`` gives, all modalities side by side."""
    last = [g.id for g in own_groups(layout) if block(layout, g) == depth and g.role != "fusion_a"]
    return Classifier(id=f"{EXIT}.{depth}", after=tuple(last), layer=depth)


def exits(layout: GroupLayout, depths: Iterable[int]) -> tuple[Classifier, ...]:
    """One exit behind each of ``depths``."""
    return tuple(exit_behind(layout, d) for d in depths)


def output_of(layout: GroupLayout, depth: int) -> GroupId | None:
    """The exit behind block ``depth``; None (the backbone's own head) where there is none."""
    name = f"{EXIT}.{depth}"
    return name if name in layout else None
