"""Which mode `relief-ray run` and `resume` choose where none is named: from how clients are placed, and `--jobs`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from relief_ray.studies.plan import load_spec


def placed(settings: Sequence[str], jobs: int) -> list[str]:
    """The settings, with the mode that follows from them unless the user names one.

    Clients that are placed by device type are an actor each; several runs at a time are a process each, and on a
    cluster that is joined ``auto`` gives each of them a host on any node, where there are several.
    """
    if _names_mode(settings):
        return list(settings)
    if _is_typed(settings):
        return ["runtime.mode=actors", *settings]
    is_joined = "RAY_ADDRESS" in os.environ or any(setting.startswith("runtime.address=") for setting in settings)
    mode = "auto" if is_joined else "inline"
    return [*([] if jobs == 1 else [f"runtime.mode={mode}"]), *settings]


def overruled_mode(target: str, settings: Sequence[str], jobs: int) -> str | None:
    """The mode of the preset or file that ``placed`` replaces because clients are placed by type; None: none is."""
    if _names_mode(settings) or not _is_typed(settings):
        return None
    runtime = load_spec(target).settings.get("runtime")
    mode = runtime.get("mode", "auto") if isinstance(runtime, dict) else "auto"
    return mode if mode in ("packed", "inline") else "a process for each run" if jobs > 1 else None


def _names_mode(settings: Sequence[str]) -> bool:
    return any(setting.startswith("runtime.mode=") for setting in settings)


def _is_typed(settings: Sequence[str]) -> bool:
    """True where settings place clients by device type: by name, or as devices of a physical run."""
    return _last("runtime.placement", settings) == "typed" or _is_physical(settings)


def _is_physical(settings: Sequence[str]) -> bool:
    return _last("runtime.physical", settings).lower() in ("true", "yes", "on")


def cause(settings: Sequence[str]) -> str:
    """Return the setting because of which clients are placed by device type."""
    return "runtime.physical=true" if _is_physical(settings) else "runtime.placement=typed"


def _last(key: str, settings: Sequence[str]) -> str:
    """The value that a key has in the end; empty where no setting names it."""
    return next((s.partition("=")[2] for s in reversed(settings) if s.partition("=")[0] == key), "")
