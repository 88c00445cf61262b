"""Power rails of a board, read from the files that Linux shows for its current sensors (INA3221 and relatives).

Three layouts are known: ``hwmon`` with a voltage (mV) and a current (mA) per channel (JetPack 5 and later), ``hwmon``
with one power (uW) per sensor (INA238), and the older ``iio`` with a power (mW) per channel (JetPack 4). What cannot be
read is None with a reason, never 0.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from relief_ray.support.errors import clipped
from relief_ray.support.files import read_whole
from relief_ray.support.process import number_in, text_in

# Facts of a board that decide its speed: release, power mode, temperatures, throttling; read from files below a root.
#
# Files are those of NVIDIA's Jetson Linux (L4T); on any other machine most facts are None.


# Variable that names another root than `/` for everything that is read of a board.
_ROOT_VARIABLE = "RELIEF_SYSFS"
# JetPack by the release of L4T that it brings.
_JETPACKS = {"32": "4", "35": "5", "36": "6", "38": "7", "39": "7"}
_MILLI = 1e-3
# What lies beyond these was read of a broken sensor, or in another unit.
_MOST_C, _MOST_W = 200.0, 10_000.0
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
        odd: what zones tell that no board can have, which is not counted, by zone.
    """

    hottest_c: float | None
    slowed: tuple[str, ...] | None
    num_overcurrent: int | None
    odd: tuple[str, ...] = ()


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
    return text_in(root / "proc" / "device-tree" / "model") or None


def release(root: Path) -> Release | None:
    """Release of Jetson Linux; None on any other machine."""
    match = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", text_in(root / "etc" / "nv_tegra_release"))
    if match is None:
        return None
    return Release(l4t=".".join(match.groups()), jetpack=_JETPACKS.get(match.group(1)))


def power_mode(root: Path) -> str | None:
    """Name of the power mode, as ``nvpmodel -q`` tells it; None where the board has none or it cannot be read.

    ``/var/lib/nvpmodel/status`` has its number, ``/etc/nvpmodel.conf`` the names.
    """
    chosen = re.search(r"pmode:0*(\d+)", text_in(root / "var" / "lib" / "nvpmodel" / "status"))
    if chosen is None:
        return None
    names: dict[str, str] = dict(
        re.findall(r"<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>", text_in(root / "etc/nvpmodel.conf"))
    )
    return names.get(chosen.group(1), f"mode {chosen.group(1)}")


def heat(root: Path) -> Heat:
    """Temperatures and throttling now."""
    sys = root / "sys" / "class"
    # A zone that is switched off refuses to be read, or tells less than absolute zero.
    told_c = {
        zone.name: _MILLI * value
        for zone in sorted(sys.glob("thermal/thermal_zone*"))
        if (value := number_in(zone / "temp")) is not None and value > -100_000
    }
    devices = [(text_in(d / "type"), number_in(d / "cur_state")) for d in sorted(sys.glob("thermal/cooling_device*"))]
    slowing = [(kind, state) for kind, state in devices if _SLOWING.search(kind) and state is not None]
    counters = sys.glob("hwmon/hwmon*/oc*_event_cnt")
    counts = [value for file in counters if (value := number_in(file)) is not None]
    return Heat(
        hottest_c=max((value_c for value_c in told_c.values() if value_c <= _MOST_C), default=None),
        slowed=tuple(kind for kind, state in slowing if state > 0) if slowing else None,
        num_overcurrent=sum(counts) if counts else None,
        odd=tuple(f"{name}: {c:.0f} °C, more than any board's" for name, c in told_c.items() if c > _MOST_C),
    )


