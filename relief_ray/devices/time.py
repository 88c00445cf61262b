"""From FLOPs to seconds: three time models behind one method, ``times(device, load)``.

Waiting is not a model's business: it is what remains of the round (``energy.round_cost``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from relief_ray.devices.paces import Stagewise
from relief_ray.devices.types import DeviceType
from relief_ray.devices.workload import Workload
from relief_ray.errors import UserError
from relief_ray.frozen import FrozenConfig
from relief_ray.messages import StageTimes
from relief_ray.stages import Engine

PROFILE_SCHEMA = 1


class FlopProportional(FrozenConfig):
    """The paper's simulation: time proportional to the trained groups' own FLOPs, no fixed forward part (Section VI-A).

    Only the total carries meaning; the record shows a third of it as forward and two thirds as backward, their usual
    proportion.
    """

    kind: Literal["flop_proportional"] = "flop_proportional"
    utilisation: float = Field(default=1.0, gt=0)

    def times(self, device: DeviceType, load: Workload) -> StageTimes:
        """Seconds per stage of ``load`` on ``device``."""
        total_s = (load.group_flops + load.extra_flops) / (device.flops_per_s * self.utilisation)
        up_s, down_s = link_times(device, load)
        return StageTimes(forward_s=total_s / 3, backward_s=total_s * 2 / 3, up_s=up_s, down_s=down_s)


class Split(FrozenConfig):
    """Counted forward, backward and optimizer FLOPs over the device's speed: what Section VII finds missing."""

    kind: Literal["split"] = "split"
    utilisation: float = Field(default=1.0, gt=0)

    def times(self, device: DeviceType, load: Workload) -> StageTimes:
        """Seconds per stage of ``load`` on ``device``."""
        rate = device.flops_per_s * self.utilisation
        up_s, down_s = link_times(device, load)
        return StageTimes(
            forward_s=load.forward_flops / rate,
            backward_s=load.backward_flops / rate,
            optimizer_s=(load.optimizer_flops + load.extra_flops) / rate,
            up_s=up_s,
            down_s=down_s,
        )


class Throughput(FrozenConfig):
    """What one device type was seen to do: FLOP/s by phase; the link only where it was measured too.

    ``stagewise``: the same stage by stage, used instead where it knows all stages of a round.
    """

    forward_flops_per_s: float = Field(gt=0)
    backward_flops_per_s: float = Field(gt=0)
    optimizer_flops_per_s: float = Field(gt=0)
    uplink_bytes_per_s: float | None = Field(default=None, gt=0)
    downlink_bytes_per_s: float | None = Field(default=None, gt=0)
    latency_s: float | None = Field(default=None, ge=0)
    stagewise: Stagewise | None = None

    def compute_s(self, load: Workload) -> tuple[float, float, float]:
        """Forward, backward and optimizer seconds of ``load``; extra FLOPs run at the optimizer's speed."""
        extra_s = load.extra_flops / self.optimizer_flops_per_s
        if self.stagewise is not None and self.stagewise.knows(load):
            forward_s, backward_s, optimizer_s = self.stagewise.seconds(load)
            return forward_s, backward_s, optimizer_s + extra_s
        return (
            load.forward_flops / self.forward_flops_per_s,
            load.backward_flops / self.backward_flops_per_s,
            load.optimizer_flops / self.optimizer_flops_per_s + extra_s,
        )


class Conditions(FrozenConfig):
    """Under which a profile was MEASURED: machine, versions, settings, and how far its repetitions lay apart.

    ``spread`` is (q3 - q1) / median of the seconds of a full round over ``turns``.
    """

    status: Literal["MEASURED"] = "MEASURED"
    cpu: str
    num_cores: int = Field(ge=1)
    num_threads: int = Field(ge=1)
    torch: str
    torch_build: str
    date: str
    commit: str
    settings: dict[str, str | int | float | None]
    turns: int = Field(ge=1)
    spread: float = Field(ge=0)
    load_before: float | None = None


