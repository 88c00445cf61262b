"""`relief-ray device profile`: measures this machine's seconds per stage of a backbone, for `costs.profile`."""

from __future__ import annotations

import json
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Literal

from actors.cluster import GCS_PORT
from actors.runtime.tokens import use_token
from actors.terminal.exit_codes import BAD_INPUT, Stopped
from relief_ray.config.experiment import override, parse
from relief_ray.devices.fleet import TYPES
from relief_ray.devices.meter import PERIOD_S, PowerMeter, RailEnergy
from relief_ray.devices.power_sensors import board_root, find_rails, heat, model_name, power_mode, release, total_rails
from relief_ray.devices.throughput import Pace
from relief_ray.devices.time import Profile, profile_text
from relief_ray.models.registry import BACKBONES, backbone_name
from relief_ray.profiling.profile import profile_device
from relief_ray.support.errors import UserError, counted
from relief_ray.support.files import cache_root, disk_errors, write_atomic
from relief_ray.support.text import pip, si, table, typed, wrapped

# `relief-ray device doctor`: is this machine ready to be a device of a cluster? A line for each part, with the fix.


Status = Literal["ok", "warning", "failed"]
_GIB = 2**30
# torch and Ray unpacked take some 5 GiB; parsed data and logs need some more.
_LEAST_GIB, _SHORT_GIB = 1.0, 5.0
_TOO_OLD = ("4", "5")
_KNOWN = ("6", "7")
_KNOCKS, _KNOCK_S = 5, 5.0

# Side of the matrices of a trial kernel.
_SIDE = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One part: ``seen`` says what was found, ``fix`` what to do where it is not ok."""

    part: str
    status: Status
    seen: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchFacts:
    """torch as it was seen here.

    Attributes:
        version: its version; empty where it cannot be imported.
        build: ``CUDA 12.6``, or ``without CUDA``.
        gpu: name of the GPU that it sees; empty without one.
        arch: compute capability of that GPU, ``sm_87``.
        arch_list: architectures for which torch has kernels.
        ran: the kernel that was run, in words.
        fault: why it could not be imported, or why the kernel failed.
    """

    version: str = ""
    build: str = ""
    gpu: str = ""
    arch: str = ""
    arch_list: tuple[str, ...] = ()
    ran: str = ""
    fault: str = ""


def torch_here() -> TorchFacts:
    """Import torch and run a matrix product on the GPU, or on the CPU where it sees none."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return TorchFacts(fault=f"cannot be imported ({error})")
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    device, gpu, arch, arch_list = "cpu", "", "", tuple[str, ...]()
    try:
        if torch.cuda.is_available():
            device, gpu = "cuda", torch.cuda.get_device_name()
            arch, arch_list = "sm_{}{}".format(*torch.cuda.get_device_capability()), tuple(torch.cuda.get_arch_list())
        ones = torch.ones(_SIDE, _SIDE, device=device)
        total = float((ones @ ones).sum())
        fault = "" if total == _SIDE**3 else f"a matrix product gave {total:g}, expected {_SIDE**3}"
    except RuntimeError as error:
        fault = f"a matrix product failed ({str(error).strip().splitlines()[0]})"
    ran = "" if fault else f"a matrix product ran on the {'GPU' if gpu else 'CPU'}"
    return TorchFacts(
        version=str(torch.__version__), build=build, gpu=gpu, arch=arch, arch_list=arch_list, ran=ran, fault=fault
    )


def doctor(root: Path | None, address: str | None, token: Path | None, as_json: bool) -> None:
    """Check everything and print it.

    Raises:
        Stopped: a part has failed, with exit code 2.
        UserError: the root is no folder.
    """
    place = root or board_root()
    if not place.is_dir():
        raise UserError(f"--sysfs {place}: no such folder; expected one that holds sys, etc, proc and var, as / does")
    checks = checks_of(place, torch_here(), address, token)
    failed = [check.part for check in checks if check.status == "failed"]
    shown = {"ready": not failed, "checks": [asdict(check) for check in checks]}
    print(json.dumps(shown, indent=1) if as_json else _checks_text(checks))
    if failed:
        raise Stopped(BAD_INPUT, f"not ready: {', '.join(failed)}")