# Rails that carry a whole board's or module's input. The names are NVIDIA's, from Orin NX, Thor and Nano.
_INPUT_RAILS = ("VDD_IN", "VIN", "POM_5V_IN")
# Rails that another one feeds: its power is in that one's. NVIDIA, Jetson Linux Developer Guide r36, AGX Orin.
_FED_BY = {"VDDQ_VDD2_1V8AO": "VIN_SYS_5V0"}
# Label of a channel that is not connected.
_UNUSED = "NC"
_CHANNELS = range(1, 4)
_MICRO = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class RailReading:
    """One look at a rail.

    Attributes:
        watts: its power; None where it cannot be read or is no power.
        raw: the files' numbers as they stood there.
        why: the reason for None.
    """

    watts: float | None
    raw: tuple[int, ...] = ()
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rail:
    """A rail with its files.

    Attributes:
        label: its name on the board, e.g. ``VDD_IN``.
        sensor: folder of its sensor, for messages.
        files: files whose product is its power.
        unit_w: watts of one unit of that product.
    """

    label: str
    sensor: str
    files: tuple[Path, ...]
    unit_w: float

    def read(self) -> RailReading:
        """Read the rail once. A product that no board has is refused: a sensor that is so far off measures nothing."""
        numbers = []
        for file in self.files:
            try:
                numbers.append(int(read_whole(file).decode("ascii")))
            except (OSError, ValueError) as error:
                reason = (error.strerror if isinstance(error, OSError) else None) or "not a whole number"
                return RailReading(watts=None, why=f"{file.name}: {reason}")
        watts = prod(numbers, start=self.unit_w)
        fault = "negative" if watts < 0 else "more than any board's" if watts > _MOST_W else ""
        if fault:
            return RailReading(watts=None, raw=tuple(numbers), why=f"{fault}: {watts:.3g} W")
        return RailReading(watts=watts, raw=tuple(numbers))


def find_rails(root: Path) -> tuple[Rail, ...]:
    """All labelled rails below ``root``, which holds ``sys``; none where the machine has no such sensor.

    Of several with one label the second is called ``VDD_IN (2)``.
    """
    sys = root / "sys"
    folders = [*sorted(sys.glob("class/hwmon/hwmon*")), *sorted(sys.glob("bus/i2c/drivers/ina*/*/hwmon/hwmon*"))]
    found = [rail for folder in folders if text_in(folder / "name").startswith("ina") for rail in _hwmon(folder, sys)]
    found += [rail for f in sorted(sys.glob("bus/i2c/drivers/ina3221x/*/iio*device*")) for rail in _iio(f, sys)]
    rails, number = list({rail.files[0].resolve(): rail for rail in found}.values()), Counter[str]()
    for place, rail in enumerate(rails):
        number[rail.label] += 1
        if number[rail.label] > 1:
            rails[place] = replace(rail, label=f"{rail.label} ({number[rail.label]})")
    return tuple(rails)


def total_rails(rails: Sequence[Rail]) -> tuple[Rail, ...]:
    """The rails whose sum is the board's power: its input rail, or where it has none all that no other one feeds."""
    inputs = [rail for rail in rails if rail.label in _INPUT_RAILS]
    labels = {rail.label for rail in rails}
    return tuple(inputs[:1] or [rail for rail in rails if _FED_BY.get(rail.label.partition(" (")[0]) not in labels])


def _hwmon(folder: Path, sys: Path) -> Iterator[Rail]:
    """Rails of a ``hwmon`` folder: a channel each, or the sensor as a whole."""
    sensor = str(folder.relative_to(sys))
    labels = {n: label for n in _CHANNELS if (label := _label(folder / f"in{n}_label"))}
    for number, label in labels.items():
        if text_in(folder / f"in{number}_enable") != "0":
            files = folder / f"in{number}_input", folder / f"curr{number}_input"
            yield Rail(label=label, sensor=sensor, files=files, unit_w=_MILLI * _MILLI)
    if not labels and (whole := _label(folder / "label")):
        yield Rail(label=whole, sensor=sensor, files=(folder / "power1_input",), unit_w=_MICRO)


def _iio(folder: Path, sys: Path) -> Iterator[Rail]:
    """Rails of an ``iio`` folder, whose channels count from 0."""
    for number in range(len(_CHANNELS)):
        if label := _label(folder / f"rail_name_{number}"):
            files = (folder / f"in_power{number}_input",)
            yield Rail(label=label, sensor=str(folder.relative_to(sys)), files=files, unit_w=_MILLI)


def _label(file: Path) -> str:
    """A rail's label; empty where no channel is connected. One that may not be read still stands for a rail."""
    try:
        label = read_whole(file).decode("utf-8", errors="replace").strip("\0 \n\t")
        return "" if label == _UNUSED else clipped(label)
    except FileNotFoundError:
        return ""
    except OSError:
        return f"{file.name} (not readable)"
