"""Measurements of a physical run: the device's side of a call, and what the server adds to it.

Each client gets a model object of its own, which Ray does not fetch by itself: the device fetches it inside the call
and takes the time. Its answer stays on the device, in a box, until the server has heard that it is ready. So download
and upload are each timed by one clock, at their receiver.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import ray

from actors.runtime.serialization import EncodedModel, Packed
from relief_ray.core.messages import ClientId, MeasuredRound, OnDevice
from relief_ray.devices.meter import PowerMeter
from relief_ray.devices.power_sensors import board_root, power_mode
from relief_ray.support.process import Device, device_name

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelBox:
    """A model object that one client fetches itself; ``nbytes``: its length."""

    ref: ray.ObjectRef[Packed[EncodedModel]]
    nbytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerBox(Generic[T]):
    """An answer that waits on its device; the box itself travels at once and says that it is ready."""

    ref: ray.ObjectRef[T]


class DeviceWatch(PowerMeter):
    """Measures one call on its device inside its block: time, power, heat."""

    def __init__(self) -> None:
        """Look for the board's sensors."""
        super().__init__(board_root())
        self._down_s: float | None = None

    def fetch(self, box: ModelBox) -> Packed[EncodedModel]:
        """Fetch the model and take the time."""
        began_s = time.monotonic()
        model: Packed[EncodedModel] = ray.get(box.ref)
        self._down_s = time.monotonic() - began_s
        return model

    def measured(self, device: Device) -> OnDevice:
        """Measurements of the call; ``device``: where the client was trained."""
        total = self.total()
        return OnDevice(
            host=socket.gethostname(),
            device=device_name(device),
            down_s=self._down_s,
            call_s=self.span_s,
            energy_j=None if total is None else total.energy_j,
            energy_of=None if total is None or total.energy_j is None else total.sensor,
            energy_by_rail={rail.label: rail.energy_j for rail in self.by_rail() if rail.energy_j is not None},
            energy_dropped=None if total is None else total.dropped,
            power_mode=power_mode(self._root),
            temperature_c=self.heats[-1].hottest_c,
            throttled=self.was_throttled,
        )


@dataclass(slots=True)
class RoundLog:
    """Collects the measured clients of one round."""

    answers: dict[ClientId, tuple[float, MeasuredRound]] = field(default_factory=dict)
    """By client, when its answer was here (monotonic clock), and what is known by then: all but its waiting."""

    def add(
        self, client: ClientId, on_device: OnDevice | None, up_s: float | None, bytes_down: int, bytes_up: int
    ) -> None:
        """Note an answer that has just come; without a measurement nothing is noted."""
        if on_device is not None:
            known = MeasuredRound(on_device=on_device, up_s=up_s, wait_s=0.0, bytes_down=bytes_down, bytes_up=bytes_up)
            self.answers[client] = time.monotonic(), known

    def finish(self) -> dict[ClientId, MeasuredRound]:
        """The round's training is over now: who has answered has waited until then."""
        over_s = time.monotonic()
        return {client: replace(known, wait_s=over_s - here_s) for client, (here_s, known) in self.answers.items()}
