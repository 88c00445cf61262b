"""References in BibTeX: reads ``citations.bib``, which holds methods, data sets, models and tools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType

from relief_ray.errors import UserError, nearest


@lru_cache(maxsize=1)
def read_entries() -> Mapping[str, str]:
    """Every entry of ``citations.bib`` as it stands there, by its BibTeX key."""
    text = files("relief_ray").joinpath("citations.bib").read_text(encoding="utf-8")
    entries = re.finditer(r"^@\w+\{(?P<key>\w+),\n.*?^\}", text, flags=re.MULTILINE | re.DOTALL)
    return MappingProxyType({entry["key"]: entry.group() for entry in entries})


def cite(keys: Iterable[str]) -> str:
    """Entries of these BibTeX keys, each once, in the order in which they are first named.

    Raises:
        UserError: a key has no entry.
    """
    entries, wanted = read_entries(), list(dict.fromkeys(keys))
    for key in wanted:
        if key not in entries:
            raise UserError(f"citation {key!r}: unknown{nearest(key, entries)}; expected a key of citations.bib")
    return "\n\n".join(entries[key] for key in wanted)
