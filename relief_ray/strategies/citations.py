"""References in BibTeX: reads ``citations.bib``, which holds methods, data sets, models and tools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType

from relief_ray.support.errors import UserError, nearest


@lru_cache(maxsize=1)
def read_entries() -> Mapping[str, str]:
    """Every entry of ``citations.bib`` as it stands there, by its BibTeX key."""
    text = files("relief_ray.strategies").joinpath("citations.bib").read_text(encoding="utf-8")
    entries = re.finditer(r"^@\w+\{(?P<key>\w+),\n.*?^\}", text, flags=re.MULTILINE | re.DOTALL)
    return MappingProxyType({entry["key"]: entry.group() for entry in entries})


def cite(citations: Iterable[str]) -> str:
    """BibTeX entries, each once, in the order in which they are first named.

    ``citations``: keys of ``citations.bib``, or whole entries (``@article{...}``).

    Raises:
        UserError: a key has no entry.
    """
    entries, wanted = read_entries(), list(dict.fromkeys(c.strip() for c in citations))
    for key in wanted:
        if not key.startswith("@") and key not in entries:
            raise UserError(
                f"citation {key!r}: unknown{nearest(key, entries)}; expected a key of citations.bib, or a BibTeX entry "
                "(@article{...})"
            )
    return "\n\n".join(entries.get(citation, citation) for citation in wanted)
