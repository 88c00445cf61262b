"""Who is behind a client number: device type and sensors, rebuilt from a run's configuration."""

from __future__ import annotations

from pydantic import ValidationError

from relief_ray.data.config import DataConfig
from relief_ray.data.spec import get_spec
from relief_ray.devices.fleet import FleetConfig, build_fleet
from relief_ray.errors import UserError
from relief_ray.messages import Fleet
from relief_ray.report.load import Loaded
from relief_ray.report.summary import is_pooled

SPLIT_NAMES = {
    "held_out_subject": "held-out subjects",
    "within_subject": "within subjects",
    "random_leaky": "random windows (LEAKY)",
}


def fleet_of(loaded: Loaded) -> Fleet | None:
    """The run's fleet; none for pooled data and for data sets or configurations that this version does not know."""
    number = len(subjects(loaded)) or max((len(c.clients) for c in loaded.rounds[-1].costs.values()), default=0)
    try:
        spec = get_spec(DataConfig.model_validate(loaded.run.config.get("data")).name)
        config = FleetConfig.model_validate(loaded.run.config.get("fleet"))
        fleet, _ = build_fleet(config, spec.names, spec.type_counts, number)
    except (UserError, ValidationError):
        return None
    return None if is_pooled(loaded) else fleet


def device_types(loaded: Loaded) -> dict[int, str]:
    """Device type by client; empty where the fleet is unknown."""
    fleet = fleet_of(loaded)
    return {} if fleet is None else {c.id: c.device for c in fleet.clients}


def subjects(loaded: Loaded) -> dict[int, str]:
    """The subject behind each client, from the coverage report."""
    rows = loaded.run.coverage.get("clients")
    found: dict[int, str] = {}
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and isinstance(client := row.get("client"), int):
            found[client] = str(row.get("subject", "?"))
    return found


def split_name(split: str) -> str:
    """The split in words."""
    return SPLIT_NAMES.get(split, split)