def checks_of(root: Path, torch: TorchFacts, address: str | None = None, token: Path | None = None) -> list[Check]:
    """All parts in order; ``torch``: what torch was seen to do here, ``token``: file of the token of ``address``."""
    jetson = release(root) is not None
    return [
        _release(root),
        _python(),
        _ray(),
        _torch(torch, jetson),
        _power_mode(root, jetson),
        *_rails(root, jetson),
        _heat(root, jetson),
        _disk(cache_root()),
        _head(address, token),
    ]


def _release(root: Path) -> Check:
    known = release(root)
    if known is None:
        return Check(part="board", status="ok", seen=f"no Jetson: {platform.system()} on {platform.machine()}")
    seen = f"{model_name(root) or 'a Jetson'}, L4T {known.l4t}, JetPack {known.jetpack or 'unknown'}"
    if known.jetpack in _TOO_OLD:
        fix = "flash JetPack 6 or 7: this one has an older Python than Ray needs"
        return Check(part="board", status="failed", seen=seen, fix=fix)
    if known.jetpack not in _KNOWN:
        return Check(
            part="board", status="warning", seen=seen, fix="expected JetPack 6 or 7; others were never looked at"
        )
    return Check(part="board", status="ok", seen=seen)


def _python() -> Check:
    """Python and its environment; the head's minor version is compared under ``head``."""
    return Check(part="Python", status="ok", seen=f"{platform.python_version()} in {sys.prefix}")


def _ray() -> Check:
    try:
        return Check(part="Ray", status="ok", seen=version("ray"))
    except PackageNotFoundError:
        return Check(part="Ray", status="failed", seen="not installed", fix="in a checkout: sh bootstrap.sh edge")


def _torch(torch: TorchFacts, jetson: bool) -> Check:
    """torch, its GPU and a kernel that was run there."""
    if not torch.version:
        return Check(part="torch", status="failed", seen=torch.fault, fix=_VENDOR if jetson else pip("torch"))
    if not torch.gpu:
        seen = f"{torch.version} ({torch.build}), no GPU"
        if jetson:
            return Check(part="torch", status="failed", seen=f"{seen} on a Jetson", fix=_VENDOR)
        return Check(part="torch", status="failed" if torch.fault else "ok", seen=f"{seen}; {torch.ran}",
                     fix="install torch again" if torch.fault else "")  # fmt: skip
    seen = f"{torch.version} ({torch.build}), {torch.gpu} ({torch.arch}), built for {' '.join(torch.arch_list)}"
    if torch.fault:
        return Check(part="torch", status="failed", seen=f"{seen}; {torch.fault}", fix=_VENDOR)
    if torch.arch not in torch.arch_list:
        fix = f"a kernel ran all the same; a torch that is built for {torch.arch} starts faster"
        return Check(part="torch", status="warning", seen=f"{seen}; {torch.ran}", fix=fix)
    return Check(part="torch", status="ok", seen=f"{seen}; {torch.ran}")


_VENDOR = (
    "install NVIDIA's torch for this JetPack (docs/jetson.md), then: sh bootstrap.sh edge; the user needs the groups "
    "video and render"
)


def _power_mode(root: Path, jetson: bool) -> Check:
    mode = power_mode(root)
    if mode is not None:
        return Check(part="power mode", status="ok", seen=mode)
    if not jetson:
        return Check(part="power mode", status="ok", seen="n/a: this machine has none")
    fix = "see `sudo nvpmodel -q`; boards that shall be compared need the same one"
    return Check(part="power mode", status="warning", seen="n/a: /var/lib/nvpmodel/status tells none", fix=fix)


def _rails(root: Path, jetson: bool) -> Iterator[Check]:
    rails = find_rails(root)
    if not rails:
        seen = "n/a: no power sensor; so are joules"
        fix = "look for ina3221 in sys/class/hwmon; without it plug a meter between" if jetson else ""
        yield Check(part="power rails", status="warning" if jetson else "ok", seen=seen, fix=fix)
        return
    readings = {rail.label: rail.read() for rail in rails}
    seen = ", ".join(f"{name} {'n/a' if r.watts is None else f'{r.watts:.2f} W'}" for name, r in readings.items())
    chosen = total_rails(rails)
    total = f"; total = {' + '.join(rail.label for rail in chosen)}"
    bad = {name: r.why for name, r in readings.items() if r.watts is None}
    needed = [rail.label for rail in chosen if rail.label in bad]
    if not bad:
        yield Check(part="power rails", status="ok", seen=seen + total)
        return
    fix = "; ".join(f"{name}: {why}" for name, why in bad.items())
    fix += (
        f". Without {' and '.join(needed)} a run's joules are n/a" if needed else ". A run's joules need none of them"
    )
    if any("ermission" in why for why in bad.values()):
        fix += "; let this user read the files: chmod a+r, or the group that owns them"
    yield Check(part="power rails", status="warning", seen=seen + total, fix=fix)


