"""Facts of a board that decide its speed: release, power mode, temperatures, throttling; read from files below a root.

Files are those of NVIDIA's Jetson Linux (L4T); on any other machine most facts are None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Variable that names another root than `/` for everything that is read of a board.
_ROOT_VARIABLE = "RELIEF_SYSFS"
# JetPack by the release of L4T that it brings.
_JETPACKS = {"32": "4", "35": "5", "36": "6", "38": "7"}
_MILLI = 1e-3
# Cooling devices that slow the processor down; a fan or an alert of a hot surface does not.
_SLOWING = re.compile(r"throttle|^cpufreq|^devfreq|^Processor$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """Release of Jetson Linux.

    Attributes:
        l4t: e.g. ``36.4.0``.
        jetpack: e.g. ``6``; None for a release that this program does not know.
    """

    l4t: str
    jetpack: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Heat:
    """Temperature and throttling at one moment.

    Attributes:
        hottest_c: temperature of the hottest zone that tells one, degrees Celsius; None where none does.
        slowed: names of the cooling devices that slow the processor down now; None where there are none to ask.
        num_overcurrent: over-current events since the board was started; None where it does not count them.
    """

    hottest_c: float | None
    slowed: tuple[str, ...] | None
    num_overcurrent: int | None


def was_throttled(seen: Sequence[Heat]) -> bool | None:
    """Whether a board was slowed down at one of these moments, the first one first; None where nothing tells.

    Over-current events are counted by the board, so that none is missed between two moments.
    """
    first, last = seen[0], seen[-1]
    if last.slowed is None and last.num_overcurrent is None:
        return None
    return any(heat.slowed for heat in seen) or (last.num_overcurrent or 0) > (first.num_overcurrent or 0)


def board_root() -> Path:
    """Root of the board's files: ``/``, or the folder that ``RELIEF_SYSFS`` names."""
    return Path(os.environ.get(_ROOT_VARIABLE) or "/")


def model_name(root: Path) -> str | None:
    """Name of the board in its device tree; None on machines without one."""
    return _text(root / "proc" / "device-tree" / "model")


def release(root: Path) -> Release | None:
    """Release of Jetson Linux; None on any other machine."""
    text = _text(root / "etc" / "nv_tegra_release") or ""
    match = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", text)
    if match is None:
        return None
    return Release(l4t=".".join(match.groups()), jetpack=_JETPACKS.get(match.group(1)))


def power_mode(root: Path) -> str | None:
    """Name of the power mode, as ``nvpmodel -q`` tells it; None where the board has none or it cannot be read.

    ``/var/lib/nvpmodel/status`` has its number, ``/etc/nvpmodel.conf`` the names.
    """
    chosen = re.search(r"pmode:0*(\d+)", _text(root / "var" / "lib" / "nvpmodel" / "status") or "")
    if chosen is None:
        return None
    names: dict[str, str] = dict(
        re.findall(r"<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>", _text(root / "etc/nvpmodel.conf") or "")
    )
    return names.get(chosen.group(1), f"mode {chosen.group(1)}")


def heat(root: Path) -> Heat:
    """Temperatures and throttling now."""
    sys = root / "sys" / "class"
    zones = [_number(zone / "temp") for zone in sorted(sys.glob("thermal/thermal_zone*"))]
    # A zone that is switched off refuses to be read, or tells less than absolute zero.
    temperatures_c = [_MILLI * value for value in zones if value is not None and value > -100_000]
    devices = [(_text(d / "type") or "", _number(d / "cur_state")) for d in sorted(sys.glob("thermal/cooling_device*"))]
    slowing = [(kind, state) for kind, state in devices if _SLOWING.search(kind) and state is not None]
    events = [_number(file) for file in sorted(sys.glob("hwmon/hwmon*/oc*_event_cnt"))]
    counts = [value for value in events if value is not None]
    return Heat(
        hottest_c=max(temperatures_c, default=None),
        slowed=tuple(kind for kind, state in slowing if state > 0) if slowing else None,
        num_overcurrent=sum(counts) if counts else None,
    )


def _text(file: Path) -> str | None:
    """Content of a small file; None where it is not there or cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip("\0 \n\t") or None
    except OSError:
        return None


def _number(file: Path) -> int | None:
    try:
        return int(_text(file) or "")
    except ValueError:
        return None
