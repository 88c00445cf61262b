"""Facts on the machine, the software and the commit of a measurement."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from relief_ray.profiling.profile import torch_build
from relief_ray.records.identity import commit, machine_facts

Figures = dict[str, "float | int | str | bool | None"]
ROOT = Path(__file__).resolve().parents[2]
# A load above it before the first figure means that somebody else was computing.
QUIET_LOAD = 0.5


def facts() -> Figures:
    """The machine, the versions, the commit and the date; nothing that names the machine's owner or its place."""
    figures = machine_facts()
    return {
        "machine_cpu": figures.cpu,
        "machine_cores": figures.num_cores,
        "machine_system": figures.system,
        "python": figures.python,
        "torch": figures.torch,
        "torch_build": torch_build(),
        "threads": figures.num_threads,
        "niceness": os.nice(0),
        "ray": version("ray"),
        "commit": commit() or "unknown",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "load_before": load(),
    }


def load() -> float | None:
    """Processes that wanted a core in the last minute, on average."""
    try:
        return float(Path("/proc/loadavg").read_text().split()[0])
    except OSError:
        return None
