"""Device types: speed, power and link; presets A, B and C of the paper (Sections VI-A and VII)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import Field, model_validator

from relief_ray.support.frozen import FrozenConfig

TERA = 1e12

_POSITIVE = {
    "peak_tops": "10^12 operations per second; the paper's types have 275, 21 and 5",
    "utilisation": "the share of the fleet's calibrated speed that this device reaches; 1.0 changes nothing",
    "active_power_w": "watts while computing; the paper's types draw 60, 30 and 5",
    "uplink_bytes_per_s": "bytes per second; 12e6 is our choice, the paper names none",
    "downlink_bytes_per_s": "bytes per second; 12e6 is our choice, the paper names none",
}


class DeviceType(FrozenConfig):
    """A kind of device.

    Its speed in FLOP/s is ``peak_tops`` x 10^12 x ``utilisation`` x the time model's fitted utilisation.

    Attributes:
        name: the type's name, e.g. ``A``.
        peak_tops: peak speed in 10^12 operations/s.
        utilisation: share of it that this type reaches beside the others.
        active_power_w: watts while computing.
        comm_power_fraction: share of ``active_power_w`` while communicating; 0.6 from the testbed's 8 W of 13 W.
        idle_fraction: share of ``active_power_w`` while waiting; 0.2 as Section VI-A says.
        uplink_bytes_per_s: speed of uploads.
        downlink_bytes_per_s: speed of downloads.
        latency_s: seconds that each transfer takes besides.
        ray_resources: Ray resources that a node of this type offers.

    Raises:
        ValidationError: a figure that no device can have; the message names the type, the key and the fix.
    """

    name: str = Field(min_length=1)
    peak_tops: float
    utilisation: float = 1.0
    active_power_w: float
    comm_power_fraction: float = 0.6
    idle_fraction: float = 0.2
    uplink_bytes_per_s: float = 12e6
    downlink_bytes_per_s: float = 12e6
    latency_s: float = 0.01
    ray_resources: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _plausible(self) -> DeviceType:
        for key, meaning in _POSITIVE.items():
            if getattr(self, key) <= 0:
                raise ValueError(
                    f"device type {self.name!r}: {key} = {getattr(self, key)}, expected a number above 0 ({meaning})"
                )
        for key in ("comm_power_fraction", "idle_fraction"):
            if not 0 <= getattr(self, key) <= 1:
                place = f"device type {self.name!r}: {key} = {getattr(self, key)}"
                raise ValueError(f"{place}, expected 0 to 1, a share of active_power_w")
        if self.latency_s < 0:
            raise ValueError(f"device type {self.name!r}: latency_s = {self.latency_s}, expected 0 or more seconds")
        if bad := {k: v for k, v in self.ray_resources.items() if v < 0}:
            raise ValueError(f"device type {self.name!r}: ray_resources has negative amounts {bad}; use 0 or more")
        return self

    @property
    def flops_per_s(self) -> float:
        """Peak speed times the device's own utilisation."""
        return self.peak_tops * TERA * self.utilisation

    @property
    def comm_power_w(self) -> float:
        """Watts while sending or receiving."""
        return self.comm_power_fraction * self.active_power_w

    @property
    def idle_power_w(self) -> float:
        """Watts while waiting for the round's end."""
        return self.idle_fraction * self.active_power_w


def _preset(power_c_w: float) -> Mapping[str, DeviceType]:
    figures = (("A", 275.0, 60.0), ("B", 21.0, 30.0), ("C", 5.0, power_c_w))
    return MappingProxyType(
        {
            name: DeviceType(
                name=name, peak_tops=tops, active_power_w=power, ray_resources={f"type_{name.lower()}": 1.0}
            )
            for name, tops, power in figures
        }
    )


PRESETS: Mapping[str, Mapping[str, DeviceType]] = MappingProxyType({"paper": _preset(5.0), "testbed": _preset(15.0)})
PRESET_GAP = 55.0
_GAP_EXPONENT_B = -0.64


def with_gap(types: Mapping[str, DeviceType], gap: float) -> dict[str, DeviceType]:
    """The same types with Type C at ``1/gap`` and B at ``gap^-0.64`` of Type A's speed; 55 is the preset, untouched.

    Source: the sensitivity study's 10x / 55x / 100x (Section VI); 55^-0.64 = 1/13, the paper's Type B.
    """
    if gap == PRESET_GAP:
        return dict(types)
    peak = types["A"].peak_tops
    tops = {"A": peak, "B": peak * gap**_GAP_EXPONENT_B, "C": peak / gap}
    return {name: types[name].model_copy(update={"peak_tops": tops[name]}) for name in tops}
