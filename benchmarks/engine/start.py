"""Start-up: whole runs of their own until round 1, beside the least that a program on Ray needs, and their memory."""

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
from benchmarks.engine.peers import environment

GIB = 2**30
WAIT_S, SAMPLE_S, CHILD_S = 0.05, 0.25, 300.0
# A client's windows; and few clients with as many windows together, which tells what clients cost from what windows do.
NUM_WINDOWS, FEW = 32, 8
Seconds = Mapping[str, float]


def measure(folder: Path, num_turns: int, num_clients: int = 100) -> Figures:
    """Seconds from the start of a process until round 1, as the command line starts a run; medians of the turns.

    Every turn has the floor too: two bare Ray actors that have imported torch. Memory is that of one more run, and of
    one of few clients with as many windows in all, since asking for it takes time.
    """
    turns = [(floor(), begin(folder, num_clients)) for _ in range(num_turns)]
    key = f"start_n{num_clients}"
    found = {f"{key}{name}_s": median(ours[name] for _, ours in turns) for name in turns[0][1]}
    return {
        **found,
        "start_turns": num_turns,
        "start_floor_s": median(least for least, _ in turns),
        f"{key}_vs_floor": median(ours[""] / least for least, ours in turns),
        **_memory(folder, num_clients, NUM_WINDOWS),
        **_memory(folder, FEW, num_clients * NUM_WINDOWS // FEW),
    }


def _memory(folder: Path, num_clients: int, num_windows: int) -> Figures:
    most = dict.fromkeys(KINDS, 0)
    begin(folder, num_clients, num_windows, lambda kinds: most.update(max(most, kinds, key=lambda k: sum(k.values()))))
    key = f"pss_n{num_clients}"
    return {f"{key}_gib": sum(most.values()) / GIB, **{f"{key}_{kind}_gib": most[kind] / GIB for kind in KINDS}}


def begin(
    folder: Path,
    num_clients: int,
    num_windows: int = NUM_WINDOWS,
    watch: Callable[[Mapping[str, int]], None] | None = None,
) -> Seconds:
    """A run of its own; ``watch`` hears of its processes' memory. Seconds until round 1 (``""``) and of what led there.

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
    }


def floor() -> float:
    """Seconds from the start of a bare Ray program until two actors have imported torch."""
    began_s, seen = child("start_floor", None)
    return seen["ready_unix_s"] - began_s


def child(
    program: str, watch: Callable[[Mapping[str, int]], None] | None, *arguments: str
) -> tuple[float, Mapping[str, float]]:
    """Runs a program of this package; when it began and what it wrote, in seconds of the epoch."""
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
