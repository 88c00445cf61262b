"""Start-up time of runs until round 1, beside the least that a program on Ray needs, and memory of the processes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from benchmarks.engine.machine import ROOT, Figures
from benchmarks.engine.noop import KINDS, pss_by_kind
from benchmarks.engine.pairs import Times
from benchmarks.engine.peers import environment
from relief_ray.training.job import CACHE_MIB

GIB = 2**30
WAIT_S, SAMPLE_S, CHILD_S = 0.05, 0.25, 300.0
# A client's windows; and few clients with as many windows together, which tells what clients cost from what windows do.
NUM_WINDOWS, FEW = 32, 8
MANY = 1000
# So many windows that what hosts keep of them, prepared, reaches its bound.
HELD_WINDOWS = 96
COMMAND = (
    *("data.num_clients=100", "data.stride_s=1", "rounds=1"),
    *("runtime.mode=packed", "runtime.num_hosts=2", "tracking.enabled=true"),
)
Seconds = Mapping[str, float]


def measure(folder: Path, num_turns: int, num_clients: int = 100, *, all_memory: bool = True) -> Figures:
    """Seconds from the start of a process until round 1 of a run on the scenario's data; medians of the turns.

    Every turn has the floor too, two bare Ray actors that have imported torch, and the command line with all that
    belongs to it on shipped data. Memory is that of one more run, since asking for it takes time; with ``all_memory``
    also that of as many clients whose windows fill the hosts' caches, and of few clients with as many windows in all.
    """
    command(folder)  # fills the cache of parsed data
    turns = [(floor(), begin(folder, num_clients), command(folder)) for _ in range(num_turns)]
    key = f"start_n{num_clients}"
    floors, runs, commands = zip(*turns, strict=True)
    figures: Figures = {f"{key}{name}_s": median(run[name] for run in runs) for name in runs[0]}
    times = Times(turns={"floor": floors, "run": tuple(run[""] for run in runs), "command": commands})
    return {
        **figures,
        "start_turns": num_turns,
        "start_floor_s": times.median_s("floor"),
        "start_floor_spread": times.spread("floor"),
        f"{key}_vs_floor": times.ratio("run", "floor"),
        f"{key}_spread": times.spread("run"),
        "start_command_s": times.median_s("command"),
        "start_command_spread": times.spread("command"),
        **_memory(folder, num_clients, NUM_WINDOWS),
        **(_other_memory(folder, num_clients) if all_memory else {}),
    }


def _other_memory(folder: Path, num_clients: int) -> Figures:
    return {
        **_memory(folder, FEW, num_clients * NUM_WINDOWS // FEW),
        **_memory(folder, MANY, NUM_WINDOWS),
        **_memory(folder, num_clients, HELD_WINDOWS, "_held"),
        f"pss_n{num_clients}_held_cache_mib": CACHE_MIB["cpu"],
    }


def _memory(folder: Path, num_clients: int, num_windows: int, case: str = "") -> Figures:
    """Peak memory in GiB by kind of process, None where the system does not report it; seconds of the last round."""
    seen: list[Mapping[str, int] | None] = []
    seconds = begin(folder, num_clients, num_windows, seen.append)
    known = [kinds for kinds in seen if kinds is not None]
    most = max(known, key=lambda kinds: sum(kinds.values()), default=None)
    key, total = f"pss_n{num_clients}{case}", None if most is None else sum(most.values()) / GIB
    by_kind: Figures = {f"{key}_{kind}_gib": None if most is None else most[kind] / GIB for kind in KINDS}
    return {f"{key}_gib": total, f"{key}_last_round_s": seconds["_last_round"], **by_kind}


def command(folder: Path) -> float:
    """Seconds from the start of ``relief-ray run`` until its round 1: 100 clients on the shipped excerpt, two hosts.

    Raises:
        RuntimeError: the command failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=folder) as place,
        tempfile.TemporaryDirectory(prefix="rrs-", dir="/tmp") as tmp,
    ):
        arguments = ["--strategies", "fedavg", *(part for value in COMMAND for part in ("--set", value))]
        began_s = time.time()
        done = subprocess.run(
            [sys.executable, "-m", "actors.cli.main", "run", "quick", *arguments, "--out", f"{place}/runs"],
            cwd=ROOT,
            env=environment(tmp),
            capture_output=True,
            text=True,
            timeout=CHILD_S,
        )
        lines = [path.read_text().splitlines()[0] for path in Path(place).glob("runs/*/rounds.jsonl")]
        if done.returncode or not lines:
            raise RuntimeError(f"relief-ray run ended with {done.returncode}: {done.stderr[-1500:]}")
    record = json.loads(lines[0])
    return float(record["ended_unix_s"] - record["wall_s"] - began_s)


def begin(
    folder: Path,
    num_clients: int,
    num_windows: int = NUM_WINDOWS,
    watch: Callable[[Mapping[str, int] | None], None] | None = None,
) -> Seconds:
    """Start a run, ``watch`` its processes' memory: seconds until round 1 (``""``), of each phase, of the last round.

    Raises:
        RuntimeError: the run failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        began_s, seen = child("start_run", watch, place, str(num_clients), str(num_windows))
    return {
        "": seen["round_1_unix_s"] - began_s,
        "_committed": seen["committed_unix_s"] - began_s,
        "_imports": seen["imported_unix_s"] - began_s,
        "_setup": seen["prepared_unix_s"] - seen["imported_unix_s"],
        "_ray": seen["round_1_unix_s"] - seen["prepared_unix_s"],
        "_last_round": seen["last_round_s"],
    }


def floor() -> float:
    """Seconds from the start of a bare Ray program until two actors have imported torch."""
    began_s, seen = child("start_floor", None)
    return seen["ready_unix_s"] - began_s


def child(
    program: str, watch: Callable[[Mapping[str, int] | None], None] | None, *arguments: str
) -> tuple[float, Mapping[str, float]]:
    """Run a program of this package; when it began and what it wrote, in seconds of the epoch."""
    with tempfile.TemporaryDirectory(prefix="rrs-", dir="/tmp") as scratch:
        out = Path(scratch) / "seen.json"
        command = [sys.executable, "-m", f"benchmarks.engine.{program}", *arguments, str(out)]
        began_s = time.time()
        process = subprocess.Popen(command, cwd=ROOT, env=environment(scratch), stdout=subprocess.DEVNULL)
        try:
            while process.poll() is None:
                if time.time() - began_s > CHILD_S:
                    raise RuntimeError(f"{program} did not end within {CHILD_S:g} s")
                if watch is not None:
                    watch(pss_by_kind(process.pid))
                time.sleep(WAIT_S if watch is None else SAMPLE_S)
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            raise RuntimeError(f"{program} ended with {process.returncode}")
        seen: dict[str, float] = json.loads(out.read_text())
    return began_s, seen
