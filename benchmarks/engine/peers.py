"""Flower and pfl, each in an environment of its own; what cannot be installed is left out with a note.

An environment holds the peer and what it pins (Flower its own Ray); torch is read from this environment, so that every
harness computes with the same kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from benchmarks.engine.machine import ROOT
from relief_ray.support.process import KEPT_BYTES, LARGEST_HEAP_BLOCK_BYTES

INSTALL_S, RUN_S = 600.0, 900.0
When = Literal["first", "last"]
WHEN: tuple[When, ...] = ("first", "last")

UNCOMPILED = "PYTHONDONTWRITEBYTECODE"
# Ray starts its workers at niceness 15; on a machine that is not quite quiet, bare processes would always come first.
NICENESS = "RAY_worker_niceness"
# What our own processes ask of the C library, said by the environment: a peer's programs are not ours to change.
KEPT = {"MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES), "MALLOC_MMAP_THRESHOLD_": str(LARGEST_HEAP_BLOCK_BYTES)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """A framework: what to install, how its program is started, what its settings are."""

    name: str
    requirement: str
    package: str
    launcher: tuple[str, ...] = ("-m",)


# The versions of the committed page: a later one may be another peer. Flower 1.42 asked for packages that the index did
# not have.
PEERS = (
    Peer(name="flower", requirement="flwr[simulation]==1.41.0", package="flwr"),
    Peer(
        name="pfl",
        requirement="pfl==0.6.0",
        package="pfl",
        launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"),
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """A peer that can run; ``segment_on`` gives its harness."""

    peer: Peer
    python: Path
    version: str

    def run(self, folder: Path, num_rounds: int) -> list[float]:
        """Run so many rounds of the task in ``folder`` in new processes, from its initial model; seconds of each.

        Raises:
            RuntimeError: the peer failed.
        """
        with tempfile.TemporaryDirectory(prefix="rrp-", dir="/tmp") as scratch:
            out = Path(scratch) / "seconds.json"
            program = f"benchmarks.engine.{self.peer.name}_peer"
            weights = [weights_file(self.peer, folder, "first"), weights_file(self.peer, folder, "last")]
            arguments = [str(folder), str(num_rounds), str(out), *map(str, weights)]
            command = [str(self.python), *self.peer.launcher, program, *arguments]
            done = subprocess.run(
                command, cwd=ROOT, env=environment(scratch) | KEPT, capture_output=True, text=True, timeout=RUN_S
            )
            if done.returncode or not out.exists():
                raise RuntimeError(f"{self.peer.name} ended with {done.returncode}: {done.stderr[-1500:]}")
            seconds: list[float] = json.loads(out.read_text())
        return seconds


def segment(installed: Installed, folder: Path, num_rounds: int) -> list[float]:
    """Rounds after the first: processes start and data are read in that one."""
    return installed.run(folder, num_rounds + 1)[1:]


def weights_file(peer: Peer, folder: Path, when: When) -> Path:
    """File of a peer's model after the first or the last round."""
    return folder / f"{peer.name}-{when}.npy"


def saved_weights(peer: Peer, folder: Path, when: When) -> Tensor:
    """The peer's model in its last run."""
    return torch.from_numpy(np.load(weights_file(peer, folder, when)))


def environment(scratch: str) -> dict[str, str]:
    """One thread per process, our sources, the same priority as everybody, no trace of a running Ray.

    Python keeps its byte code, as it does of what is installed: or every process would compile our sources anew.
    """
    kept = {k: v for k, v in os.environ.items() if (not k.startswith("RAY_") or k == NICENESS) and k != UNCOMPILED}
    return kept | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "RAY_TMPDIR": scratch,
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_HOME": scratch,
        "PFL_PYTORCH_DEVICE": "cpu",
    }


def install(root: Path, names: Collection[str]) -> tuple[dict[str, Installed], dict[str, str]]:
    """Those of ``names`` that can run, and the reason for each peer that cannot.

    They are installed side by side, since an installer uses one core.
    """
    ready: dict[str, Installed] = {}
    notes = {peer.name: "left out" for peer in PEERS if peer.name not in names}
    where = f"{root} must be a folder that can be written to, and an index must offer it"
    with ThreadPoolExecutor() as pool:
        under_way = {peer.name: pool.submit(_install, peer, root / peer.name) for peer in PEERS if peer.name in names}
    for name, installing in under_way.items():
        try:
            ready[name] = installing.result()
        except (OSError, subprocess.SubprocessError) as error:
            notes[name] = f"not installed ({_cause(error)}); {where}, or leave peers out: --no-peers"
    return ready, notes


def _cause(error: Exception) -> str:
    """The last line of what a program said before it failed, or the error itself."""
    said = f"{getattr(error, 'stdout', '') or ''}\n{getattr(error, 'stderr', '') or ''}".split("\n")
    return next((line.strip() for line in reversed(said) if line.strip()), str(error))[-300:]


def _install(peer: Peer, folder: Path) -> Installed:
    python, mark = folder / "bin" / "python", folder / "ready"
    if not mark.exists() or mark.read_text() != peer.requirement:
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", "numpy", peer.requirement])
        # After the installation: the installer must not see packages that are not its own.
        (_site_packages(python) / "relief_ray_host.pth").write_text(sysconfig.get_path("purelib") + "\n")
        _run([str(python), "-c", f"import torch, {peer.package}"])
        mark.write_text(peer.requirement)
    query = f"import importlib.metadata as m; print(m.version({peer.package!r}))"
    return Installed(peer=peer, python=python, version=_run([str(python), "-c", query]).strip())


def _site_packages(python: Path) -> Path:
    return Path(_run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
    return done.stdout


def describe(ready: Mapping[str, Installed], notes: Mapping[str, str]) -> dict[str, str | None]:
    """Versions and notes for the record."""
    versions: dict[str, str | None] = {
        f"{p.name}_version": ready[p.name].version if p.name in ready else None for p in PEERS
    }
    return versions | {f"{name}_note": note for name, note in notes.items()}
