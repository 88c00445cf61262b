"""What a user waits for: whole commands, each a process of its own, on the data that ships with the package."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.engine.machine import ROOT, Figures
from benchmarks.engine.pairs import take_turns, timed
from benchmarks.engine.peers import environment

CHILD_S = 600.0
_QUICK = ("run", "quick", "--strategies", "fedavg", "--seeds", "[0]")
_DEMO = ("run", "demo", "--folds", "0", "--set", "tracking.enabled=false")
# Name of a figure, and what is typed; those of the engine `gemm` stand beside those of our own.
COMMANDS: Mapping[str, Sequence[str]] = {
    "help": ("--help",),
    "quick": _QUICK,
    "quick_gemm": (*_QUICK, "--set", "training.engine=gemm"),
    "demo": _DEMO,
    "demo_gemm": (*_DEMO, "--set", "training.engine=gemm"),
}


def measure(folder: Path, num_turns: int, names: Sequence[str]) -> Figures:
    """Seconds of each command from its start to its end, and how many times as long `gemm` takes."""
    folder.mkdir(parents=True, exist_ok=True)
    command(folder, _QUICK)  # fills the cache of parsed data
    times = take_turns({name: timed(partial(command, folder, COMMANDS[name])) for name in names}, num_turns, 1)
    figures: Figures = {"waits_turns": num_turns}
    for name in names:
        figures |= {f"waits_{name}_s": times.median_s(name), f"waits_{name}_spread": times.spread(name)}
        if name.endswith("_gemm"):
            figures[f"waits_{name}_ratio"] = times.ratio(name, name.removesuffix("_gemm"))
    return figures


def command(folder: Path, arguments: Sequence[str]) -> None:
    """Run `relief-ray` with these arguments, its records in a folder of their own.

    Raises:
        RuntimeError: it failed.
    """
    with (
        tempfile.TemporaryDirectory(dir=folder) as place,
        tempfile.TemporaryDirectory(prefix="rrs-", dir="/tmp") as tmp,
    ):
        out = ["--out", f"{place}/runs"] if arguments[0] == "run" else []
        done = subprocess.run(
            [sys.executable, "-m", "actors.cli.main", *arguments, *out],
            cwd=ROOT,
            env=environment(tmp),
            capture_output=True,
            text=True,
            timeout=CHILD_S,
        )
    if done.returncode:
        raise RuntimeError(f"relief-ray {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-1500:]}")
