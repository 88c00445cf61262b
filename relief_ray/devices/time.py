"""Time models (clocks): each turns a client's work into seconds by one method, ``times(device, load)``.

A built-in clock is one class and one line in ``_BUILT_IN``; a user's own is one class in a file of theirs.
Waiting is no model's business: it is what remains of the round (``accounting.round_cost``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, ValidationError

from relief_ray.core.messages import StageTimes
from relief_ray.core.stages import Engine
from relief_ray.devices.fleet import DeviceType
from relief_ray.devices.throughput import Stagewise
from relief_ray.devices.workload import Workload
from relief_ray.plugins.blame import call_users, called, require, users_function, with_line
from relief_ray.plugins.contract import kind_violation, times_violation
from relief_ray.plugins.load import ONLY_A_RECORD, closed, import_path, is_path, load_kind
from relief_ray.support.errors import UserCodeError, UserError, listed, nearest, shown
from relief_ray.support.files import read_whole
from relief_ray.support.frozen import FrozenConfig
from relief_ray.support.text import typed

_PROFILE_SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockContext:
    """Facts of a run that a time model may be built from.

    Attributes:
        backbone: the backbone's name, or import path.
        utilisation: share of a device's speed that training reaches, by what is counted: ``flop_proportional`` (FLOPs
            of the trained groups alone) and ``split`` (all). Fitted per backbone, or ``costs.utilisation`` for both.
        types: the fleet's device types by name.
        profile: rows of the device profiles that ``costs.profile`` and the types name; None where none is named.
    """

    backbone: str
    utilisation: Mapping[str, float]
    types: Mapping[str, DeviceType]
    profile: Profile | None = None


class TimeModel(FrozenConfig):
    """A clock; a user's own derives from this class and is named by import path (``costs.planning_time``).

    Fields are the model's parameters: they stand in the run's record, and ``fleet whatif`` reads them from there.
    """

    name: ClassVar[str] = ""
    """How configurations and records call a built-in clock; a user's own is called by its import path."""
    about: ClassVar[str] = ""
    """One line for ``fleet show``."""
    engine: ClassVar[Engine | None] = None
    """The training engine whose FLOPs it is given, ``naive`` or ``reuse``; None: that of the run."""
    needs_profile: ClassVar[bool] = False
    """Whether it can only be built where ``costs.profile`` names a device profile."""
    needs_tops: ClassVar[bool] = False
    """Whether it divides by the peak speed of every device type."""
    is_fitted: ClassVar[bool] = False
    """Whether its constants were chosen so that FedAvg's joules agree with the paper's (``calibration.FITTED``)."""

    @classmethod
    def build(cls, context: ClockContext) -> TimeModel:
        """The clock of a run; without a ``build`` of its own, a class takes the defaults of its fields."""
        return cls()

    def times(self, device: DeviceType, load: Workload) -> StageTimes:
        """Seconds per stage of ``load`` on ``device``; every clock has its own."""
        raise NotImplementedError


def checked_times(clock: TimeModel, device: DeviceType, load: Workload) -> StageTimes:
    """Ask a clock for seconds, and check them; planning and charges both ask here.

    Raises:
        UserCodeFailed: a user's clock gave something else than finite seconds of at least 0; file and line are named.
        UserError: a built-in clock did, since a figure of the device or of the costs is far out of range.
    """
    if users_function(clock.times) is None:
        return _built_in_times(clock, device, load)
    step = f"{type(clock).__name__}.times"
    times = called(clock.times, step, device, load)
    require(clock.times, step, "relief_ray.core.messages.StageTimes", times_violation, times)
    return times


def _built_in_times(clock: TimeModel, device: DeviceType, load: Workload) -> StageTimes:
    try:
        times = clock.times(device, load)
        if not (fault := times_violation(times)):
            return times
    except ArithmeticError as error:  # a speed that rounds to 0, or seconds beyond a float's range
        fault = f"{type(error).__name__}: {error}, expected seconds"
    raise UserError(
        f"clock {clock.name}, device type {device.name}: {fault}; figures are far out of range: change those of "
        f"fleet.types.{device.name}, fleet.gap, costs.utilisation or costs.profile"
    )


class _Fitted(TimeModel):
    """A clock that divides FLOPs by the device's speed and a utilisation that was fitted to the paper's joules."""

    is_fitted = True
    needs_tops = True
    counted: ClassVar[str]
    """Whose FLOPs the utilisation is fitted to, a key of ``ClockContext.utilisation``."""
    utilisation: float = Field(default=1.0, gt=0)

    @classmethod
    def build(cls, context: ClockContext) -> TimeModel:
        """Build the clock with the utilisation fitted for its FLOP model."""
        return cls(utilisation=context.utilisation[cls.counted])


