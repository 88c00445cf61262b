"""The built-in methods as a list for people: ``relief_ray.methods()``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from relief_ray.strategies import DESCRIBED
from relief_ray.studies.single import as_frame
from relief_ray.support.table import word_table
from relief_ray.support.text import table

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodInfo:
    """A method that goes by a name.

    Attributes:
        name: what ``strategies=`` takes.
        title: its own name.
        idea: what it does, in a line.
        family: ``baseline``, ``proposed``, ``ablation``, ``bound``, ...
    """

    name: str
    title: str
    idea: str
    family: str


class Methods(Sequence[MethodInfo]):
    """All built-in methods in the order of tables; printed, one line each."""

    def __init__(self, methods: Sequence[MethodInfo]) -> None:
        """Hold these methods."""
        self._methods = tuple(methods)

    @property
    def frame(self) -> DataFrame:
        """The methods as a data frame: ``name``, ``title``, ``idea``, ``family``."""
        return as_frame([{"name": m.name, "title": m.title, "idea": m.idea, "family": m.family} for m in self])

    def __len__(self) -> int:
        """Return their number."""
        return len(self._methods)

    @overload
    def __getitem__(self, index: int) -> MethodInfo: ...
    @overload
    def __getitem__(self, index: slice) -> Methods: ...
    def __getitem__(self, index: int | slice) -> MethodInfo | Methods:
        """Return one of them by its place, or some of them."""
        return Methods(self._methods[index]) if isinstance(index, slice) else self._methods[index]

    def __iter__(self) -> Iterator[MethodInfo]:
        """Go through them in order."""
        return iter(self._methods)

    def __repr__(self) -> str:
        """Return a line per method."""
        return table(["name", "family", "idea"], [[m.name, m.family, m.idea] for m in self], left=3)

    def _repr_html_(self) -> str:
        return word_table(
            ["name", "title", "family", "idea"], [[m.name, m.title, m.family, m.idea] for m in self]
        ).html()


def methods() -> Methods:
    """Return the built-in methods: name, title, idea and family of each, in the order of tables."""
    return Methods([MethodInfo(name=name, title=m.title, idea=m.about, family=m.kind) for name, m in DESCRIBED.items()])
