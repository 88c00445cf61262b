"""Plans and cells as the commands make them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from relief_ray.config.experiment import assign, read_settings
from relief_ray.studies.plan import Plan, load_spec, refuse_begun
from relief_ray.studies.spec import Cell, Spec, joined, options
from relief_ray.support.errors import Setting
from tune_configs import registry


def planned(target: str, out: Path, *settings: str, strategies: str | None = None) -> Plan:
    """The plan of `relief-ray run TARGET --set .. --strategies ..`, not yet written."""
    plan = Plan.of(load_spec(target), out, joined(options(strategies), read_settings(settings)))
    refuse_begun(plan)
    return plan


def typed(*texts: str) -> tuple[Setting, ...]:
    """Settings as they are typed behind `--set`."""
    return read_settings(texts)


def override(values: Mapping[str, object], texts: Iterable[str]) -> dict[str, object]:
    """Values of a configuration under settings as typed."""
    return assign(values, read_settings(texts))


def cells_of(made: Spec, texts: Iterable[str] = (), *, skip_unknown: bool = False) -> tuple[Cell, ...]:
    """The cells of a study under settings as typed."""
    return registry.cells_of(made, read_settings(texts), skip_unknown=skip_unknown)
