"""`relief-ray doctor` and `device monitor|profile`: this machine: what it lacks, its power, its speed."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Literal

import psutil
import requests
import typer

from actors.runtime.tokens import use_token
from actors.terminal.exit_codes import BAD_INPUT, Result, Stopped, figure
from relief_ray.config.experiment import assign, parse
from relief_ray.data.describe import list_datasets
from relief_ray.data.source import search_roots
from relief_ray.devices import power_sensors
from relief_ray.devices.fleet import device_types, fault_of_name
from relief_ray.devices.meter import PERIOD_S, PowerMeter, RailEnergy, mean_w
from relief_ray.devices.time import Profile, profile_text
from relief_ray.kernels.library import library, why_missing
from relief_ray.models.registry import BACKBONES, backbone_name
from relief_ray.profiling.profile import profile_device
from relief_ray.records.lock import FileLock
from relief_ray.records.sync.mlflow import Store, store_uri
from relief_ray.support.errors import Setting, UserError, first_line
from relief_ray.support.files import cache_root, nearest_there, preflight, write_atomic
from relief_ray.support.masking import mask_text
from relief_ray.support.process import memory_bytes
from relief_ray.support.text import install, pip, si, table, typed, wrapped

_NOT_AVAILABLE = "n/a"


def _root_of(sysfs: Path | None) -> Path:
    """Folder that holds ``sys``, ``etc``, ``proc`` and ``var``; None: this machine's.

    Raises:
        UserError: there is no such folder.
    """
    root = sysfs or power_sensors.board_root()
    if not root.is_dir():
        raise UserError(f"--sysfs {root}: no such folder; expected one that holds sys, etc, proc and var, as / does")
    return root


# `relief-ray doctor`: is this machine ready for runs, as a node of a cluster, as a board? A line a part, with the fix.

_GIB = 2**30
# torch and Ray unpacked take some 5 GiB; parsed data and logs need some more.
_LEAST_GIB, _SHORT_GIB = 1.0, 5.0
# Options of mounts whose locks no other machine sees.
_LOCAL_LOCKS = {"nolock", "local_lock=all", "local_lock=flock", "localflock", "nobrl"}
# A process that says so where it gets a lock that another one holds.
_SECOND = """import fcntl, sys
try:
    fcntl.flock(open(sys.argv[1]), fcntl.LOCK_SH | fcntl.LOCK_NB)
    print("both")
except BlockingIOError:
    pass
"""
_TOO_OLD = ("4", "5")
_KNOWN = ("6", "7")
# Side of the matrices of a trial kernel.
_SIDE = 64
_VENDOR = (
    "install NVIDIA's torch for this JetPack (docs/jetson.md), then: sh bootstrap.sh edge; the user needs the groups "
    "video and render"
)


@dataclass(frozen=True, slots=True)
class DoctorLine:
    """The check of one part that runs need on this machine."""

    part: str
    seen: str
    """What was found."""
    fix: str = ""
    """What to do; empty where the part is ok."""
    is_needed: bool = False
    """Whether runs fail, or the machine is no node, until that is done."""

    @property
    def status(self) -> Literal["ok", "warning", "problem"]:
        """``problem`` where a part that is needed has something to be done, ``warning`` where another one has."""
        if not self.fix:
            return "ok"
        return "problem" if self.is_needed else "warning"


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchFacts:
    """torch as it works here."""

    version: str = ""
    """Empty where it cannot be imported."""
    build: str = ""
    """``CUDA 12.6``, or ``without CUDA``."""
    gpu: str = ""
    """Name of the GPU that it sees; empty without one."""
    arch: str = ""
    """Compute capability of that GPU, ``sm_87``."""
    arch_list: tuple[str, ...] = ()
    """Architectures for which torch has kernels."""
    fault: str = ""
    """Why it could not be imported, or why the kernel failed."""


def torch_here() -> TorchFacts:
    """Import torch and run a matrix product on the GPU, or on the CPU where it sees none."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return TorchFacts(fault=f"cannot be imported ({error})")
    device, gpu, arch, arch_list = "cpu", "", "", tuple[str, ...]()
    try:
        if torch.cuda.is_available():
            device, gpu = "cuda", torch.cuda.get_device_name()
            arch, arch_list = "sm_{}{}".format(*torch.cuda.get_device_capability()), tuple(torch.cuda.get_arch_list())
        ones = torch.ones(_SIDE, _SIDE, device=device)
        total = float((ones @ ones).sum())
        fault = "" if total == _SIDE**3 else f"a matrix product gave {total:g}, expected {_SIDE**3}"
    except RuntimeError as error:
        fault = f"a matrix product failed ({first_line(error)})"
    return TorchFacts(
        version=str(torch.__version__),
        build=f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA",
        gpu=gpu,
        arch=arch,
        arch_list=arch_list,
        fault=fault,
    )


