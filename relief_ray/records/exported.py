"""Numbers of rounds and tags of a run's end, by the names that an MLflow store has them under."""

from __future__ import annotations

from math import isfinite

from relief_ray.records.facts import sentence
from relief_ray.records.metrics import round_scalars
from relief_ray.records.schema import RoundRecord, RunRecord

# Metrics that a clock simulates, by their names in a store, so that a chart cannot be taken for a measurement.
SIMULATED = {name: f"sim_{name}" for name in ("speedup", "round_s", "time_s", "energy_j")}

# Tags of a run's end: whom rounds lacked, and why it failed or was stopped.
_LEFT_OUT, _NOTE = "relief.left_out.", "relief.note"


def exported_scalars(record: RoundRecord, clock: str) -> dict[str, float]:
    """A round's values by their names in a store, ``sim_`` before what a clock simulated; and F1 by sensor.

    Every round says how many updates it used, as ``clients_used``: that curve returns where a client does.
    """
    values = {SIMULATED.get(name, name): value for name, value in round_scalars(record, clock).items()}
    used = float(len(record.participants) - len(record.rejected))
    sensors = record.metrics.f1_by_modality if record.metrics is not None else {}
    by_sensor = {f"f1_sensor_{sensor}": value for sensor, value in sensors.items() if isfinite(value)}
    return {**values, "clients_used": used, **by_sensor}


def ending_tags(run: RunRecord) -> dict[str, str]:
    """A tag for each client that rounds went on without, in which rounds and why, and one for why the run failed."""
    left_out = {f"{_LEFT_OUT}{entry.client}.{entry.cause}": sentence(entry) for entry in run.left_out}
    return left_out | ({_NOTE: run.note.partition("\n")[0]} if run.note else {})


def is_of_an_end(tag: str) -> bool:
    """Return whether ``ending_tags`` gave a tag its name."""
    return tag == _NOTE or tag.startswith(_LEFT_OUT)
