"""Reference numbers: a short federated training that every machine can repeat, and how far two results may differ.

Equal processors with the same torch give the same bits. Others add up in another order, so the numbers agree to
rounding: FedAvg with plain SGD, which amplifies no last bit as Adam's division does, stays within ``WITHIN``.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import safetensors.torch
from numpy.typing import NDArray

from relief_ray.config.experiment import override, parse
from relief_ray.conformance.runner import PROBLEM, drive
from relief_ray.experiment.setup import prepare
from relief_ray.records import checkpoint
from relief_ray.records.identity import machine_facts
from relief_ray.records.schema import Machine
from relief_ray.support.process import Device, device_name, use_threads

WITHIN = 1e-4
_SETTINGS = (
    "strategy=fedavg", "training.optimizer=sgd", "training.lr=0.3", "training.epochs=4", "rounds=3",
    "participation=1.0",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceNumbers:
    """One machine's result.

    Attributes:
        machine: where it was computed; its ``device`` says on what.
        sha256: hash of all values' bits.
        values: what training added to each group's values, float32: a start model would hide small errors.
    """

    machine: Machine
    sha256: str
    values: Mapping[str, NDArray[np.float32]]


def reference_numbers(device: Device = "cpu") -> ReferenceNumbers:
    """Compute the reference numbers here, with one thread, on the excerpt that ships with the package."""
    use_threads(1)
    config = parse(override(PROBLEM, [*_SETTINGS, f"training.device={device}"]), "conformance")
    with tempfile.TemporaryDirectory(prefix="relief-ray-") as folder:
        drive(config, Path(folder) / "run")
        newest = checkpoint.generations(Path(folder) / "run")[0]
        tensors = safetensors.torch.load_file(newest / checkpoint.STATE_FILE)
    start = prepare(config).start
    names = {unquote(name).removeprefix("models/global/"): name for name in sorted(tensors)}
    values = {j: (tensors[name] - start[j]).numpy() for j, name in names.items() if j in start}
    total = hashlib.sha256()
    for name, value in values.items():
        total.update(f"{name}\0{value.shape}\0".encode() + value.tobytes())
    machine = machine_facts().model_copy(update={"device": device_name(device)})
    return ReferenceNumbers(machine=machine, sha256=total.hexdigest(), values=values)


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """Comparison of a machine's numbers with the reference.

    Attributes:
        is_same: whether all bits are equal.
        needs_bits: whether they have to be: same processor, device, torch and numpy.
        difference: largest relative difference of a group, ``max |x - y| / max |y|``; infinite where shapes differ.
    """

    is_same: bool
    needs_bits: bool
    difference: float

    @property
    def is_kept(self) -> bool:
        """Whether the machine reproduces the reference as far as it has to."""
        return self.is_same or (not self.needs_bits and self.difference <= WITHIN)


def agreement(numbers: ReferenceNumbers, reference: ReferenceNumbers) -> Agreement:
    """Compare two results."""
    mine, theirs = numbers.machine, reference.machine
    alike = ("cpu", "architecture", "device", "torch", "numpy")
    if numbers.values.keys() != reference.values.keys():
        difference = float("inf")
    else:
        difference = max(_relative(numbers.values[name], y) for name, y in reference.values.items())
    return Agreement(
        is_same=numbers.sha256 == reference.sha256,
        needs_bits=all(getattr(mine, name) == getattr(theirs, name) for name in alike),
        difference=difference,
    )


def _relative(x: NDArray[np.float32], y: NDArray[np.float32]) -> float:
    """Largest difference over the largest value; infinite where shapes differ or a value is not finite."""
    if x.shape != y.shape or not np.isfinite(x).all():
        return float("inf")
    scale = float(np.abs(y).max()) or 1.0
    return float(np.abs(x.astype(np.float64) - y.astype(np.float64)).max()) / scale
