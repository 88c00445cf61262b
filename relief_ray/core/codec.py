"""The format by which transferred bytes are counted: a JSON header, then float32 little-endian values by group.

A sparse payload has one bit per value, packed group by group, and then the values whose bit is set.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from relief_ray.core.groups import WHOLE, GroupId, GroupLayout, Kind, Part, Selection

MAGIC, SPARSE = b"RLF1", b"RLS1"


def cut(layout: GroupLayout, selection: Selection, params: Mapping[GroupId, Tensor]) -> dict[GroupId, Tensor]:
    """The selected values of each group, from whole groups."""
    return {j: params[j] if part == WHOLE else params[j][layout.indices(j, part)] for j, part in selection.items()}


def encode(layout: GroupLayout, selection: Selection, params: Mapping[GroupId, Tensor]) -> bytes:
    """Encode the selected part of each group; ``params[j]`` holds exactly the selected values."""
    header = _header(layout, selection)
    body = b"".join(params[j].to(torch.float32).numpy().astype("<f4", copy=False).tobytes() for j in selection)
    return MAGIC + struct.pack("<I", len(header)) + header + body


def decode(layout: GroupLayout, payload: bytes) -> tuple[Selection, dict[GroupId, Tensor]]:
    """Read what ``encode`` wrote.

    Raises:
        ValueError: not our format, an unknown group, or a length that the header does not announce.
    """
    if payload[:4] != MAGIC:
        raise ValueError(f"payload starts with {payload[:4]!r}, expected {MAGIC!r}")
    try:
        (length,) = struct.unpack_from("<I", payload, 4)
        rows = json.loads(payload[8 : 8 + length])
        selection = {j: _part(*fields) for j, *fields, _ in rows}
        if len(selection) != len(rows):
            raise ValueError("a group is named twice")
        if unknown := [j for j in selection if j not in layout]:
            raise ValueError(f"unknown groups {unknown}")
        if [count for *_, count in rows] != [layout.num_values({j: part}) for j, part in selection.items()]:
            raise ValueError("its counts are not those of the layout")
    except (struct.error, TypeError, ValueError) as error:
        raise ValueError(f"payload header cannot be read: {error}") from error
    start, expected = 8 + length, 4 * layout.num_values(selection)
    if len(payload) - start != expected:
        raise ValueError(f"payload holds {len(payload) - start} bytes of values, its header announces {expected}")
    params: dict[GroupId, Tensor] = {}
    for j, part in selection.items():
        count = layout.num_values({j: part})
        values = np.frombuffer(payload, dtype="<f4", count=count, offset=start)
        params[j] = torch.from_numpy(values.astype(np.float32))
        start += values.nbytes
    return selection, params


def encode_sparse(
    layout: GroupLayout, selection: Selection, params: Mapping[GroupId, Tensor], kept: Mapping[GroupId, Tensor]
) -> bytes:
    """Encode each group's selected values that are kept; ``kept[j]`` has a bool for each selected value."""
    header = _header(layout, selection)
    bits = b"".join(np.packbits(kept[j].numpy()).tobytes() for j in selection)
    body = b"".join(params[j][kept[j]].to(torch.float32).numpy().astype("<f4", copy=False).tobytes() for j in selection)
    return SPARSE + struct.pack("<I", len(header)) + header + bits + body


def encoded_nbytes(layout: GroupLayout, selection: Selection) -> int:
    """``len(encode(...))`` without encoding."""
    return _encoded_nbytes(layout, tuple(selection.items()))


def sparse_nbytes(layout: GroupLayout, selection: Selection, num_kept: int) -> int:
    """``len(encode_sparse(...))`` of a payload that keeps ``num_kept`` values."""
    bits = sum(-(-layout.num_values({j: part}) // 8) for j, part in selection.items())
    return 8 + len(_header(layout, selection)) + bits + 4 * num_kept


# The clients of a round have the same few selections.
@lru_cache(maxsize=1024)
def _encoded_nbytes(layout: GroupLayout, items: tuple[tuple[GroupId, Part], ...]) -> int:
    selection = dict(items)
    return 8 + len(_header(layout, selection)) + 4 * layout.num_values(selection)


def _header(layout: GroupLayout, selection: Selection) -> bytes:
    rows = [[j, *_row(part), layout.num_values({j: part})] for j, part in selection.items()]
    return json.dumps(rows, separators=(",", ":")).encode()


def _row(part: Part) -> list[object]:
    """A part in a header: its kinds and rank, its share of rows only where it has one."""
    kinds = None if part.kinds is None else sorted(part.kinds)
    return [kinds, part.rank] if part.rows is None else [kinds, part.rank, part.rows]


def _part(kinds: Sequence[Kind] | None, rank: int | None, rows: float | None = None) -> Part:
    return Part(kinds=None if kinds is None else frozenset(kinds), rank=rank, rows=rows)
