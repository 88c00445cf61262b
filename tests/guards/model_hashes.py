"""sha256 of every method's final model on the preset ``quick``: what a change of the code must not change.

``python -m tests.guards.model_hashes`` compares all methods and both engines with every executor, ``--write`` writes
``model_hashes.json`` anew, ``--methods``, ``--engines`` and ``--executors`` take a few of them. Bits of ``fused`` are
the same on every processor but for ``BY_PROCESSOR``. Bits of ``gemm`` depend on the processor and on torch: the file
says for which it was written. Elsewhere, write it at the commit before and compare at the one after.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file

import relief_ray as rr

FILE = Path(__file__).with_name("model_hashes.json")
# RELIEF's first round is its bootstrap; two more after it meet all that a method keeps.
ROUNDS = 3
# Torch computes their own parts (early exits, similarities, distillation), in sums that follow the processor's vectors.
BY_PROCESSOR = frozenset({"darkdistill", "darkdistill_table", "fedel", "fedicu", "fedicu_table", "harmony", "pilot"})
# The same bits are promised for all of them.
EXECUTORS: Mapping[str, tuple[Callable[..., rr.Study], dict[str, object]]] = {
    "one process": (rr.run, {"mode": "inline"}),
    "packed": (partial(rr.run, on="ray"), {"mode": "packed", "num_hosts": 2}),
    "actors": (partial(rr.run, on="ray"), {"mode": "actors"}),
}
METHODS = tuple(method.name for method in rr.methods())
ENGINES = ("fused", "gemm")
Hashes = dict[str, dict[str, str]]


def hashes_of(executor: str, engine: str, methods: Sequence[str] = METHODS) -> Hashes:
    """Run ``quick`` and hash what is left of each method: the server's state, and all tensors with the clients' own."""
    run, runtime = EXECUTORS[executor]
    with tempfile.TemporaryDirectory(prefix="model-hashes-") as folder:
        study = run(
            "quick",
            strategies=list(methods),
            rounds=ROUNDS,
            runtime=runtime,
            training={"engine": engine},
            out=folder,
            quiet=True,
        )
        found = {one.strategy: _hashes(one) for one in study.runs}
    assert list(found) == list(methods), found.keys()
    return found


def _hashes(run: rr.Run) -> dict[str, str]:
    last = run.ledger[-1]
    assert last.round == ROUNDS and run.status == "done" and not last.rejected, f"{run}: not all of it was computed"
    return {"state": last.model_sha256, "tensors": _tensors_sha256(run.folder)}


def _tensors_sha256(folder: Path) -> str:
    """Hash the last checkpoint's tensors, whatever their names and order: these belong to the file's format."""
    file = max(folder.glob("checkpoints/round-*/*.safetensors"))
    parts = sorted(
        hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\0".encode() + _bytes(tensor)).hexdigest()
        for tensor in load_file(file).values()
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def facts() -> dict[str, str]:
    """What decides bits of this machine: its processor and what computes on it."""
    study = rr.run("quick", strategies="fedavg", rounds=1, quiet=True)
    machine = study.runs[0].record.machine.model_dump()
    kept = {name: str(machine[name]) for name in ("architecture", "cpu", "numpy", "num_threads", "torch")}
    return kept | {"cpu_capability": torch.backends.cpu.get_cpu_capability()}


def read() -> tuple[dict[str, str], dict[str, Hashes]]:
    """Facts of the machine that the file was written on, and its hashes by engine and method."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return content["facts"], content["engines"]


def other_machine() -> str:
    """Say in which facts this machine differs from the file's, in words; empty: in none, so that bits must be equal."""
    there, here = read()[0], facts()
    return "; ".join(f"{k}: written on {there.get(k)}, here {v}" for k, v in here.items() if there.get(k) != v)


def comparable(engine: str) -> tuple[str, ...]:
    """Methods that have to have the file's hashes on this machine."""
    if not other_machine():
        return METHODS
    return tuple(name for name in METHODS if name not in BY_PROCESSOR) if engine == "fused" else ()


def differences(expected: Hashes, found: Hashes) -> Iterator[str]:
    """Say of each method that was computed what is other than expected."""
    for method, values in found.items():
        known = expected.get(method, {})
        for name, value in values.items():
            if known.get(name) != value:
                yield f"{method}: {name} is {value[:16]}, expected {known.get(name, 'nothing')[:16]}"


def main() -> int:
    """Write the file, or compare; return the number of methods and executors that differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the file anew: all methods, all executors")
    parser.add_argument("--methods", default=",".join(METHODS), metavar="A,B")
    parser.add_argument("--engines", default=",".join(ENGINES), metavar="A,B")
    parser.add_argument("--executors", default=",".join(EXECUTORS), metavar="A,B")
    words = parser.parse_args()
    methods, engines, executors = (x.split(",") for x in (words.methods, words.engines, words.executors))
    of = dict.fromkeys(ENGINES, methods)
    if words.write:
        methods, engines, executors = list(METHODS), list(ENGINES), list(EXECUTORS)
        first = executors.pop(0)
        expected = {engine: hashes_of(first, engine) for engine in engines}
    else:
        expected = read()[1]
        of = {engine: [name for name in methods if name in comparable(engine)] for engine in engines}
        if why := other_machine():
            print(f"the hashes are another machine's, so only some can be compared ({of}); {why}")
    lines = [
        f"{name}, {engine}: {line}"
        for name in executors
        for engine in engines
        if of[engine]
        for line in differences(expected[engine], hashes_of(name, engine, of[engine]))
    ]
    if words.write and not lines:
        content = {"facts": facts(), "engines": expected}
        FILE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print("\n".join(lines) or f"{len(methods)} methods: equal")
    return min(len(lines), 1)


if __name__ == "__main__":
    sys.exit(main())
