"""Parameter groups: the modality-aligned interface of Section III-B.

Legend: ``j`` a group, ``theta_j`` its flat float32 vector, ``M_n`` the modalities of client ``n``, ``G_n`` the groups
it can reach, ``A_m`` the fusion column block of modality ``m``, ``G = M + 1 + sum_m L_m + L_H`` the number of groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, isfinite, prod
from typing import Literal

import torch
from torch import Tensor

from relief_ray.support.errors import kind_in_words

GroupId = str
Kind = Literal["weight", "bias", "lora_a", "lora_b"]
Role = Literal["fusion_a", "fusion_b", "encoder", "head", "exit", "unimodal_head", "connector", "expert", "router"]
Params = Mapping[GroupId, Tensor]
# A share of rows carries rounding of its own: 0.07 of 100 rows are 7.
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """One tensor inside a group.

    Attributes:
        name: name within the group.
        shape: its shape.
        kind: weight, bias, or one of the two LoRA factors.
        offset: position of its first element in ``theta_j``.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    offset: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_factor(self) -> bool:
        """Whether it is a LoRA factor."""
        return self.kind in ("lora_a", "lora_b")

    def of(self, theta: Tensor) -> Tensor:
        """Return the tensor, as a view of its group's vector ``theta_j``."""
        return theta[self.offset : self.offset + self.numel].view(self.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParamGroup:
    """A group ``j`` of trainable tensors: the unit of allocation, aggregation and communication (Section III-B).

    Attributes:
        id: its name, e.g. ``encoder.acc.0``.
        role: its function in the model.
        modality: the modality that it belongs to; None: shared.
        layer: its layer within encoder or head; None where it has none.
        tensors: its tensors in storage order.
        member: its number among several of one kind, e.g. of experts.
    """

    id: GroupId
    role: Role
    modality: str | None
    layer: int | None
    tensors: tuple[TensorSpec, ...]
    member: int | None = None

    @property
    def numel(self) -> int:
        """Number of elements of ``theta_j``."""
        return sum(t.numel for t in self.tensors)

    @property
    def lora(self) -> bool:
        """Whether it holds LoRA factors."""
        return any(t.is_factor for t in self.tensors)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Part of a group; by default all of it.

    Attributes:
        kinds: tensors of these kinds; None: of all.
        rank: the first so many ranks of LoRA factors; None: all.
        rows: the first ``ceil(rows d_out)`` output rows of dense tensors; None: all.
    """

    kinds: frozenset[Kind] | None = None
    rank: int | None = None
    rows: float | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing is left out."""
        return self.kinds is None and not self.cuts

    @property
    def cuts(self) -> bool:
        """Whether only a leading piece of a tensor is meant."""
        return self.rank is not None or self.rows is not None

    def lead(self, spec: TensorSpec) -> tuple[int, int]:
        """Return ``(axis, n)``: the part of a tensor is its first ``n`` slices along ``axis``.

        Ranks are rows of A and columns of B.
        """
        axis = 1 if spec.kind == "lora_b" else 0
        size = spec.shape[axis]
        if spec.is_factor:
            return axis, size if self.rank is None else min(self.rank, size)
        return axis, size if self.rows is None else min(size, ceil(self.rows * size - ROUNDING))

    def beyond(self, spec: TensorSpec, tensor: Tensor) -> Tensor:
        """Return what the part leaves out of a tensor, as a view."""
        axis, number = self.lead(spec)
        return tensor.narrow(axis, number, spec.shape[axis] - number)


WHOLE = Part()
Selection = Mapping[GroupId, Part]


def pack(specs: Iterable[tuple[str, tuple[int, ...], Kind]]) -> tuple[TensorSpec, ...]:
    """Lay tensors ``(name, shape, kind)`` one behind the other in a group."""
    packed: list[TensorSpec] = []
    offset = 0
    for name, shape, kind in specs:
        packed.append(TensorSpec(name=name, shape=shape, kind=kind, offset=offset))
        offset += packed[-1].numel
    return tuple(packed)


class GroupLayout:
    """All groups of a backbone in storage order.

    Attributes:
        groups: the groups.
        numel: number of elements of the whole model.
        modalities: modalities of the groups, in their order.
    """

    def __init__(self, groups: Iterable[ParamGroup]) -> None:
        """Fix the order of ``groups``.

        Raises:
            ValueError: two groups share an id.
        """
        self.groups = tuple(groups)
        self._by_id = {g.id: g for g in self.groups}
        if len(self._by_id) != len(self.groups):
            ids = [g.id for g in self.groups]
            raise ValueError(f"group ids must be unique; repeated: {sorted({i for i in ids if ids.count(i) > 1})}")
        self._spans: dict[GroupId, slice] = {}
        start = 0
        for group in self.groups:
            self._spans[group.id] = slice(start, start + group.numel)
            start += group.numel
        self.numel = start
        self.modalities = tuple(dict.fromkeys(g.modality for g in self.groups if g.modality is not None))

    def __iter__(self) -> Iterator[ParamGroup]:
        """Iterate over the groups in storage order."""
        return iter(self.groups)

    def __len__(self) -> int:
        """Return ``G``, the number of groups."""
        return len(self.groups)

    def __contains__(self, group: object) -> bool:
        """Return whether ``group`` is the id of one of the groups."""
        return group in self._by_id

    def __getitem__(self, group: GroupId) -> ParamGroup:
        """Return the group with that id."""
        return self._by_id[group]

    @property
    def ids(self) -> tuple[GroupId, ...]:
        """Group ids in storage order."""
        return tuple(self._by_id)

    @property
    def lora(self) -> bool:
        """Whether the model has LoRA factors."""
        return any(g.lora for g in self.groups)

    def span(self, group: GroupId) -> slice:
        """Return the positions of ``theta_j`` in the flat model vector."""
        return self._spans[group]

    def accessible(self, modalities: Collection[str]) -> tuple[ParamGroup, ...]:
        """Return ``G_n``: the groups of these modalities and the shared ones."""
        return tuple(g for g in self.groups if g.modality is None or g.modality in modalities)

    def mandatory(self, modalities: Collection[str]) -> tuple[ParamGroup, ...]:
        """Return ``{A_m : m in M_n}``: the fusion blocks that a client of these modalities always trains."""
        return tuple(g for g in self.groups if g.role == "fusion_a" and g.modality in modalities)

    @property
    def blocks(self) -> frozenset[GroupId]:
        """The fusion blocks without a bias, which turn a feature of zeros into zeros."""
        plain = (g for g in self.groups if g.role == "fusion_a" and all(t.kind != "bias" for t in g.tensors))
        return frozenset(g.id for g in plain)

    def select(self, groups: Iterable[ParamGroup | GroupId] | None = None, part: Part = WHOLE) -> Selection:
        """Select the same ``part`` of each of ``groups`` (all by default), in storage order.

        Raises:
            ValueError: one of them is not of this layout.
        """
        if groups is None:
            return dict.fromkeys(self._by_id, part)
        wanted = {g if isinstance(g, str) else g.id for g in groups}
        if unknown := wanted - self._by_id.keys():
            raise ValueError(f"groups {sorted(unknown)} are unknown; the layout has {list(self._by_id)}")
        return {j: part for j in self._by_id if j in wanted}

    def indices(self, group: GroupId, part: Part) -> slice | Tensor:
        """Return the positions in ``theta_j`` of ``part``: a slice where they are contiguous, else int64 indices.

        They are worked out once a run, and are not to be changed.
        """
        return _indices(self._by_id[group], part)

    def lengths(self, group: GroupId, part: Part) -> tuple[int, ...]:
        """Count the values of ``part`` in each of the group's tensors, in storage order; empty ones are left out."""
        return _lengths(self._by_id[group], part)

    def num_values(self, selection: Selection) -> int:
        """Count the values that ``selection`` names."""
        return sum(_length(self._spans[j] if part.whole else self.indices(j, part)) for j, part in selection.items())

    def views(self, flat: Tensor) -> dict[GroupId, Tensor]:
        """Return ``theta_j`` of every group, as views of the flat model vector (``numel``,)."""
        if flat.shape != (self.numel,):
            raise ValueError(f"flat model has shape {tuple(flat.shape)}, expected ({self.numel},)")
        return {j: flat[s] for j, s in self._spans.items()}

    def flatten(self, params: Params) -> Tensor:
        """Copy the groups' vectors into one float32 vector (``numel``,)."""
        return torch.cat([params[j].to(torch.float32) for j in self._by_id])

    def unflatten(self, group: GroupId, theta: Tensor) -> dict[str, Tensor]:
        """Return the group's tensors by name, as views of its vector ``theta_j``."""
        return {t.name: t.of(theta) for t in self._by_id[group].tensors}

    def matrix(self, role: Role, theta: Params) -> Tensor:
        """Return ``[A_1 | .. | A_M]``: the two-dimensional tensors of all groups of ``role``, side by side."""
        blocks = [t for g in self.groups if g.role == role for t in self.unflatten(g.id, theta[g.id]).values()]
        return torch.cat([b for b in blocks if b.ndim == 2], dim=1)


def all_finite(values: Tensor) -> bool:
    """Return whether there is neither NaN nor infinity; by the extremes, 20 times as fast as value by value."""
    if not values.numel():
        return True
    low, high = values.aminmax()
    return isfinite(float(low)) and isfinite(float(high))


def described(value: object) -> str:
    """A tensor in messages: ``torch.float32 (3,)``, ``torch.float32 (3,) on cuda:0``; of anything else its kind."""
    if not isinstance(value, Tensor):
        return kind_in_words(value)
    return f"{value.dtype} {tuple(value.shape)}" + ("" if value.device.type == "cpu" else f" on {value.device}")


def vector_violation(value: object, numel: int) -> str:
    """What is wrong with what should be a float32 vector of so many values in the CPU's memory."""
    is_one = isinstance(value, Tensor) and value.dtype == torch.float32 and value.shape == (numel,)
    if not isinstance(value, Tensor) or not is_one or value.device.type != "cpu":
        return f"{described(value)}, expected float32 vectors of {numel} values"
    return gradient_violation(value)


def gradient_violation(value: Tensor) -> str:
    """What is wrong with a tensor that should be values alone."""
    if value.is_neg():
        return "a view that negates another tensor, expected values alone: .resolve_neg()"
    return "a tensor that requires a gradient, expected values alone: .detach()" if value.requires_grad else ""


def inner_product(x_N: Tensor, y_N: Tensor) -> float:
    """``sum_i x_i y_i`` of two vectors (N,) in float64.

    Products are added up by halves. The order is written here, so the sum has the same bits on every processor; that of
    a library depends on the width of its vectors.
    """
    sums, number = x_N.double() * y_N.double(), len(x_N)
    while number > 1:
        half, is_odd = divmod(number, 2)
        if is_odd:
            sums[0] += sums[number - 1]
        sums[:half] += sums[half : 2 * half]
        number = half
    return float(sums[0]) if number else 0.0


# A run has few parts of a group and asks for each in every client's round.
@lru_cache(maxsize=256)
def _indices(group: ParamGroup, part: Part) -> slice | Tensor:
    if part.whole:
        return slice(0, group.numel)
    chosen = [_tensor_indices(t, part) for t in group.tensors if part.kinds is None or t.kind in part.kinds]
    flat = torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.int64)
    if len(flat) and bool((flat[1:] - flat[:-1] == 1).all()):
        return slice(int(flat[0]), int(flat[-1]) + 1)
    return flat


@lru_cache(maxsize=256)
def _lengths(group: ParamGroup, part: Part) -> tuple[int, ...]:
    chosen = (t for t in group.tensors if part.kinds is None or t.kind in part.kinds)
    numbers = ((t.numel, t.shape[axis], lead) for t in chosen for axis, lead in [part.lead(t)])
    return tuple(numel // size * lead for numel, size, lead in numbers if lead)


def _tensor_indices(spec: TensorSpec, part: Part) -> Tensor:
    """Return the positions of ``part`` of one tensor in the group's vector."""
    index = torch.arange(spec.offset, spec.offset + spec.numel)
    axis, number = part.lead(spec)
    return index.view(spec.shape).narrow(axis, 0, number).reshape(-1)


def _length(index: slice | Tensor) -> int:
    return index.stop - index.start if isinstance(index, slice) else len(index)