def doctor(out: Path, uri: str | None, address: str | None, token: Path | None, sysfs: Path | None) -> Iterator[Result]:
    """Check everything and yield a line for each part, with advice below parts that are not ok.

    Raises:
        Stopped: a part is a problem, with exit code 2.
        UserError: the root is no folder.
    """
    lines = doctor_lines(_root_of(sysfs), torch_here(), out, uri, address, token)
    problems = [line.part for line in lines if line.status == "problem"]
    texts = [
        text
        for line in lines
        for text in wrapped(line.seen, f"{line.status:<8} {line.part:<12} ") + wrapped(line.fix, " " * 22 + "fix: ")
    ]
    yield Result(texts, {"ready": not problems, "checks": [{**asdict(line), "status": line.status} for line in lines]})
    if problems:
        raise Stopped(BAD_INPUT, f"not ready: {', '.join(problems)}")


def doctor_lines(
    root: Path, torch: TorchFacts, out: Path, uri: str | None, address: str | None, token: Path | None
) -> list[DoctorLine]:
    """All parts in order.

    Args:
        root: folder that holds ``sys``, ``etc``, ``proc`` and ``var``.
        torch: what torch does here.
        out: folder for runs.
        uri: MLflow store; None: the file beside the runs.
        address: head of a cluster; None: the one that ``RAY_ADDRESS`` names, if any.
        token: file of its token.
    """
    is_jetson = power_sensors.release(root) is not None
    runs = nearest_there(out)
    looks = {
        "memory": _memory(root),
        "data": _data(),
        # The date of the folder is looked at before a trial changes it.
        "clock": _clock(runs),
        "cache": _folder("cache", nearest_there(cache_root()), "point RELIEF_CACHE to a larger disk"),
        "kernels": _kernels(),
        "runs": _folder("runs", runs, "choose a folder on a larger disk with --out"),
        "locks": _locks(runs),
        "MLflow": _store(Store(uri=store_uri(out / "run", uri))),
        "head": _cluster(address, token),
    }
    return [
        _board(root),
        # The head's minor version is compared under `head`.
        DoctorLine("Python", f"{platform.python_version()} in {sys.prefix}"),
        _ray(),
        _torch(torch, is_jetson),
        *([_power_mode(root), _rails(root), _heat(root)] if is_jetson else ()),
        *(line for part, look in looks.items() for line in _lines_of(part, look)),
    ]


def _lines_of(part: str, lines: Iterator[DoctorLine], is_needed: bool = True) -> Iterator[DoctorLine]:
    """The lines of a part; the last one is what was refused, or that it cannot be looked at, which hides no other."""
    try:
        yield from lines
    except UserError as error:
        yield _fault(part, str(error), is_needed)
    except Exception as error:
        yield _fault(part, f"n/a: cannot be looked at ({type(error).__name__}: {error}); look at it yourself", False)


def _fault(part: str, text: str, is_needed: bool) -> DoctorLine:
    """The line of a sentence that ends with its fix."""
    seen, _, fix = text.rpartition("; ")
    return DoctorLine(part, seen, fix, is_needed)


def _board(root: Path) -> DoctorLine:
    known = power_sensors.release(root)
    if known is None:
        return DoctorLine("board", f"no Jetson: {platform.system()} on {platform.machine()}")
    fix = ""
    if known.jetpack in _TOO_OLD:
        fix = "flash JetPack 6 or 7: this one has an older Python than Ray needs"
    elif known.jetpack not in _KNOWN:
        fix = "expected JetPack 6 or 7; others were never looked at"
    seen = f"{power_sensors.model_name(root) or 'a Jetson'}, L4T {known.l4t}, JetPack {known.jetpack or 'unknown'}"
    return DoctorLine("board", seen, fix, is_needed=known.jetpack in _TOO_OLD)


