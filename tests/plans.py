"""Plans and cells as the commands make them."""

from pathlib import Path

from relief_ray.config.experiment import read_settings
from relief_ray.studies import spec
from relief_ray.studies.plan import Plan, load_spec, refuse_begun
from relief_ray.studies.spec import Cell, Spec, joined, options


def planned(target: str, out: Path, *settings: str, strategies: str | None = None) -> Plan:
    """The plan of `relief-ray run TARGET --set .. --strategies ..`, not yet written."""
    plan = Plan.of(load_spec(target), out, joined(options(strategies), read_settings(settings)))
    refuse_begun(plan)
    return plan


def cells_of(made: Spec, settings: list[str]) -> tuple[Cell, ...]:
    """The cells of a study under settings as typed."""
    return spec.cells(made, read_settings(settings))
