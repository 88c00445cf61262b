"""`relief-ray device monitor`: power and energy of this board by rail, while it works or while a command runs."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from relief_ray.devices.meter import PERIOD_S, PowerMeter, RailEnergy
from relief_ray.devices.power_sensors import board_root, model_name, power_mode, release, total_rails
from relief_ray.support.errors import UserError
from relief_ray.support.text import table

NOT_AVAILABLE = "n/a"


@dataclass(frozen=True, kw_only=True, slots=True)
class MonitorOptions:
    """Options of the command.

    Attributes:
        seconds: length of the measurement; ignored where a command is measured.
        idle_s: seconds before it that tell the idle power; 0: none.
        root: folder that holds ``sys``, ``etc``, ``proc`` and ``var``; None: this machine's.
        as_json: print JSON.
    """

    seconds: float
    idle_s: float
    root: Path | None
    as_json: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """A measurement with its surroundings; ``idle_w``: the board's mean power before it, None where not measured."""

    root: Path
    idle_w: float | None
    meter: PowerMeter
    exit_code: int | None

    def above_idle_j(self, total: RailEnergy | None) -> float | None:
        """Joules beyond what the idle board would have taken; None where either is not measured."""
        if total is None or total.energy_j is None or self.idle_w is None:
            return None
        return total.energy_j - self.idle_w * self.meter.span_s


def monitor(options: MonitorOptions, command: Sequence[str] = ()) -> int:
    """Measure, print and return the command's exit code; 0 without one. Ctrl-C ends the measurement early.

    Raises:
        UserError: the command cannot be started, or the root is no folder.
    """
    root = options.root or board_root()
    if not root.is_dir():
        raise UserError(f"--sysfs {root}: no such folder; expected one that holds sys, etc, proc and var, as / does")
    watched = _watch(root, options, command)
    print(as_data(watched) if options.as_json else as_text(watched))
    return watched.exit_code or 0


def _watch(root: Path, options: MonitorOptions, command: Sequence[str]) -> Watched:
    idle = PowerMeter(root)
    if options.idle_s and idle.rails:
        with idle:
            time.sleep(options.idle_s)
    code = None
    with PowerMeter(root) as meter:
        if command:
            code = _run(command)
        else:
            _wait(options.seconds)
    idle_total = idle.total() if idle.samples else None
    return Watched(
        root=root,
        idle_w=None if idle_total is None else idle_total.mean_w,
        meter=meter,
        exit_code=code,
    )


def _wait(seconds: float) -> None:
    try:
        time.sleep(seconds)
    except KeyboardInterrupt:
        return


def _run(command: Sequence[str]) -> int:
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as error:
        raise UserError(
            f"{command[0]}: cannot be started ({error.strerror}); expected a program, e.g. `device monitor -- python "
            "train.py`"
        ) from error
    except KeyboardInterrupt:
        return 130


def number(value: float | None, decimals: int = 2) -> str:
    """The value, or ``n/a``: what was not measured is never 0."""
    return NOT_AVAILABLE if value is None else f"{value:.{decimals}f}"


def _board_line(root: Path) -> str:
    """The board, its release and its power mode."""
    known, mode = release(root), power_mode(root)
    name = model_name(root) or ("Jetson" if known else "no Jetson")
    l4t = "" if known is None else f", L4T {known.l4t} (JetPack {known.jetpack or 'unknown'})"
    return f"{name}{l4t}, power mode {mode or NOT_AVAILABLE}"


def as_text(watched: Watched) -> str:
    """A table of the rails, and what goes with it."""
    meter, total = watched.meter, watched.meter.total()
    lines = [f"Board     {_board_line(watched.root)}"]
    if total is None:
        lines.append("Power     n/a: no power sensor (INA3221 or a relative) below sys/class/hwmon; joules are n/a too")
    else:
        rows = [_row(rail) for rail in (*meter.by_rail(), total)]
        lines += [
            f"Idle      {number(watched.idle_w)} W before the measurement",
            f"Measured  {meter.span_s:.1f} s, a sample every {1000 * PERIOD_S:.0f} ms",
            "",
            table(["rail", "mean W", "peak W", "joules", "dropped %"], rows),
            "",
            f"total = {total.sensor}; above idle: {number(watched.above_idle_j(total))} J",
        ]
        lines += [f"NOTE: {rail.label}: {rail.why}" for rail in meter.by_rail() if rail.why]
        if total.energy_j is None:
            lines.append(f"NOTE: no total: {total.why}")
    throttled, first, last = meter.was_throttled, meter.heats[0], meter.heats[-1]
    state = NOT_AVAILABLE if throttled is None else "yes" if throttled else "no"
    heats = f"{number(first.hottest_c, 1)} -> {number(last.hottest_c, 1)} °C in the hottest zone"
    lines.append(f"Heat      {heats}; slowed down: {state}")
    return "\n".join(lines)


def _row(rail: RailEnergy) -> list[str]:
    return [
        rail.label, number(rail.mean_w), number(rail.peak_w), number(rail.energy_j), number(100 * rail.dropped, 1),
    ]  # fmt: skip


def as_data(watched: Watched) -> str:
    """The same as JSON: null where the text says ``n/a``."""
    meter, total = watched.meter, watched.meter.total()
    known = release(watched.root)
    return json.dumps(
        {
            "board": model_name(watched.root),
            "l4t": None if known is None else known.l4t,
            "jetpack": None if known is None else known.jetpack,
            "power_mode": power_mode(watched.root),
            "seconds": meter.span_s,
            "period_s": PERIOD_S,
            "idle_w": watched.idle_w,
            "rails": [asdict(rail) for rail in meter.by_rail()],
            "total": None if total is None else asdict(total),
            "total_rails": [rail.label for rail in total_rails(meter.rails)],
            "above_idle_j": watched.above_idle_j(total),
            "hottest_c": [meter.heats[0].hottest_c, meter.heats[-1].hottest_c],
            "throttled": meter.was_throttled,
            "command_exit_code": watched.exit_code,
        },
        indent=1,
    )
