"""The format of values on the wire: a JSON header, then the values of each group, in one of four formats.

``float32``, ``float16`` and ``bfloat16`` are rounded to the nearest, half to even. ``int8`` has for each tensor of a
group, as it is sent, ``s = float32(max |x|) / 127`` and codes ``rint(x / s)``, half to even; a group's scales stand
before its codes. Where ``s`` is below the smallest normal float32, the codes are 0. Decoded: ``float32(code) s``.

A sparse payload has one bit per value, packed group by group, and then the values whose bit is set.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import isfinite
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from relief_ray.core.groups import (
    WHOLE,
    GroupId,
    GroupLayout,
    Kind,
    Params,
    Part,
    Selection,
    all_finite,
    described,
    vector_violation,
)
from relief_ray.core.messages import Models, Update

Format = Literal["float32", "float16", "bfloat16", "int8"]
_TYPES: Final[Mapping[Format, torch.dtype]] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}
# First bytes of a payload, dense and sparse.
_MAGIC: Final[Mapping[Format, tuple[bytes, bytes]]] = {
    "float32": (b"RLF1", b"RLS1"),
    "float16": (b"RLH1", b"RLH2"),
    "bfloat16": (b"RLB1", b"RLB2"),
    "int8": (b"RLI1", b"RLI2"),
}
# Format of a payload, and whether it is sparse, by its first bytes.
_FORMATS: Final = {pair[is_sparse]: (form, is_sparse) for form, pair in _MAGIC.items() for is_sparse in (False, True)}
_ROWS = b"RLR1"
_LARGEST_CODE = 127
_SMALLEST_SCALE = torch.finfo(torch.float32).tiny
Rows = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wire:
    """How values travel between server and clients (``transfer``).

    Attributes:
        up: format of updates.
        down: format of models; never ``int8``.
        reachable: whether a client receives what its sensors reach alone.
        keeps_payload: whether updates keep their encoded form, which then travels in their place.
    """

    up: Format = "float32"
    down: Format = "float32"
    reachable: bool = False
    keeps_payload: bool = False


FLOAT32: Final = Wire()


def cut(layout: GroupLayout, selection: Selection, params: Mapping[GroupId, Tensor]) -> dict[GroupId, Tensor]:
    """The selected values of each group, from whole groups."""
    return {j: params[j] if part == WHOLE else params[j][layout.indices(j, part)] for j, part in selection.items()}


def encode(
    layout: GroupLayout,
    selection: Selection,
    params: Mapping[GroupId, Tensor],
    form: Format = "float32",
    kept: Mapping[GroupId, Tensor] | None = None,
) -> bytes:
    """Encode the selected part of each group; ``params[j]`` holds exactly the selected values.

    ``kept[j]``: a bool for each selected value, where the others are zero and need not be sent.
    """
    header = _header(layout, selection)
    pieces = [_MAGIC[form][kept is not None], struct.pack("<I", len(header)), header]
    pieces += [np.packbits(kept[j].numpy()).tobytes() for j in selection] if kept is not None else []
    for j, part in selection.items():
        scales, codes = _coded(params[j], layout.lengths(j, part), form)
        pieces += [_bytes(scales), _bytes(codes if kept is None else codes[kept[j]])]
    return b"".join(pieces)


def decode(layout: GroupLayout, payload: bytes | Tensor) -> tuple[Selection, dict[GroupId, Tensor]]:
    """Read what ``encode`` wrote, as bytes or a tensor of them: float32 values, 0 where a sparse payload has none.

    Raises:
        ValueError: not our format, an unknown group, or a length that the header does not announce.
    """
    data = memoryview(payload.numpy().data if isinstance(payload, Tensor) else payload)
    if (magic := bytes(data[:4])) not in _FORMATS:
        raise ValueError(f"payload starts with {magic!r}, expected one of {list(_FORMATS)}")
    form, is_sparse = _FORMATS[magic]
    try:
        (length,) = struct.unpack_from("<I", data, 4)
        rows = json.loads(bytes(data[8 : 8 + length]))
        selection = {j: _part(*fields) for j, *fields, _ in rows}
        if len(selection) != len(rows):
            raise ValueError("a group is named twice")
        if unknown := [j for j in selection if j not in layout]:
            raise ValueError(f"unknown groups {unknown}")
        sizes = {j: layout.num_values({j: part}) for j, part in selection.items()}
        if [count for *_, count in rows] != list(sizes.values()):
            raise ValueError("its counts are not those of the layout")
    except (struct.error, TypeError, ValueError) as error:
        raise ValueError(f"payload header cannot be read: {error}") from error
    read = _Reader(data, 8 + length)
    kept = {j: read.bits(n) for j, n in sizes.items()} if is_sparse else {}
    num_kept = sum(int(mask.sum()) for mask in kept.values()) if is_sparse else None
    held = len(data) - 8 - length
    announced = encoded_nbytes(layout, selection, form, num_kept) - 8 - len(_header(layout, selection))
    if held != announced:
        raise ValueError(f"payload holds {held} bytes of values, its header announces {announced}")
    params: dict[GroupId, Tensor] = {}
    for j, part in selection.items():
        lengths = layout.lengths(j, part)
        scales = read.tensor(torch.float32, len(lengths) if form == "int8" else 0)
        codes = read.tensor(_TYPES[form], int(kept[j].sum()) if is_sparse else sizes[j])
        if is_sparse:
            codes = torch.zeros(sizes[j], dtype=codes.dtype).masked_scatter_(kept[j], codes)
        params[j] = _decoded(scales, codes, lengths)
    return selection, params


class _Reader:
    """Reads a payload's values from ``at`` on."""

    def __init__(self, payload: bytes | memoryview, at: int) -> None:
        self._bytes, self.at = np.frombuffer(payload, dtype=np.uint8), at

    def tensor(self, dtype: torch.dtype, number: int) -> Tensor:
        """The next ``number`` values, copied; fewer where the payload ends."""
        if not number:
            return torch.empty(0, dtype=dtype)
        first, self.at = self.at, self.at + number * dtype.itemsize
        return torch.from_numpy(self._bytes[first : self.at].copy()).view(dtype)

    def bits(self, number: int) -> Tensor:
        """The next ``number`` bits as bools; they begin with a byte."""
        packed = self.tensor(torch.uint8, -(-number // 8))
        return torch.from_numpy(np.unpackbits(packed.numpy(), count=number).astype(bool))


def rounded(layout: GroupLayout, selection: Selection, params: Params, form: Format) -> Params:
    """Selected values as they come out of ``decode(encode(...))``, float32; ``float32`` leaves them as they are."""
    if form == "float32":
        return params
    return {
        j: _decoded(*_coded(params[j], lengths := layout.lengths(j, part), form), lengths)
        for j, part in selection.items()
    }


def sent(layout: GroupLayout, update: Update, wire: Wire, *, is_rounded: bool = False) -> Update:
    """An update as its server decodes it, rounded once, with the bytes that travelled both ways.

    Its receipt held the bytes beside the two payloads. An update that does not match its assignment, or that its
    format cannot hold, has the reason in ``refusal``, with its values as they were.

    ``is_rounded``: its values are what a format says already, and its receipt has their ``underflow``. Where int8 could
    not hold one group, the others may be rounded all the same: such an update is refused.
    """
    receipt, task = update.receipt, update.receipt.assignment
    up, kept = task.charged_up or task.up, update.kept or None
    num_kept = None if kept is None else sum(int(mask.sum()) for mask in kept.values())
    receipt = replace(
        receipt,
        bytes_up=receipt.bytes_up + (encoded_nbytes(layout, up, wire.up, num_kept) if up else 0),
        bytes_down=receipt.bytes_down + (encoded_nbytes(layout, task.down, wire.down) if task.down else 0),
    )
    if refusal := mismatch(layout, update):
        return replace(update, receipt=receipt, refusal=refusal)
    update = replace(update, receipt=receipt, kept={})
    if wire.keeps_payload:
        update = replace(update, payload=encode(layout, task.up, update.delta, wire.up, kept))
    if wire.up == "float32" or is_rounded:
        return update
    delta = rounded(layout, task.up, update.delta, wire.up)
    if refusal := _unfit(update.delta, delta, wire.up):
        return replace(update, refusal=refusal)
    return replace(update, delta=delta, receipt=replace(receipt, underflow=_underflow(update.delta, delta)))


def mismatch(layout: GroupLayout, update: Update) -> str:
    """What of an update's groups, lengths, type or ``kept`` is not as its assignment asks; empty: nothing."""
    up = update.receipt.assignment.up
    if set(update.delta) != set(up):
        groups = sorted(map(str, update.delta))
        return f"delta has groups {groups}, expected those of its assignment, {sorted(up)}; send what `up` names"
    for j, delta in update.delta.items():
        if violation := vector_violation(delta, layout.num_values({j: up[j]})):
            return f"delta, group {j!r}: {violation}"
    if update.kept and set(update.kept) != set(up):
        return f"kept has groups {sorted(map(str, update.kept))}, expected a mask for each group of delta, {sorted(up)}"
    wrong = ((j, _mask_violation(mask, update.delta[j])) for j, mask in update.kept.items())
    return next((f"kept, group {j!r}: {violation}" for j, violation in wrong if violation), "")


def _mask_violation(mask: object, delta: Tensor) -> str:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != delta.shape:
        return f"found {described(mask)}, expected a bool for each value of delta"
    lost = int(delta[~mask].count_nonzero())
    return f"{lost} values outside are not 0, expected 0 there, since they are not sent" if lost else ""


def lost_share(before: int, after: int) -> float:
    """Share of so many nonzero values that became 0, where so many are left."""
    return (before - after) / before if before else 0.0


def _underflow(params: Params, decoded: Params) -> float:
    after = sum(int(x.count_nonzero()) for x in decoded.values())
    if after == sum(map(len, decoded.values())):  # as mostly: one pass is enough
        return 0.0
    return lost_share(sum(int(x.count_nonzero()) for x in params.values()), after)


def _unfit(params: Params, decoded: Params, form: Format) -> str:
    """Which group has a value that ``form`` cannot hold, and the value; empty where all are finite."""
    for j, values in decoded.items():
        if not all_finite(values):
            x = params[j]
            value = float(x[x.abs().argmax()] if all_finite(x) else x[~x.isfinite()][0])
            largest = torch.finfo(torch.float32 if form == "int8" else _TYPES[form]).max
            why = f"is beyond {form}, whose largest value is {largest:g}"
            return f"group {j!r}: {value:g} {why if isfinite(value) else f'cannot be sent as {form}'}"
    return ""


@dataclass(slots=True)
class Broadcast:
    """``D(theta)``, the server's models as clients decode them, made once for each model.

    Attributes:
        layout: the models' groups.
        form: format of the download.
        underflow: share of nonzero values that became 0, the largest of the models that were decoded last.
    """

    layout: GroupLayout
    form: Format = "float32"
    underflow: float = 0.0
    _made: dict[int, tuple[Params, Params]] = field(default_factory=dict)
    """By the address of a model of the last call: the model, which keeps its address taken, and its decoded form."""

    def __call__(self, models: Models) -> Models:
        """Return the models as clients receive them.

        Raises:
            FloatingPointError: a value is not finite, or beyond the format's range; model, group and value are named.
        """
        if self.form == "float32":
            return models
        known = self._made
        if any(id(m) not in known for m in models.values()):
            self.underflow = 0.0
        self._made = {id(m): known.get(id(m)) or (m, self._one(name, m)) for name, m in models.items()}
        return {name: self._made[id(theta)][1] for name, theta in models.items()}

    def _one(self, name: str, theta: Params) -> Params:
        decoded = rounded(self.layout, self.layout.select(theta), theta, self.form)
        if why := _unfit(theta, decoded, self.form):
            raise FloatingPointError(f"model {name!r}, {why}; take transfer.down=bfloat16 or float32")
        self.underflow = max(self.underflow, _underflow(theta, decoded))
        return decoded


def encoded_nbytes(
    layout: GroupLayout, selection: Selection, form: Format = "float32", num_kept: int | None = None
) -> int:
    """``len(encode(...))`` without encoding; ``num_kept``: of a sparse payload that keeps so many values."""
    dense = _encoded_nbytes(layout, tuple(selection.items()), form)
    if num_kept is None:
        return dense
    bits = sum(-(-layout.num_values({j: part}) // 8) for j, part in selection.items())
    return dense + bits + (num_kept - layout.num_values(selection)) * _TYPES[form].itemsize


# The clients of a round have the same few selections.
@lru_cache(maxsize=1024)
def _encoded_nbytes(layout: GroupLayout, items: tuple[tuple[GroupId, Part], ...], form: Format) -> int:
    selection = dict(items)
    scales = sum(len(layout.lengths(j, part)) for j, part in items) if form == "int8" else 0
    return 8 + len(_header(layout, selection)) + 4 * scales + layout.num_values(selection) * _TYPES[form].itemsize


def encode_rows(rows: Rows) -> bytes:
    """Encode one row of each stage's output, float32, by the stage's name."""
    header = _rows_header({name: row.numel() for name, row in rows.items()})
    return b"".join((_ROWS, struct.pack("<I", len(header)), header, *map(_bytes, rows.values())))


def decode_rows(payload: bytes) -> dict[str, Tensor]:
    """Read what ``encode_rows`` wrote: flat rows."""
    (length,) = struct.unpack_from("<I", payload, 4)
    read = _Reader(payload, 8 + length)
    return {name: read.tensor(torch.float32, n) for name, n in json.loads(payload[8 : 8 + length])}


def rows_nbytes(sizes: Mapping[str, int]) -> int:
    """``len(encode_rows(...))`` of rows of so many values by stage; 0 where there are none."""
    return 8 + len(_rows_header(sizes)) + 4 * sum(sizes.values()) if sizes else 0


def _rows_header(sizes: Mapping[str, int]) -> bytes:
    return json.dumps(list(map(list, sizes.items())), separators=(",", ":")).encode()


def _coded(values: Tensor, lengths: Sequence[int], form: Format) -> tuple[Tensor, Tensor]:
    """Scales (one for each tensor of ``int8``, else none) and codes (n,) of a group's values (n,)."""
    if form != "int8":
        return torch.empty(0), values.to(_TYPES[form])
    sizes = list(lengths)
    scales, codes = torch.zeros(len(sizes)), torch.zeros(len(values), dtype=torch.int8)
    for i, (x, into) in enumerate(zip(torch.split(values, sizes), torch.split(codes, sizes), strict=True)):
        low, high = x.aminmax()
        scale = torch.maximum(-low, high) / _LARGEST_CODE
        if not scale < _SMALLEST_SCALE:  # true of NaN too, which the scale then hands on
            scales[i] = scale
            into.copy_(torch.round(x / scale))
    return scales, codes


def _decoded(scales: Tensor, codes: Tensor, lengths: Sequence[int]) -> Tensor:
    """Values (n,) that scales and codes stand for, float32."""
    values = codes.to(torch.float32)
    for scale, x in zip(scales, torch.split(values, list(lengths)), strict=False):
        x.mul_(scale)
    return values


def _bytes(values: Tensor) -> bytes:
    return values.contiguous().view(torch.uint8).numpy().tobytes() if values.numel() else b""


def _header(layout: GroupLayout, selection: Selection) -> bytes:
    rows = [[j, *_row(part), layout.num_values({j: part})] for j, part in selection.items()]
    return json.dumps(rows, separators=(",", ":")).encode()


def _row(part: Part) -> list[object]:
    """A part in a header: its kinds and rank, its share of rows only where it has one."""
    kinds = None if part.kinds is None else sorted(part.kinds)
    return [kinds, part.rank] if part.rows is None else [kinds, part.rank, part.rows]


def _part(kinds: Sequence[Kind] | None, rank: int | None, rows: float | None = None) -> Part:
    return Part(kinds=None if kinds is None else frozenset(kinds), rank=rank, rows=rows)