class FlopProportional(_Fitted):
    """The paper's simulation: time proportional to the trained groups' own FLOPs, no fixed forward part (Section VI-A).

    Only the total carries meaning; the record shows a third of it as forward and two thirds as backward, their usual
    proportion.
    """

    name = "flop_proportional"
    about = "the paper's: time in proportion to the trained groups' FLOPs"
    engine = "naive"
    counted = "flop_proportional"

    kind: Literal["flop_proportional"] = "flop_proportional"

    def times(self, device: DeviceType, load: Workload) -> StageTimes:
        """Seconds per stage of ``load`` on ``device``."""
        total_s = (load.group_flops + load.extra_flops) / (device.flops_per_s * self.utilisation)
        up_s, down_s = link_times(device, load)
        return StageTimes(forward_s=total_s / 3, backward_s=total_s * 2 / 3, up_s=up_s, down_s=down_s)


class SplitClock(_Fitted):
    """Counted forward, backward and optimizer FLOPs over the device's speed: what Section VII finds missing."""

    counted = "split"

    kind: Literal["split"] = "split"

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


class SplitNaive(SplitClock):
    """``SplitClock`` on the FLOPs of an engine that computes every layer in every epoch."""

    name = "split_naive"
    about = "forward, backward and optimizer counted, every layer run in every epoch"
    engine = "naive"


class SplitReuse(SplitClock):
    """``SplitClock`` on the FLOPs of an engine that computes what training cannot change once a round."""

    name = "split_reuse"
    about = "the same, but frozen layers are computed once a round"
    engine = "reuse"


class Throughput(FrozenConfig):
    """Measured speed of one device type; the link only where it was measured too."""

    forward_flops_per_s: float = Field(gt=0)
    """FLOP/s of forward passes."""
    backward_flops_per_s: float = Field(gt=0)
    """FLOP/s of backward passes."""
    optimizer_flops_per_s: float = Field(gt=0)
    """FLOP/s of optimizer steps."""
    uplink_mbit_s: float | None = Field(default=None, gt=0)
    """Speed of uploads in 10^6 bits/s; None: the device type's."""
    downlink_mbit_s: float | None = Field(default=None, gt=0)
    """Speed of downloads in 10^6 bits/s; None: the device type's."""
    latency_s: float | None = Field(default=None, ge=0)
    """Seconds that each transfer takes besides; None: the device type's."""
    stagewise: Stagewise | None = None
    """The speeds stage by stage, used instead where they cover all stages of a round."""

    def compute_s(self, load: Workload) -> tuple[float, float, float]:
        """Forward, backward and optimizer seconds of ``load``; extra FLOPs run at the optimizer's speed."""
        extra_s = load.extra_flops / self.optimizer_flops_per_s
        if self.stagewise is not None and load.runs and (timed := self.stagewise.seconds(load)):
            forward_s, backward_s, optimizer_s = timed
            return forward_s, backward_s, optimizer_s + extra_s
        return (
            load.forward_flops / self.forward_flops_per_s,
            load.backward_flops / self.backward_flops_per_s,
            load.optimizer_flops / self.optimizer_flops_per_s + extra_s,
        )


class Conditions(FrozenConfig):
    """Circumstances in which a profile was MEASURED."""

    status: Literal["MEASURED"] = "MEASURED"
    """Always ``MEASURED``."""
    cpu: str
    """Name of the processor."""
    num_cores: int = Field(ge=1)
    """Its cores."""
    num_threads: int = Field(ge=1)
    """Torch threads."""
    torch: str
    """Torch's version."""
    torch_build: str
    """Torch's build options."""
    date: str
    """Day of the measurement."""
    commit: str
    """Commit of the sources."""
    settings: dict[str, str | int | float | None]
    """What was run."""
    turns: int = Field(ge=1)
    """Repetitions."""
    spread: float = Field(ge=0)
    """(q3 - q1) / median of the seconds of a full round over ``turns``."""
    load_before: float | None = None
    """Load average before it began; None where the system has none."""
    device: str = "cpu"
    """Where it trained: ``cpu``, or ``cuda: `` and the GPU's name."""
    power_w: float | None = None
    """Watts of the whole board meanwhile, median over the turns; None where it does not tell."""
    power_mode: str | None = None
    """Name of the board's power mode; None where it has none."""


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


