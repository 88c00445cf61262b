"""Facts about a run's data that its scores rest on: windows of each part, and what each client has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import JsonValue

from relief_ray.records.base import Record
from relief_ray.records.schema import RunRecord


class ClientData(NamedTuple):
    """One client: its subject, device type and sensors (empty where they are not recorded), and training windows."""

    client: int
    subject: str
    device: str
    sensors: tuple[str, ...]
    windows: int


class DataFacts(Record):
    """Windows of a run by part, and its clients.

    Attributes:
        window_s: seconds of a window; None where neither record nor configuration has them.
        num_classes: classes of the data set.
        train: training windows of all clients together.
        validation: validation windows of all clients together.
        test: test windows, on which F1 rests.
        clients: in the order of their ids.
        lacking: people who take part and lack sensors, each with those.
    """

    window_s: float | None
    num_classes: int
    train: int
    validation: int
    test: int
    clients: tuple[ClientData, ...]
    lacking: tuple[tuple[str, tuple[str, ...]], ...] = ()


def data_facts(run: RunRecord) -> DataFacts | None:
    """Facts from the coverage report and fleet of a record; None where it has no windows."""
    coverage, section = run.coverage, run.config.get("data")
    classes = coverage.get("classes")
    if not isinstance(classes, list) or "test" not in coverage:
        return None
    set_s = section.get("window_s") if isinstance(section, dict) else None
    window_s = coverage.get("window_s", set_s)
    return DataFacts(
        window_s=float(window_s) if isinstance(window_s, int | float) else None,
        num_classes=len(classes),
        train=_count(coverage.get("train")),
        validation=_count(coverage.get("validation")),
        test=_count(coverage.get("test")),
        clients=tuple(_clients(run)),
        lacking=_lacking(coverage.get("lacking")),
    )


def _clients(run: RunRecord) -> Iterator[ClientData]:
    devices = {row["id"]: row for row in _rows(run.fleet.get("clients"))}
    for row in _rows(run.coverage.get("clients")):
        device, client = devices.get(row.get("client"), {}), row.get("client")
        sensors = device.get("modalities")
        yield ClientData(
            client=client if isinstance(client, int) else 0,
            subject=str(row.get("subject", "")),
            device=str(device.get("device", "")),
            sensors=tuple(map(str, sensors)) if isinstance(sensors, list) else (),
            windows=_count(row.get("train")),
        )


def _rows(value: JsonValue) -> list[dict[str, JsonValue]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _lacking(value: JsonValue) -> tuple[tuple[str, tuple[str, ...]], ...]:
    people = value.items() if isinstance(value, dict) else ()
    return tuple((subject, tuple(map(str, names))) for subject, names in people if isinstance(names, list))


def _count(value: JsonValue) -> int:
    """Sum of the windows of all classes."""
    return sum(number for number in value if isinstance(number, int)) if isinstance(value, list) else 0
