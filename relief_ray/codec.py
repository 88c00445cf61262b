"""The wire format that bytes are counted by: a JSON header, then float32 little-endian values group by group."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from relief_ray.groups import WHOLE, GroupId, GroupLayout, Part, Selection

MAGIC = b"RLF1"


def encode(layout: GroupLayout, selection: Selection, params: Mapping[GroupId, Tensor]) -> bytes:
    """Encodes the selected part of each group; ``params[j]`` holds exactly the selected values."""
    header = _header(layout, selection)
    body = b"".join(params[j].to(torch.float32).numpy().astype("<f4", copy=False).tobytes() for j in selection)
    return MAGIC + struct.pack("<I", len(header)) + header + body


def decode(layout: GroupLayout, payload: bytes) -> tuple[Selection, dict[GroupId, Tensor]]:
    """Reads what ``encode`` wrote.

    Raises:
        ValueError: not our format, an unknown group, or a length that the header does not announce.
    """
    if payload[:4] != MAGIC:
        raise ValueError(f"payload starts with {payload[:4]!r}, expected {MAGIC!r}")
    (length,) = struct.unpack("<I", payload[4:8])
    rows = json.loads(payload[8 : 8 + length])
    if unknown := [row[0] for row in rows if row[0] not in layout]:
        raise ValueError(f"payload names unknown groups {unknown}")
    values = np.frombuffer(payload, dtype="<f4", offset=8 + length)
    if len(values) != sum(row[3] for row in rows):
        raise ValueError(f"payload holds {len(values)} values, its header announces {sum(row[3] for row in rows)}")
    selection = {j: Part(kinds=frozenset(kinds) if kinds else None, rank=rank) for j, kinds, rank, _ in rows}
    params, start = {}, 0
    for j, _, _, count in rows:
        params[j] = torch.from_numpy(values[start : start + count].astype(np.float32))
        start += count
    return selection, params


def encoded_nbytes(layout: GroupLayout, selection: Selection) -> int:
    """``len(encode(...))`` without encoding."""
    return 8 + len(_header(layout, selection)) + 4 * layout.num_values(selection)


def _header(layout: GroupLayout, selection: Selection) -> bytes:
    rows = [
        [j, sorted(part.kinds) if part.kinds else None, part.rank, layout.num_values({j: part})]
        for j, part in selection.items()
    ]
    return json.dumps(rows, separators=(",", ":")).encode()


def cut(layout: GroupLayout, selection: Selection, params: Mapping[GroupId, Tensor]) -> dict[GroupId, Tensor]:
    """The selected values of each group, from whole groups."""
    return {j: params[j] if part == WHOLE else params[j][layout.indices(j, part)] for j, part in selection.items()}
