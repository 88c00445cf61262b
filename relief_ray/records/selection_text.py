"""Text form of a selection of parameter groups: ``fusion.B``, ``encoder.acc.0[lora_a;r4]``."""

from __future__ import annotations

import re
from typing import cast, get_args

from relief_ray.core.groups import WHOLE, Kind, Part, Selection

_TOKEN = re.compile(r"(?P<group>[^\[\]]+)(?:\[(?P<kinds>[a-z_,]*);(?P<rank>r\d+)?(?:;o(?P<rows>[\d.e-]+))?\])?")


def tokens(selection: Selection) -> tuple[str, ...]:
    """Write a selection as text: ``fusion.B`` is a whole group, ``encoder.acc.0[lora_a,lora_b;r4]`` a part of one.

    ``head.1[;;o0.75]``: three quarters of the output rows.
    """
    return tuple(j if part == WHOLE else f"{j}[{_kinds(part)};{_lead(part)}]" for j, part in selection.items())


def selection(texts: tuple[str, ...]) -> Selection:
    """Read a selection from text, the inverse of ``tokens``.

    Raises:
        ValueError: a text that ``tokens`` does not write.
    """
    return dict(_part(text) for text in texts)


def _kinds(part: Part) -> str:
    return "" if part.kinds is None else ",".join(sorted(part.kinds)) or "none"


def _lead(part: Part) -> str:
    rank = "" if part.rank is None else f"r{part.rank}"
    return rank if part.rows is None else f"{rank};o{part.rows!r}"


def _part(text: str) -> tuple[str, Part]:
    match = _TOKEN.fullmatch(text)
    names = (match["kinds"] or "").split(",") if match else []
    if match is None or not set(names) <= {*get_args(Kind), "", "none"}:
        raise ValueError(f"selection {text!r}, expected group or group[kinds;rank], e.g. encoder.acc.0[lora_a;r4]")
    kinds = frozenset(cast(Kind, n) for n in names if n != "none") if names != [""] else None
    rank, rows = (int(match["rank"][1:]) if match["rank"] else None), match["rows"]
    return match["group"], Part(kinds=kinds, rank=rank, rows=float(rows) if rows else None)
