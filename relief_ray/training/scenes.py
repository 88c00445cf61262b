"""The short rounds that a device profile is made of: every stage with and without each gradient, large and small."""

from __future__ import annotations

from dataclasses import dataclass, replace

from relief_ray.groups import GroupId, GroupLayout

EPOCHS, SMALLEST_BATCH = 4, 4
EVERYTHING, LEAST, LEAST_LONG = "everything", "last group", "last group, more epochs"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """One short round: the groups trained, the client's sensors, windows in a batch, epochs."""

    name: str
    groups: tuple[GroupId, ...]
    present: tuple[str, ...]
    rows: int
    epochs: int = 1


def scenes(layout: GroupLayout, modalities: tuple[str, ...], rows: int, epochs: int) -> list[Scene]:
    """Everything and the last group alone; then the parts, by rich and by poor clients, on large and small batches."""
    small, first = min(SMALLEST_BATCH, rows), modalities[:1]
    sizes = [(modalities, rows), *([(modalities, small)] if small < rows else []), (first, rows)]
    whole = Scene(name=EVERYTHING, groups=layout.ids, present=modalities, rows=rows, epochs=epochs)
    last = replace(whole, groups=layout.ids[-1:])
    return [whole, replace(last, name=LEAST, epochs=1), replace(last, name=LEAST_LONG, epochs=EPOCHS)] + [
        replace(
            whole, name=f"{name}, {len(present)} sensors, {size} windows", groups=groups, present=present, rows=size
        )
        for present, size in sizes
        for name, groups in parts(layout).items()
        if (groups, present, size) != (whole.groups, modalities, rows)
    ]


def parts(layout: GroupLayout) -> dict[str, tuple[GroupId, ...]]:
    """Assignments that show each stage with and without its own gradient, and with and without its input's."""
    layers = sorted({g.layer or 0 for g in layout if g.role == "encoder"})
    found = {"everything": layout.ids}
    for layer in sorted({layers[0], layers[len(layers) // 2], layers[-1]}):
        found[f"layer {layer}"] = tuple(g.id for g in layout if g.role == "encoder" and g.layer == layer)
    found["fusion blocks"] = tuple(g.id for g in layout if g.role == "fusion_a")
    found["shared"] = tuple(g.id for g in layout if g.role in ("fusion_b", "head"))
    found["last"] = layout.ids[-1:]
    return found