def _ray() -> DoctorLine:
    try:
        return DoctorLine("Ray", version("ray"))
    except PackageNotFoundError:
        return DoctorLine("Ray", "not installed", "in a checkout: sh bootstrap.sh edge", is_needed=True)


def _torch(torch: TorchFacts, is_jetson: bool) -> DoctorLine:
    """torch, its GPU and a kernel that was run there."""
    if not torch.version:
        return DoctorLine("torch", torch.fault, _VENDOR if is_jetson else pip("torch"), is_needed=True)
    built_for = f"{torch.gpu} ({torch.arch}), built for {' '.join(torch.arch_list)}"
    seen = f"{torch.version} ({torch.build}), {built_for if torch.gpu else 'no GPU'}"
    if is_jetson and not torch.gpu:
        return DoctorLine("torch", f"{seen} on a Jetson", _VENDOR, is_needed=True)
    fix = ""
    if torch.fault:
        fix = _VENDOR if torch.gpu else "install torch again"
    elif torch.gpu and torch.arch not in torch.arch_list:
        fix = f"a kernel ran all the same; a torch that is built for {torch.arch} starts faster"
    ran = f"a matrix product ran on the {'GPU' if torch.gpu else 'CPU'}"
    return DoctorLine("torch", f"{seen}; {torch.fault or ran}", fix, is_needed=bool(torch.fault))


def _power_mode(root: Path) -> DoctorLine:
    mode = power_sensors.power_mode(root)
    return DoctorLine(
        "power mode",
        mode or "n/a: /var/lib/nvpmodel/status tells none",
        "" if mode else "see `sudo nvpmodel -q`; boards that shall be compared need the same one",
    )


def _rails(root: Path) -> DoctorLine:
    rails = power_sensors.find_rails(root)
    if not rails:
        return DoctorLine(
            "power rails",
            "n/a: no power sensor; so are joules",
            "look for ina3221 in sys/class/hwmon; without it plug a meter between",
        )
    readings = {rail.label: rail.read() for rail in rails}
    seen = ", ".join(f"{name} {'n/a' if r.watts is None else f'{r.watts:.2f} W'}" for name, r in readings.items())
    summed = [rail.label for rail in power_sensors.total_rails(rails)]
    seen += f"; total = {' + '.join(summed)}"
    bad = {name: r.why for name, r in readings.items() if r.watts is None}
    if not bad:
        return DoctorLine("power rails", seen)
    needed = " and ".join(name for name in summed if name in bad)
    fix = "; ".join(f"{name}: {why}" for name, why in bad.items())
    fix += f". Without {needed} a run's joules are n/a" if needed else ". A run's joules need none of them"
    if any("ermission" in why for why in bad.values()):
        fix += "; let this user read the files: chmod a+r, or the group that owns them"
    return DoctorLine("power rails", seen, fix)


def _heat(root: Path) -> DoctorLine:
    now = power_sensors.heat(root)
    if now.hottest_c is None:
        fix = "; ".join(now.odd) or "look for thermal zones in sys/class/thermal"
        return DoctorLine("heat", "n/a: no zone tells a temperature", fix)
    seen = f"hottest zone {now.hottest_c:.1f} °C"
    if now.slowed is not None:
        seen += f", slowed down by {', '.join(now.slowed)}" if now.slowed else ", not slowed down"
    advice = ["cool it, or lower its power mode"] if now.slowed else []
    if now.odd:
        seen, advice = f"{seen}; left out: {'; '.join(now.odd)}", [*advice, "mend that sensor, or ignore the zone"]
    return DoctorLine("heat", seen, "; ".join(advice))


def _memory(root: Path) -> Iterator[DoctorLine]:
    free_gib = min(psutil.virtual_memory().available, memory_bytes(root)) / _GIB
    yield DoctorLine(
        "memory",
        f"{free_gib:.1f} GiB for processes of this user",
        "end something else, or raise the limit of this container" if free_gib < _LEAST_GIB else "",
    )


def _kernels() -> Iterator[DoctorLine]:
    """The library of the engine `fused`, compiled here if it is not there yet."""
    if why := why_missing():
        yield DoctorLine("kernels", f"none: {why}", "Backbone 1 trains all the same, with the engine gemm")
    else:
        yield DoctorLine("kernels", str(library()._name))