def _heat(root: Path, jetson: bool) -> Check:
    now = heat(root)
    if now.hottest_c is None:
        return Check(part="heat", status="warning" if jetson else "ok", seen="n/a: no zone tells a temperature",
                     fix="look for thermal zones in sys/class/thermal" if jetson else "")  # fmt: skip
    seen = f"hottest zone {now.hottest_c:.1f} °C"
    if now.slowed:
        fix = "cool it, or take a lower power mode, before anything is timed"
        return Check(part="heat", status="warning", seen=f"{seen}, slowed down by {', '.join(now.slowed)}", fix=fix)
    return Check(part="heat", status="ok", seen=f"{seen}, not slowed down" if now.slowed is not None else seen)


def _disk(cache: Path) -> Check:
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free_gib = shutil.disk_usage(there).free / _GIB
    seen, fix = f"{free_gib:.1f} GiB free for {cache}", "remove something, or point RELIEF_CACHE to a larger disk"
    if free_gib < _LEAST_GIB:
        return Check(part="disk", status="failed", seen=seen, fix=fix)
    return Check(part="disk", status="warning", seen=seen, fix=fix) if free_gib < _SHORT_GIB else Check(
        part="disk", status="ok", seen=seen
    )  # fmt: skip


def _head(address: str | None, token: Path | None) -> Check:
    """The link to the head: seconds of a connection, the token, the versions."""
    if address is None:
        fix = "name it: --address HEAD[:PORT]"
        return Check(part="head", status="warning", seen="n/a: no address was given", fix=fix)
    place = address if ":" in address else f"{address}:{GCS_PORT}"
    from actors.cluster.start_line import refuse_other, versions_here, versions_of

    try:
        delay_s = _connect_s(place)
        # Ray reads its variables once, when it is imported.
        use_token(token)
        there = versions_of(place)
        refuse_other(versions_here(), there, place)
    except UserError as error:
        first, _, fix = str(error).partition("; ")
        return Check(part="head", status="failed", seen=first, fix=fix or "see docs/cluster.md")
    seen = f"{place}: Ray {there.ray}, Python {there.python}; a connection takes {1000 * delay_s:.1f} ms"
    return Check(part="head", status="ok", seen=seen)


def _connect_s(place: str) -> float:
    """Median seconds of a TCP connection.

    Raises:
        UserError: nothing answers there, or the address is none.
    """
    host, _, port = place.rpartition(":")
    seconds = []
    for _ in range(_KNOCKS):
        began = perf_counter()
        try:
            socket.create_connection((host, int(port)), timeout=_KNOCK_S).close()
        except (OSError, ValueError) as error:
            raise UserError(
                f"{place}: nothing answers ({error}); on the head: relief-ray cluster head; between them: "
                "docs/cluster.md lists the ports that a firewall has to let through"
            ) from error
        seconds.append(perf_counter() - began)
    return median(seconds)


def _checks_text(checks: Sequence[Check]) -> str:
    """One line for each part, what to do below those that are not ok, and a verdict."""
    lines: list[str] = []
    for check in checks:
        lines += wrapped(check.seen, f"{check.status:<8} {check.part:<12} ")
        if check.fix:
            lines += wrapped(check.fix, " " * 22 + "fix: ")
    number = {status: sum(check.status == status for check in checks) for status in ("warning", "failed")}
    return "\n".join([*lines, "", f"{number['failed']} failed, {counted(number['warning'], 'warning')}"])


# `relief-ray device monitor`: power and energy of this board by rail, while it works or while a command runs.


_NOT_AVAILABLE = "n/a"


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
    print(as_data(watched) if options.as_json else _watched_text(watched))
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
    return _NOT_AVAILABLE if value is None else f"{value:.{decimals}f}"


def _board_line(root: Path) -> str:
    """The board, its release and its power mode."""
    known, mode = release(root), power_mode(root)
    name = model_name(root) or ("Jetson" if known else "no Jetson")
    l4t = "" if known is None else f", L4T {known.l4t} (JetPack {known.jetpack or 'unknown'})"
    return f"{name}{l4t}, power mode {mode or _NOT_AVAILABLE}"