class Profile(FrozenConfig):
    """A device profile file: ``origin`` says on what and when it was measured, ``devices`` has a row per type.

    ``engine``: the training engine it was measured with; it prices no other.
    """

    schema_version: Literal[1] = 1
    origin: str = Field(min_length=1)
    backbone: str = Field(min_length=1)
    engine: Engine | None = None
    measured: Conditions | None = None
    devices: dict[str, Throughput] = Field(min_length=1)


class Measured(FrozenConfig):
    """Time from a device profile: each phase has its own speed."""

    kind: Literal["measured"] = "measured"
    profile: Profile

    def times(self, device: DeviceType, load: Workload) -> StageTimes:
        """Seconds per stage of ``load`` on ``device``.

        Raises:
            UserError: the profile has no row for this device type.
        """
        if device.name not in self.profile.devices:
            raise UserError(
                f"device profile ({self.profile.origin}) has rows for {sorted(self.profile.devices)}, "
                f"none for type {device.name!r}; profile that device or choose another time model"
            )
        row = self.profile.devices[device.name]
        link = {k: getattr(row, k) for k in ("uplink_bytes_per_s", "downlink_bytes_per_s", "latency_s")}
        up_s, down_s = link_times(device.model_copy(update={k: v for k, v in link.items() if v is not None}), load)
        forward_s, backward_s, optimizer_s = row.compute_s(load)
        return StageTimes(forward_s=forward_s, backward_s=backward_s, optimizer_s=optimizer_s, up_s=up_s, down_s=down_s)


TimeModel = Annotated[FlopProportional | Split | Measured, Field(discriminator="kind")]


def link_times(device: DeviceType, load: Workload) -> tuple[float, float]:
    """Seconds up and down: one latency and the payload over the bandwidth, each way."""
    up_s = device.latency_s + load.bytes_up / device.uplink_bytes_per_s
    return up_s, device.latency_s + load.bytes_down / device.downlink_bytes_per_s


def throughput(load: Workload, measured: StageTimes) -> Throughput:
    """The profile row of a device that needed ``measured`` seconds for ``load``.

    A phase too short to be timed takes the speed of the others together.

    Raises:
        UserError: nothing was computed or nothing was timed.
    """
    phases = (
        (load.forward_flops, measured.forward_s),
        (load.backward_flops, measured.backward_s),
        (load.optimizer_flops, measured.optimizer_s),
    )
    timed = [(flops, seconds) for flops, seconds in phases if flops > 0 and seconds > 0]
    if not timed:
        raise UserError("no phase has both FLOPs and seconds: profile a round that trains at least one group")
    overall = sum(flops for flops, _ in timed) / sum(seconds for _, seconds in timed)
    forward, backward, optimizer = (f / s if f > 0 and s > 0 else overall for f, s in phases)
    return Throughput(forward_flops_per_s=forward, backward_flops_per_s=backward, optimizer_flops_per_s=optimizer)


def load_profile(path: Path) -> Profile:
    """Reads a profile file.

    Raises:
        UserError: no such file, not JSON, another schema version, or a key that is missing, unknown or out of range.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"device profile {path}: cannot be read ({error.strerror}); give the path of a profile file"
        ) from error
    except ValueError as error:
        raise UserError(f"device profile {path}: not JSON ({error}); write it anew with save_profile") from error
    found = raw.get("schema_version") if isinstance(raw, dict) else None
    if found != PROFILE_SCHEMA:
        raise UserError(
            f"device profile {path}: schema_version {found!r}, this release reads {PROFILE_SCHEMA}; profile again"
        )
    try:
        return Profile.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"device profile {path}: {where} = {first['input']!r}: {first['msg']}") from error


def save_profile(profile: Profile, path: Path) -> None:
    """Writes a profile file that ``load_profile`` reads back equal."""
    path.write_text(profile_text(profile), encoding="utf-8")


def profile_text(profile: Profile) -> str:
    """The file's text; what was not measured is left out."""
    return profile.model_dump_json(indent=2, exclude_none=True) + "\n"
