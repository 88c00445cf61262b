"""The built-in clocks by name, and users' own by import path: a built-in clock is one class and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from relief_ray.devices.time import ClockContext, FlopProportional, Measured, SplitNaive, SplitReuse, TimeModel
from relief_ray.plugins.blame import call_users, fault_text
from relief_ray.plugins.contract import kind_fault
from relief_ray.plugins.load import import_path, is_path, load_kind
from relief_ray.support.errors import UserCodeError, UserError, nearest, shown

_KEY = "costs.planning_time"
_BUILT_IN: tuple[type[TimeModel], ...] = (
    FlopProportional,
    SplitNaive,
    SplitReuse,
    Measured,
)

CLOCKS: Mapping[str, type[TimeModel]] = MappingProxyType({kind.name: kind for kind in _BUILT_IN})


def _find_clock(name: str) -> type[TimeModel] | TimeModel:
    """The class of a clock by name, or the class or instance at a user's import path.

    Raises:
        UserError: the name is unknown, or nothing usable is at the import path.
    """
    if name in CLOCKS:
        return CLOCKS[name]
    if not is_path(name):
        *others, last = (repr(known) for known in CLOCKS)
        raise UserError(
            f"{_KEY} = {shown(name)}: expected {', '.join(others)} or {last}{nearest(name, CLOCKS)}; "
            "one of your own goes by its import path, my.module:MyClock"
        )
    clock = load_kind(name, _KEY, TimeModel)
    if (clock if isinstance(clock, type) else type(clock)).times is TimeModel.times:
        raise UserError(f"{_KEY} = {name!r}: the class has no times(device, load); write that method")
    return clock


def clock_name(name: str) -> str:
    """The name that records have for a configured clock: its own, or its import path without ``.py``.

    Raises:
        UserError: there is no such clock.
    """
    _find_clock(name)
    return import_path(name)


def _build_clock(name: str, context: ClockContext) -> TimeModel:
    """One clock of a run.

    Raises:
        UserError: it needs a device profile and the run has none.
        UserCodeError: a user's ``build`` raised an error, or gave something that is no clock; file and line are named.
    """
    clock = _find_clock(name)
    if clock.needs_profile and context.profile is None:
        raise UserError(f"{_KEY} = {name!r} needs a device profile; set costs.profile=FILE")
    if not isinstance(clock, type):
        return clock
    built = call_users(clock.build, context)
    if fault := kind_fault(built, TimeModel):
        raise UserCodeError(fault_text(clock.build, f"{clock.__name__}.build {fault}"))
    return built


def build_clocks(context: ClockContext, planning: str) -> dict[str, TimeModel]:
    """The clocks that a run records: all built-in ones that can be built, and the one that it plans with."""
    names = [name for name, kind in CLOCKS.items() if context.profile is not None or not kind.needs_profile]
    return {name: _build_clock(name, context) for name in dict.fromkeys((*names, planning))}


def restore_clock(name: str, parameters: object) -> TimeModel:
    """A clock with the parameters that a run recorded.

    Raises:
        UserError: there is no such clock.
        ValidationError: the parameters do not fit.
    """
    clock = _find_clock(name)
    return (clock if isinstance(clock, type) else type(clock)).model_validate(parameters)