def _data() -> Iterator[DoctorLine]:
    """Datasets that are here; a folder that is named and is not there hides all that it should hold."""
    for named in search_roots(None)[:-1]:
        if not named.is_dir():
            raise UserError(f"RELIEF_DATA: {named} is no folder; name the one that holds the datasets, or unset it")
    yield DoctorLine("data", ", ".join(f"{d['name']} ({d['path']})" for d in list_datasets() if d["path"]))


def _folder(part: str, folder: Path, instead: str) -> Iterator[DoctorLine]:
    """Room for bytes and for files, and whether these can be written, forced to the disk and renamed."""
    preflight(folder, 0)
    room = os.statvfs(folder)
    free_gib = room.f_bavail * room.f_frsize / _GIB
    # A run has some dozens of files. Some file systems count no inodes: they have none, and none are free.
    is_short = free_gib < _SHORT_GIB or room.f_favail < min(room.f_files, 1000)
    yield DoctorLine(
        part,
        f"{folder}: {free_gib:.1f} GiB, {room.f_favail:,} of {room.f_files:,} inodes free",
        f"remove something, or {instead}" if is_short else "",
        free_gib < _LEAST_GIB,
    )


def _locks(folder: Path) -> Iterator[DoctorLine]:
    """Whether a lock in the folder keeps a second process out, and a second machine."""
    with NamedTemporaryFile(dir=folder, prefix=".doctor-") as file, FileLock(Path(file.name), "the lock of this check"):
        both_here = subprocess.check_output([sys.executable, "-c", _SECOND, file.name])
    above = (part for part in psutil.disk_partitions(all=True) if folder.resolve().is_relative_to(part.mountpoint))
    # Of several mounts at one place the last one is seen.
    mount = sorted(above, key=lambda part: len(part.mountpoint))[-1]
    if both_here:
        raise UserError(
            f"{mount.fstype}: two processes get one lock at once; two commands may then write one run, and damage its "
            "records; mount it with locks (Lustre: -o flock), or choose a folder elsewhere with --out"
        )
    yield DoctorLine(
        "locks",
        f"{mount.fstype} ({mount.opts}): a lock keeps a second process out",
        "two machines may write one run: mount it without nolock or local_lock, or use one machine"
        if _LOCAL_LOCKS.intersection(mount.opts.split(","))
        else "",
    )


def _clock(folder: Path) -> Iterator[DoctorLine]:
    """This machine's clock beside the last changes of this program and of the folder."""
    newest = max((Path(__file__), folder), key=os.path.getmtime)
    now_s = time.time()
    seen, behind_s = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s)), os.path.getmtime(newest) - now_s
    if behind_s > 60.0:  # clocks of file servers differ by seconds
        raise UserError(f"{seen}, {behind_s:,.0f} s before {newest} was changed; set it: timedatectl set-ntp true")
    yield DoctorLine("clock", seen)


def _store(store: Store) -> Iterator[DoctorLine]:
    """The MLflow store that runs are copied to; it is asked without MLflow, which takes seconds to import."""
    seen, database = mask_text(store.uri), store.database
    try:
        if store.uri.startswith("http"):
            requests.get(f"{store.uri}/health", timeout=2.0).raise_for_status()
        elif database and database.exists():
            with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as opened:
                opened.execute("SELECT 1 FROM experiments")
        else:
            seen += ": n/a, not asked before a run"
    except (OSError, sqlite3.Error) as error:
        raise UserError(f"{seen}: no MLflow store ({mask_text(str(error))}); start it, or name another") from error
    yield DoctorLine("MLflow", seen, "" if find_spec("mlflow") else install("server"))


def _cluster(address: str | None, token: Path | None) -> Iterator[DoctorLine]:
    """Whether the head answers, takes the token and has these versions; then all nodes."""
    if not (address or "RAY_ADDRESS" in os.environ):
        yield DoctorLine("head", "n/a: neither --address nor RAY_ADDRESS names one")
        return
    # Ray reads its variables once, when it is imported: below.
    use_token(token)
    from actors.cluster.survey import head_at

    place = head_at(address)
    yield DoctorLine("head", f"{place} answers, and has this Ray and this Python")
    # A machine asks before it joins, too.
    yield from _lines_of("nodes", _nodes(place), is_needed=False)


