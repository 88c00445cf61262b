"""How methods are called where they are shown: tables, titles, figures."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Whose own paper could not be read in full.
RECONSTRUCTED: Mapping[str, str] = MappingProxyType(
    {"fedicu": "FedICU (reconstructed)", "fedicu_table": "FedICU (reconstructed), table"}
)


def shown(label: str) -> str:
    """The name under which a strategy is shown; one that is our reconstruction says so."""
    return RECONSTRUCTED.get(label, label)
