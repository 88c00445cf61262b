"""Parts of a round that an aggregation did not ask for: reading them is an error that names the reduction to take.

A round either adds updates up where they arise (``WeightedSum``) or brings single ones to the server (``Collect``). The
other half of ``Reduced`` is empty, and a method that loops over it would leave its model as it is without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from relief_ray.core.groups import GroupId
from relief_ray.core.messages import Collect, GroupSum, Reduced, Reduction, Update


class NotCollected(LookupError):
    """Raised where an aggregation reads what its reduction does not keep."""


class NoUpdates(Sequence[Update]):
    """Single updates of a method that sums them up: none are kept, and every look at them says so."""

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse."""
        self._refuse()

    def __len__(self) -> NoReturn:
        """Refuse."""
        self._refuse()

    def __iter__(self) -> Iterator[Update]:
        """Refuse."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotCollected(
            "reduced.updates is not kept: the reduction of this method is a WeightedSum, which adds updates up where "
            "they arise; read reduced.sums, or build Strategy(.., reduction=Collect()) to get single updates"
        )


class NoSums(Mapping[str, Mapping[GroupId, GroupSum]]):
    """Sums of a method that collects single updates: none are made, and every look at them says so."""

    def __getitem__(self, bucket: str) -> NoReturn:
        """Refuse."""
        self._refuse()

    def __len__(self) -> NoReturn:
        """Refuse."""
        self._refuse()

    def __iter__(self) -> Iterator[str]:
        """Refuse."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotCollected(
            "reduced.sums is not made: the reduction of this method is Collect(), which brings single updates; read "
            "reduced.updates, or build Strategy(.., reduction=self.reduction()) to get weighted sums"
        )


def as_reduced(reduced: Reduced, reduction: Reduction) -> Reduced:
    """The input of an aggregation, in which reading what ``reduction`` does not keep raises ``NotCollected``."""
    if isinstance(reduction, Collect):
        return replace(reduced, sums=NoSums())
    return replace(reduced, updates=NoUpdates())