def _nodes(place: str) -> Iterator[DoctorLine]:
    from actors.cluster.survey import faults_of, survey_at, warnings_of

    nodes = survey_at(place)
    for node in nodes:
        yield DoctorLine("node", f"{node.name}: {node.answer.versions() if node.answer else node.why}")
    for fault in faults_of(nodes):
        yield _fault("nodes", fault, True)
    for note in warnings_of(nodes):
        yield _fault("nodes", note, False)


# `relief-ray device monitor`: power and energy of this board by rail, while it works or while a command runs.


def monitor(command: Sequence[str], seconds: float, idle: float, sysfs: Path | None) -> Iterator[Result]:
    """Measure, and end with the command's exit code. Ctrl-C ends the measurement early.

    Args:
        command: program that is measured; without one the board is, for ``seconds``.
        seconds: length of the measurement.
        idle: seconds before it that tell the idle power; 0: none.
        sysfs: folder that holds ``sys``, ``etc``, ``proc`` and ``var``; None: this machine's.

    Raises:
        UserError: the command cannot be started, or the root is no folder.
        typer.Exit: the command's exit code is not 0.
    """
    root = _root_of(sysfs)
    before = PowerMeter(root)
    if idle and before.rails:
        with before:
            time.sleep(idle)
    idle_w = mean_w(before) if before.samples else None
    with PowerMeter(root) as meter:
        code = _run(command, seconds)
    facts = _power_facts(root, meter, idle_w, code)
    yield Result(_power_lines(facts, meter), facts)
    if code:
        raise typer.Exit(code)


def _run(command: Sequence[str], seconds: float) -> int | None:
    """Run a command and return its exit code, or wait for ``seconds``."""
    try:
        if command:
            return subprocess.run(command, check=False).returncode
        time.sleep(seconds)
    except OSError as error:
        raise UserError(
            f"{command[0]}: cannot be started ({error.strerror}); expected a program, e.g. "
            "`device monitor -- python train.py`"
        ) from error
    except KeyboardInterrupt:
        return 130 if command else None
    return None


def _number(value: float | None, decimals: int = 2) -> str:
    return figure(value, decimals, _NOT_AVAILABLE)


def _power_facts(root: Path, meter: PowerMeter, idle_w: float | None, code: int | None) -> dict[str, Any]:
    """Board, rails and heat; null where it is not measured. ``idle_w``: the board's mean power before."""
    total, known = meter.total(), power_sensors.release(root)
    energy_j = None if total is None else total.energy_j
    return {
        "board": power_sensors.model_name(root),
        "l4t": known and known.l4t,
        "jetpack": known and known.jetpack,
        "power_mode": power_sensors.power_mode(root),
        "seconds": meter.span_s,
        "period_s": PERIOD_S,
        "idle_w": idle_w,
        "rails": [asdict(rail) for rail in meter.by_rail()],
        "total": total and asdict(total),
        "total_rails": [rail.label for rail in power_sensors.total_rails(meter.rails)],
        "above_idle_j": None if energy_j is None or idle_w is None else energy_j - idle_w * meter.span_s,
        "hottest_c": [meter.heats[0].hottest_c, meter.heats[-1].hottest_c],
        "throttled": meter.was_throttled,
        "command_exit_code": code,
    }


def _power_lines(facts: Mapping[str, Any], meter: PowerMeter) -> list[str]:
    """The board, a table of its rails, and its heat; ``n/a`` where the facts have null."""
    name = facts["board"] or ("Jetson" if facts["l4t"] else "no Jetson")
    l4t = f", L4T {facts['l4t']} (JetPack {facts['jetpack'] or 'unknown'})" if facts["l4t"] else ""
    lines = [f"Board     {name}{l4t}, power mode {facts['power_mode'] or _NOT_AVAILABLE}"]
    if (total := meter.total()) is None:
        lines.append("Power     n/a: no power sensor (INA3221 or a relative) below sys/class/hwmon; joules are n/a too")
    else:
        rails = meter.by_rail()
        lines += [
            f"Idle      {_number(facts['idle_w'])} W before the measurement",
            f"Measured  {meter.span_s:.1f} s, a sample every {1000 * PERIOD_S:.0f} ms",
            "",
            table(["rail", "mean W", "peak W", "joules", "dropped %"], map(_row, (*rails, total))),
            "",
            f"total = {total.sensor}; above idle: {_number(facts['above_idle_j'])} J",
            *(f"NOTE: {rail.label}: {rail.why}" for rail in rails if rail.why),
            *([f"NOTE: no total: {total.why}"] if total.energy_j is None else []),
        ]
    state = {None: _NOT_AVAILABLE, True: "yes", False: "no"}[meter.was_throttled]
    first, last = (_number(heat_c, 1) for heat_c in facts["hottest_c"])
    lines.append(f"Heat      {first} -> {last} °C in the hottest zone; slowed down: {state}")
    lines += [f"NOTE: left out: {zone}" for zone in meter.heats[-1].odd]
    return lines