class MeasuredClock(TimeModel):
    """Time from a device profile: each phase has its own speed."""

    name = "measured"
    about = "a device profile's speeds"
    needs_profile = True

    kind: Literal["measured"] = "measured"
    profile: Profile

    @classmethod
    def build(cls, context: ClockContext) -> MeasuredClock:
        """The clock of the device profile, which has to be there."""
        assert context.profile is not None, "a clock that needs a profile is only built with one"
        return cls(profile=context.profile)

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
        link = row.model_dump(include={"uplink_mbit_s", "downlink_mbit_s", "latency_s"}, exclude_none=True)
        up_s, down_s = link_times(device.model_copy(update=link), load)
        forward_s, backward_s, optimizer_s = row.compute_s(load)
        return StageTimes(forward_s=forward_s, backward_s=backward_s, optimizer_s=optimizer_s, up_s=up_s, down_s=down_s)


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
    """Read a profile file.

    Raises:
        UserError: no such file, not JSON, another schema version, or a key that is missing, unknown or out of range.
    """
    try:
        raw = json.loads(read_whole(path))
    except OSError as error:
        raise UserError(
            f"device profile {path}: cannot be read ({error.strerror}); give the path of a profile file"
        ) from error
    except ValueError as error:
        raise UserError(
            f"device profile {path}: not JSON ({error}); write it anew: relief-ray device profile --out {typed(path)}"
        ) from error
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != _PROFILE_SCHEMA:
        raise UserError(
            f"device profile {path}: schema_version {version!r}, this release reads {_PROFILE_SCHEMA}; profile again"
        )
    try:
        return Profile.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"device profile {path}: {where} = {first['input']!r}: {first['msg']}") from error


def profile_text(profile: Profile) -> str:
    """The file's text, which ``load_profile`` reads back equal; what was not measured is left out."""
    return profile.model_dump_json(indent=2, exclude_none=True) + "\n"


_KEY = "costs.planning_time"
_BUILT_IN: tuple[type[TimeModel], ...] = (
    FlopProportional,
    SplitNaive,
    SplitReuse,
    MeasuredClock,
)

CLOCKS: Mapping[str, type[TimeModel]] = {kind.name: kind for kind in _BUILT_IN}


def _find_clock(name: str) -> type[TimeModel] | TimeModel:
    """The class of a clock by name, or the class or instance at a user's import path.

    Raises:
        UserError: the name is unknown, or nothing usable is at the import path.
    """
    if name in CLOCKS:
        return CLOCKS[name]
    if not is_path(name):
        *others, last = map(repr, CLOCKS)
        raise UserError(
            f"{_KEY} = {shown(name)}: expected {', '.join(others)} or {last}{nearest(name, CLOCKS)}; "
            "one of your own goes by its import path, my.module:MyClock"
        )
    clock = load_kind(name, _KEY, TimeModel)
    if (clock if isinstance(clock, type) else type(clock)).times is TimeModel.times:
        raise UserError(f"{_KEY} = {name!r}: the class has no times(device, load); write that method")
    return clock


def clock_name(name: str) -> str:
    """The name that records have for a configured clock: its own, or its import path without ``.py``.

    Raises:
        UserError: there is no such clock.
    """
    _find_clock(name)
    return import_path(name)


def _build_clock(name: str, context: ClockContext) -> TimeModel:
    """One clock of a run.

    Raises:
        UserError: it needs a device profile and the run has none.
        UserCodeError: a user's ``build`` raised an error, or gave something that is no clock; file and line are named.
    """
    clock = _find_clock(name)
    if clock.needs_profile and context.profile is None:
        raise UserError(f"{_KEY} = {name!r} needs a device profile; set costs.profile=FILE")
    if clock.needs_tops and (unknown := _without_tops(context)):
        raise UserError(
            f"{_KEY} = {name!r} needs the tops of every device type, found none of {listed(unknown)}; give them in "
            "fleet.types, or set costs.planning_time=measured"
        )
    if not isinstance(clock, type):
        return clock
    built = call_users(clock.build, context)
    if fault := kind_violation(built, TimeModel):
        raise UserCodeError(with_line(clock.build, f"{clock.__name__}.build {fault}"))
    return built


def _without_tops(context: ClockContext) -> list[str]:
    return [name for name, kind in context.types.items() if kind.tops is None]


def build_clocks(context: ClockContext, planning: str) -> dict[str, TimeModel]:
    """The clocks that a run records: all built-in ones that can be built, and the one that it plans with."""
    names = [
        name
        for name, kind in CLOCKS.items()
        if (context.profile is not None or not kind.needs_profile) and not (kind.needs_tops and _without_tops(context))
    ]
    return {name: _build_clock(name, context) for name in dict.fromkeys((*names, planning))}


def restore_clock(name: str, parameters: object) -> TimeModel:
    """A clock with the parameters that a run recorded.

    Raises:
        UserError: there is no such clock.
        ValidationError: the parameters do not fit.
    """
    with closed(ONLY_A_RECORD):
        clock = _find_clock(name)
    return (clock if isinstance(clock, type) else type(clock)).model_validate(parameters)
