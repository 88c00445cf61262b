"""A client's round as it was measured on its device. No two clocks are compared: every duration is of one machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class OnDevice:
    """Measurements that a device made of one client's round; None where it does not tell.

    Attributes:
        host: its host name.
        device: ``cpu``, or ``cuda: `` and the GPU's name.
        down_s: seconds from the request for the model until it is in this process.
        call_s: seconds of the whole call: download, training, packing of the answer.
        energy_j: joules of the whole board during the call.
        energy_of: the rails that were read, e.g. ``VDD_IN``.
        energy_dropped: share of the power samples that are missing.
        power_mode: name of the board's power mode.
        temperature_c: hottest zone at the end, degrees Celsius.
        throttled: whether the board slowed itself down.
    """

    host: str
    device: str
    down_s: float | None = None
    call_s: float | None = None
    energy_j: float | None = None
    energy_of: str | None = None
    energy_dropped: float | None = None
    power_mode: str | None = None
    temperature_c: float | None = None
    throttled: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One client's measured round.

    Attributes:
        on_device: measurements of its device.
        up_s: seconds from the moment at which the server heard that the answer is ready until it was there.
        wait_s: seconds from then until the round's training was over.
        bytes_down: bytes of the model and the task, as sent.
        bytes_up: bytes of the answer, as sent.
    """

    on_device: OnDevice
    up_s: float | None
    wait_s: float
    bytes_down: int
    bytes_up: int
