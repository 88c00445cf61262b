"""Power rails of a board, read from the files that Linux shows for its current sensors (INA3221 and relatives).

Three layouts are known: ``hwmon`` with a voltage (mV) and a current (mA) per channel (JetPack 5 and later), ``hwmon``
with one power (uW) per sensor (INA238), and the older ``iio`` with a power (mW) per channel (JetPack 4). What cannot be
read is None with a reason, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# Rails that carry a whole board's or module's input. The names are NVIDIA's, from Orin NX, Thor and Nano.
_INPUT_RAILS = ("VDD_IN", "VIN", "POM_5V_IN")
# Label of a channel that is not connected.
_UNUSED = ("", "NC")
_CHANNELS = range(1, 4)
_MILLI, _MICRO = 1e-3, 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
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

    def read(self) -> Reading:
        """Read the rail once. A negative product is refused: a sensor that is off by that much measures nothing."""
        numbers = []
        for file in self.files:
            try:
                numbers.append(int(file.read_text(encoding="ascii")))
            except (OSError, ValueError) as error:
                reason = (error.strerror if isinstance(error, OSError) else None) or "not a whole number"
                return Reading(watts=None, why=f"{file.name}: {reason}")
        watts = self.unit_w
        for number in numbers:
            watts *= number
        if watts < 0:
            return Reading(watts=None, raw=tuple(numbers), why=f"negative: {watts:.3g} W")
        return Reading(watts=watts, raw=tuple(numbers))

    @property
    def is_input(self) -> bool:
        """True for a rail that carries the whole board's input."""
        return self.label in _INPUT_RAILS


def find_rails(root: Path) -> tuple[Rail, ...]:
    """All labelled rails below ``root``, which holds ``sys``; none where the machine has no such sensor."""
    sys = root / "sys"
    folders = [*_sorted(sys, "class/hwmon/hwmon*"), *_sorted(sys, "bus/i2c/drivers/ina*/*/hwmon/hwmon*")]
    rails: dict[tuple[Path, str], Rail] = {}
    for folder in folders:
        if (_text(folder / "name") or "").startswith("ina"):
            rails |= {(folder.resolve(), rail.label): rail for rail in _hwmon(folder, sys)}
    for folder in _sorted(sys, "bus/i2c/drivers/ina3221x/*/iio*device*"):
        rails |= {(folder.resolve(), rail.label): rail for rail in _iio(folder, sys)}
    return tuple(rails.values())


def total_rails(rails: Sequence[Rail]) -> tuple[Rail, ...]:
    """The rails whose sum is the board's power: its input rail, or all of them where it has none."""
    inputs = [rail for rail in rails if rail.is_input]
    return tuple(inputs[:1] or rails)


def _hwmon(folder: Path, sys: Path) -> Iterator[Rail]:
    """Rails of a ``hwmon`` folder: a channel each, or the sensor as a whole."""
    sensor = str(folder.relative_to(sys))
    labels = {n: label for n in _CHANNELS if (label := _label(folder / f"in{n}_label")) not in (None, *_UNUSED)}
    for number, label in labels.items():
        if _text(folder / f"in{number}_enable") != "0":
            files = folder / f"in{number}_input", folder / f"curr{number}_input"
            yield Rail(label=str(label), sensor=sensor, files=files, unit_w=_MILLI * _MILLI)
    whole = _label(folder / "label")
    if not labels and whole not in (None, *_UNUSED):
        yield Rail(label=str(whole), sensor=sensor, files=(folder / "power1_input",), unit_w=_MICRO)


def _iio(folder: Path, sys: Path) -> Iterator[Rail]:
    """Rails of an ``iio`` folder, whose channels count from 0."""
    for number in range(len(_CHANNELS)):
        label = _label(folder / f"rail_name_{number}")
        if label not in (None, *_UNUSED):
            files = (folder / f"in_power{number}_input",)
            yield Rail(label=str(label), sensor=str(folder.relative_to(sys)), files=files, unit_w=_MILLI)


def _sorted(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern))


def _label(file: Path) -> str | None:
    """A rail's label; None where there is no such channel. One that may not be read still stands for a rail."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip("\0 \n\t")
    except FileNotFoundError:
        return None
    except OSError:
        return f"{file.name} (not readable)"


def _text(file: Path) -> str | None:
    """Content of a small file; None where it is not there or cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip("\0 \n\t")
    except OSError:
        return None
