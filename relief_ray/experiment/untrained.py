"""Notices groups that participants could have trained and none has, for five rounds: such a model is half frozen.

Nothing in F1 or seconds shows it, so every method's rounds are watched. A method that leaves groups alone on purpose
says so (``Strategy.rests``); those rounds do not count.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from relief_ray.core.groups import GroupId, GroupLayout
from relief_ray.core.messages import ClientInfo

NUM_ROUNDS = 5


@dataclass(kw_only=True, slots=True)
class UntrainedGroups:
    """Counts, per group, the rounds since a participant trained it.

    A round counts for a group where at least one participant owns the sensors that it needs and none trains it.

    Attributes:
        layout: the backbone's own groups; a method may have spare modules of its own, e.g. experts.
        name: the method's name.
        missed: rounds counted by group, 0 after each round in which it was trained.
    """

    layout: GroupLayout
    name: str
    missed: dict[GroupId, int] = field(default_factory=dict)

    def add(
        self, round_: int, participants: Sequence[ClientInfo], trained: Collection[GroupId], rests: bool = False
    ) -> tuple[str, ...]:
        """Count one round; return one warning that names the groups which reached ``NUM_ROUNDS`` in it, or none.

        ``rests``: the method leaves groups untrained on purpose in this round. A group is named once, until it has
        been trained again.
        """
        self.missed.update(dict.fromkeys(trained, 0))
        if rests:
            return ()
        reach = {g.id for c in participants for g in self.layout.accessible(c.modalities)} - set(trained)
        for j in reach:
            self.missed[j] = self.missed.get(j, 0) + 1
        stale = [j for j in self.layout.ids if j in reach and self.missed[j] == NUM_ROUNDS]
        if not stale:
            return ()
        verb = "has" if len(stale) == 1 else "have"
        return (
            f"round {round_}: {', '.join(stale)} {verb} not been trained by any client for {NUM_ROUNDS} rounds, "
            f"although participants own the sensors ({self.name}); docs/allocation.md says why and what to set",
        )
