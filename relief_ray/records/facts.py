"""Facts that records hold beside scores: the data of a run, and the clients that its rounds went on without."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from relief_ray.core.messages import ClientId, Fleet
from relief_ray.records.schema import LeftOutFacts, LeftOutRecord, Record, RoundRecord, RunRecord
from relief_ray.support.errors import Cause, LeftOut, counted, spans


class ClientData(NamedTuple):
    """One client: its subject, device type, sensors and training windows."""

    client: int
    subject: str
    device: str
    sensors: tuple[str, ...]
    windows: int


class DataFacts(Record):
    """Windows of a run by part, and its clients.

    Attributes:
        window_s: seconds of a window.
        num_classes: classes of the data set.
        train: training windows of all clients together.
        validation: validation windows of all clients together.
        test: test windows, on which F1 rests.
        clients: in the order of their ids.
        lacking: people who take part and lack sensors, each with those.
    """

    window_s: float
    num_classes: int
    train: int
    validation: int
    test: int
    clients: tuple[ClientData, ...]
    lacking: tuple[tuple[str, tuple[str, ...]], ...] = ()


def data_facts(run: RunRecord) -> DataFacts:
    """Facts from the coverage report and fleet of a record."""
    coverage: Any = run.coverage
    fleet: Any = run.fleet
    # Pooled data are one client's in the fleet and each person's in the report.
    known = {row["id"]: row for row in fleet.get("clients", ())}
    return DataFacts(
        window_s=coverage["window_s"],
        num_classes=len(coverage["classes"]),
        train=sum(coverage["train"]),
        validation=sum(coverage["validation"]),
        test=sum(coverage["test"]),
        clients=tuple(
            ClientData(
                client=row["client"],
                subject=str(row["subject"]),
                device=client.get("device", ""),
                sensors=tuple(client.get("modalities", ())),
                windows=sum(row["train"]),
            )
            for row in coverage["clients"]
            for client in (known.get(row["client"], {}),)
        ),
        lacking=tuple((subject, tuple(names)) for subject, names in coverage.get("lacking", {}).items()),
    )


_IN_WORDS: dict[Cause, str] = {
    "timeout": "no answer in time",
    "lost": "its process or node was lost",
    "update": "its update was refused",
}


@dataclass(kw_only=True, slots=True)
class LeftOutLog:
    """Collects who was left out of a run's rounds.

    Attributes:
        entries: by client and cause.
        last: clients that the last round went on without.
    """

    entries: dict[tuple[ClientId, Cause], LeftOutRecord] = field(default_factory=dict)
    last: Mapping[ClientId, LeftOutFacts] = field(default_factory=dict)

    def facts(self, round_: int, rejected: Mapping[ClientId, LeftOut], fleet: Fleet) -> dict[ClientId, LeftOutFacts]:
        """Facts on the clients that the next round, ``round_``, goes on without."""
        facts = {}
        for client, left in rejected.items():
            before = self.last.get(client)
            since = before.since if before is not None and before.cause == left.cause else round_
            facts[client] = LeftOutFacts(device=fleet[client].device, cause=left.cause, since=since)
        return facts

    def add(self, record: RoundRecord) -> None:
        """Take in a round that comes after all so far."""
        self.last = record.left_out
        for client, left in sorted(record.left_out.items()):
            self._enter(record.round, client, left.device, LeftOut(cause=left.cause, why=record.rejected[client]))

    def with_void(self, round_: int, rejected: Mapping[ClientId, LeftOut], fleet: Fleet) -> LeftOutLog:
        """Return a log that has a void round too, and the clients it lacked; this one may see the round once more."""
        log = LeftOutLog(entries=dict(self.entries), last=self.last)
        for client, left in sorted(rejected.items()):
            log._enter(round_, client, fleet[client].device, left)
        return log

    def _enter(self, round_: int, client: ClientId, device: str, left: LeftOut) -> None:
        before = self.entries.get((client, left.cause))
        rounds = (*(before.rounds if before else ()), round_)
        self.entries[client, left.cause] = LeftOutRecord(
            client=client, device=device, cause=left.cause, rounds=rounds, why=left.why
        )

    def summary(self) -> tuple[LeftOutRecord, ...]:
        """One entry per client and cause, in client order."""
        return tuple(self.entries[key] for key in sorted(self.entries))


def left_out_of(rounds: Iterable[RoundRecord]) -> tuple[LeftOutRecord, ...]:
    """Entries on who was left out of these rounds, in client order."""
    log = LeftOutLog()
    for record in rounds:
        log.add(record)
    return log.summary()


def sentence(entry: LeftOutRecord) -> str:
    """``client 6 (type C) was left out of 3 rounds (4-6): no answer in time (the last reason in full)``."""
    return (
        f"client {entry.client} (type {entry.device}) was left out of {counted(len(entry.rounds), 'round')} "
        f"({spans(entry.rounds)}): {_IN_WORDS[entry.cause]} ({entry.why})"
    )


def summary_line(record: RoundRecord) -> str:
    """``7/8 clients``: number of clients whose updates were used, of those that took part."""
    number = len(record.participants)
    return f"{number - len(record.rejected)}/{number} clients"


@dataclass(kw_only=True, slots=True)
class Alerts:
    """Reports the warnings of a run's rounds in order; one object per run and process.

    Attributes:
        last: clients that the last round heard of went on without; nobody before the first, which names all it lacks.
    """

    last: Mapping[ClientId, LeftOutFacts] = field(default_factory=dict)

    def of(self, record: RoundRecord) -> list[str]:
        """A line for each client that begins to be missing, or for another cause, and the round's own warnings."""
        before, self.last = self.last, record.left_out
        missing = [
            f"{_place(record.round, client, left)}: {_IN_WORDS[left.cause]} ({record.rejected[client]})"
            for client, left in sorted(record.left_out.items())
            if client not in before or before[client].cause != left.cause
        ]
        return [*missing, *record.warnings]


def _place(round_: int, client: ClientId, left: LeftOutFacts) -> str:
    """``round 5: without client 3 (type A)``; ``round 5: still without client 3 (type A), since round 2``."""
    who = f"without client {client} (type {left.device})"
    return f"round {round_}: " + (who if left.since == round_ else f"still {who}, since round {left.since}")


def warnings_of(run: RunRecord, rounds: Sequence[RoundRecord], who: str) -> tuple[str, ...]:
    """Warnings about a run's data, of its start and of its rounds, and whom its rounds went on without."""
    missing = (f"{who}: {sentence(entry)}" for entry in left_out_of(rounds))
    return (*run.data_notes, *run.warnings, *(w for r in rounds for w in r.warnings), *missing)