def _watched_text(watched: Watched) -> str:
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
    state = _NOT_AVAILABLE if throttled is None else "yes" if throttled else "no"
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


_BUSY = 0.7


def profile(
    backbone: str | None, settings: Sequence[str], types: str, turns: int, out: Path | None, as_json: bool
) -> None:
    """Measure, write the profile, and say how to use it.

    Raises:
        UserError: an unknown backbone or device type, or a place that cannot be written.
    """
    if backbone is not None and backbone not in BACKBONES:
        raise UserError(f"--backbone {backbone}: unknown; expected one of {', '.join(BACKBONES)}")
    config = parse(override({"backbone": {"name": backbone}} if backbone else {}, settings))
    chosen = types_of(types)
    path = out or Path(f"profile-{backbone_name(config.backbone).replace(':', '.')}.json")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"--out {path}: expected a file in a folder that is there")
    measured_profile = profile_device(config, chosen, turns)
    with disk_errors(path, "write the profile"):
        write_atomic(path, profile_text(measured_profile).encode())
    print(
        json.dumps({"path": str(path), **measured_profile.model_dump(mode="json")}, indent=1)
        if as_json
        else text(measured_profile, path)
    )


def types_of(names: str) -> tuple[str, ...]:
    """The device types of ``A,B,C``.

    Raises:
        UserError: another one, or none.
    """
    chosen = tuple(name.strip() for name in names.split(",") if name.strip())
    if not chosen or set(chosen) - set(TYPES):
        raise UserError(f"--types {names}: expected some of {','.join(TYPES)}, e.g. --types A,B,C")
    return tuple(name for name in TYPES if name in chosen)


def text(profiled: Profile, path: Path) -> str:
    """Tables of conditions, phases and stages."""
    assert profiled.measured is not None, "just measured"
    seen, row = profiled.measured, next(iter(profiled.devices.values()))
    assert row.stagewise is not None, "just measured"
    batch = int(seen.settings["windows_per_batch"] or 1)
    phases = [("forward", row.forward_flops_per_s), ("backward", row.backward_flops_per_s)]
    phases.append(("optimizer", row.optimizer_flops_per_s))
    over = row.stagewise.overheads
    stages = [
        [
            name,
            rate(paces.live),
            rate(paces.frozen),
            *(rate(paces.backward.get(m)) for m in ("weights", "input", "both")),
        ]
        for name, paces in row.stagewise.stages.items()
    ]
    lines = [
        f"Backbone {profiled.backbone}, engine {profiled.engine}, batches of {batch} windows: MEASURED {seen.date}",
        f"{seen.cpu}, {seen.num_cores} cores, threads: {seen.num_threads}; torch {seen.torch} ({seen.torch_build}); "
        f"commit {seen.commit}",
        f"Trained on {seen.device}; power mode {seen.power_mode or _NOT_AVAILABLE}; the board took "
        f"{number(seen.power_w)} W meanwhile",
        f"Medians of {seen.turns} turns; a full round's quartiles lie {100 * seen.spread:.1f} % of its median apart",
        "",
        "  " + ", ".join(f"{name} {si(value, 'FLOP/s')}" for name, value in phases),
        f"  a step: {1e3 * (over.forward_step_s + over.backward_step_s + over.optimizer_step_s):.2f} ms beside its "
        f"stages, a round: {1e3 * over.round_s:.2f} ms",
        "",
        "FLOP/s after the call itself; backward by the gradients it computes",
        table(["stage", "live", "frozen", "weights", "input", "both"], stages),
        "",
        f"Written: {path} (types {', '.join(profiled.devices)}; the link stays the fleet's)",
        f"Use it:  relief-ray run demo --set costs.profile={typed(path)} --set costs.planning_time=measured",
    ]
    return "\n".join([*lines, *_warnings_of(profiled)])


def rate(pace: Pace | None) -> str:
    """FLOP/s, or a dash."""
    return "-" if pace is None else si(pace.flops_per_s)


def _warnings_of(profiled: Profile) -> list[str]:
    """Reasons why the figures may mislead."""
    seen = profiled.measured
    if seen is None or seen.load_before is None or seen.load_before < _BUSY:
        return []
    return [f"NOTE: the machine was busy (load {seen.load_before:.1f} before it began); measure again when it is idle"]
