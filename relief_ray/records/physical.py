"""Record of a client's round as it was measured on its device, beside the simulated ones and never mixed with them."""

from __future__ import annotations

from dataclasses import asdict

from relief_ray.core.messages import Measured, StageTimes
from relief_ray.records.base import Record

# Stages of a client's training that a device measures.
_STAGES = ("forward_s", "backward_s", "optimizer_s")


class PhysicalRecord(Record):
    """One client's measured round (``runtime.physical``); None where its device does not tell.

    Attributes:
        host: name of the device's host.
        device: ``cpu``, or ``cuda: `` and the GPU's name.
        down_s: seconds from the request for the model until the device had it.
        forward_s: seconds of forward passes.
        backward_s: seconds of backward passes.
        optimizer_s: seconds of optimizer steps.
        up_s: seconds from the ready answer until the server had it.
        wait_s: seconds from then until the last client of the round was done.
        call_s: seconds of the device's whole call: download, training, packing.
        bytes_down: bytes that were sent to it.
        bytes_up: bytes that it sent.
        energy_j: joules of the whole board during the call.
        energy_of: rails that were read.
        energy_dropped: share of the power samples that are missing.
        power_mode: name of the board's power mode.
        temperature_c: hottest zone at the end, degrees Celsius.
        throttled: whether the board slowed itself down.
    """

    host: str
    device: str
    down_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    optimizer_s: float | None = None
    up_s: float | None = None
    wait_s: float | None = None
    call_s: float | None = None
    bytes_down: int | None = None
    bytes_up: int | None = None
    energy_j: float | None = None
    energy_of: str | None = None
    energy_dropped: float | None = None
    power_mode: str | None = None
    temperature_c: float | None = None
    throttled: bool | None = None

    @property
    def compute_s(self) -> float | None:
        """Seconds of forward, backward and optimizer; None where they were not measured."""
        stages = self.forward_s, self.backward_s, self.optimizer_s
        return None if None in stages else sum(s for s in stages if s is not None)


def physical_record(measured: Measured, stages: StageTimes | None) -> PhysicalRecord:
    """Convert a measurement; ``stages``: the client's measured stages, None where its receipt is missing."""
    times = {} if stages is None else {name: getattr(stages, name) for name in _STAGES}
    return PhysicalRecord(
        **asdict(measured.on_device),
        **times,
        up_s=measured.up_s,
        wait_s=measured.wait_s,
        bytes_down=measured.bytes_down,
        bytes_up=measured.bytes_up,
    )