def _row(rail: RailEnergy) -> list[str]:
    figures = (_number(value) for value in (rail.mean_w, rail.peak_w, rail.energy_j))
    return [rail.label, *figures, _number(100 * rail.dropped, 1)]


# `relief-ray device profile`: this machine's seconds per stage of a backbone, for `costs.profile`.

_BUSY = 0.7


def profile(
    backbone: str | None, settings: Sequence[Setting], types: str | None, turns: int, out: Path | None
) -> Result:
    """Measure, write the profile, and say how to use it.

    Raises:
        UserError: an unknown backbone or device type, or a place that cannot be written.
    """
    if backbone is not None and backbone not in BACKBONES:
        raise UserError(f"--backbone {backbone}: unknown; expected one of {', '.join(BACKBONES)}")
    config = parse(assign({"backbone": {"name": backbone}} if backbone else {}, settings))
    # Of any fleet: a board is profiled beside no configuration that names it.
    named = [name.strip() for name in types.split(",")] if types is not None else [*device_types(config.fleet)]
    for name in named:
        if fault := fault_of_name(name):
            raise UserError(f"--types {types}: {name!r}: {fault}; name types of your fleet, e.g. --types watch,phone")
    path = out or Path(f"profile-{backbone_name(config.backbone).replace(':', '.')}.json")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"--out {path}: expected a file in a folder that is there")
    measured = profile_device(config, tuple(dict.fromkeys(named)), turns)
    write_atomic(path, profile_text(measured).encode())
    return Result(_profile_lines(measured, path), {"path": str(path), **measured.model_dump(mode="json")})


def _profile_lines(profile: Profile, path: Path) -> list[str]:
    """Tables of conditions, phases and stages."""
    of, row = profile.measured, next(iter(profile.devices.values()))
    assert of is not None and row.stagewise is not None, "just measured"
    phases = {"forward": row.forward_flops_per_s, "backward": row.backward_flops_per_s}
    phases["optimizer"] = row.optimizer_flops_per_s
    batch, over = int(of.settings["windows_per_batch"] or 1), row.stagewise.overheads
    step_s = over.forward_step_s + over.backward_step_s + over.optimizer_step_s
    stages = []
    for name, paces in row.stagewise.stages.items():
        backward = [paces.backward.get(gradients) for gradients in ("weights", "input", "both")]
        rates = [pace and si(pace.flops_per_s) for pace in (paces.live, paces.frozen, *backward)]
        stages.append([name, *(rate or "-" for rate in rates)])
    lines = [
        f"Backbone {profile.backbone}, engine {profile.engine}, batches of {batch} windows: MEASURED {of.date}",
        f"{of.cpu}, {of.num_cores} cores, threads: {of.num_threads}; torch {of.torch} ({of.torch_build}); "
        f"commit {of.commit}",
        f"Trained on {of.device}; power mode {of.power_mode or _NOT_AVAILABLE}; the board took "
        f"{_number(of.power_w)} W meanwhile",
        f"Medians of {of.turns} turns; a full round's quartiles lie {100 * of.spread:.1f} % of its median apart",
        "",
        "  " + ", ".join(f"{name} {si(value, 'FLOP/s')}" for name, value in phases.items()),
        f"  a step: {1e3 * step_s:.2f} ms beside its stages, a round: {1e3 * over.round_s:.2f} ms",
        "",
        "FLOP/s after the call itself; backward by the gradients it computes",
        table(["stage", "live", "frozen", "weights", "input", "both"], stages),
        "",
        f"Written: {path} (types {', '.join(profile.devices)}; the link stays the fleet's)",
        f"Use it:  relief-ray run demo --set costs.profile={typed(path)} --set costs.planning_time=measured",
    ]
    if of.load_before is not None and of.load_before >= _BUSY:
        lines.append(
            f"NOTE: the machine was busy (load {of.load_before:.1f} before it began); measure again when it is idle"
        )
    return lines
