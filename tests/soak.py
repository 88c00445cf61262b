"""A long run of 100 clients on Ray, and what its processes hold meanwhile (`tests/actors/runtime/test_soak.py`).

    python -m tests.soak SECONDS FOLDER

Samples this process and everything that it started (Ray's processes, hosts) every few seconds: resident
memory, open descriptors, and the bytes in Ray's object store. Then the run is stopped as by Ctrl-C. Prints JSON: a list
of samples, and the rounds that the ledger has.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import ray

import relief_ray as rr
from relief_ray.records.run_folder import read_rounds

EVERY_S = 5.0
CLIENTS = 100
KIB_PER_MIB = 1024
SETTINGS = {
    "data.split": "within_subject",
    "data.num_clients": CLIENTS,
    "data.stride_s": 2.56,
    "evaluation.every": 50,
    "backbone.conv1": 2,
    "backbone.conv2": 2,
    "backbone.steps": 2,
    "backbone.fusion": 8,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What was held at one moment: by name of the process, and in the object store."""

    at_s: float
    rss_mib: dict[str, float]
    descriptors: dict[str, int]
    store_bytes: float


def descendants(root: int) -> list[int]:
    """This process and all below it."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(folder.name))
    found = [root]
    for number in found:
        found += parents.get(number, [])
    return found


def name_of(number: int) -> str:
    """The actor's class, the program of Ray, or ``driver``; with its number, since there are several hosts."""
    word = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")[0].decode()
    if number == os.getpid():
        return f"driver {number}"
    # Ray writes the method that runs behind the class: ray::ClientWorker.train
    actor = word.split(" ")[0].removeprefix("ray::").split(".")[0] if word.startswith("ray::") else ""
    return f"{actor or Path(word).name} {number}"


def sample(began: float) -> Sample:
    """Measure everything once; processes that end meanwhile are left out."""
    rss: dict[str, float] = {}
    descriptors: dict[str, int] = {}
    for number in descendants(os.getpid()):
        with suppress(OSError):
            status = Path(f"/proc/{number}/status").read_text()
            kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
            name, opened = name_of(number), len(os.listdir(f"/proc/{number}/fd"))
            rss[name], descriptors[name] = kib / KIB_PER_MIB, opened
    key = "object_store_memory"
    held = ray.cluster_resources().get(key, 0.0) - ray.available_resources().get(key, 0.0)
    return Sample(at_s=time.monotonic() - began, rss_mib=rss, descriptors=descriptors, store_bytes=held)


def watch(seconds: float, samples: list[Sample]) -> None:
    """Sample until the time is over, then stop the run."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        time.sleep(EVERY_S)
        if ray.is_initialized():
            samples.append(sample(began))
    os.kill(os.getpid(), signal.SIGINT)


def main(seconds: float, folder: Path) -> None:
    """Run, sample, print."""
    # A shell's background jobs, and what these start, ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    samples: list[Sample] = []
    threading.Thread(target=watch, args=(seconds, samples), daemon=True).start()
    with suppress(KeyboardInterrupt):
        rr.run(
            "quick", strategies=["fedavg"], seeds=[0], rounds=100_000, out=folder, set=SETTINGS, quiet=True, on="ray",
            runtime={"mode": "packed", "num_hosts": 2},
        )  # fmt: skip
    (run,) = folder.glob("**/rounds.jsonl")
    print(json.dumps({"rounds": len(read_rounds(run.parent)), "samples": [asdict(s) for s in samples]}))


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]))
