"""`relief-ray device profile`: measures this machine's seconds per stage of a backbone, for `costs.profile`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from actors.commands.monitor import NOT_AVAILABLE, number
from relief_ray.config.experiment import override, parse
from relief_ray.devices.fleet import TYPES
from relief_ray.devices.throughput import Pace
from relief_ray.devices.time import Profile, profile_text
from relief_ray.models.registry import BACKBONES, backbone_name
from relief_ray.profiling.profile import profile_device
from relief_ray.support.errors import UserError
from relief_ray.support.files import disk_errors, write_atomic
from relief_ray.support.text import si, table, typed

_BUSY = 0.7


def profile(
    backbone: str | None, settings: Sequence[str], types: str, turns: int, out: Path | None, as_json: bool
) -> None:
    """Measure, write the profile, and say how to use it.

    Raises:
        UserError: an unknown backbone or device type, or a place that cannot be written.
    """
    if backbone is not None and backbone not in BACKBONES:
        raise UserError(f"--backbone {backbone}: unknown; expected one of {', '.join(BACKBONES)}")
    config = parse(override({"backbone": {"name": backbone}} if backbone else {}, settings))
    chosen = types_of(types)
    path = out or Path(f"profile-{backbone_name(config.backbone).replace(':', '.')}.json")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"--out {path}: expected a file in a folder that is there")
    measured_profile = profile_device(config, chosen, turns)
    with disk_errors(path, "write the profile"):
        write_atomic(path, profile_text(measured_profile).encode())
    print(
        json.dumps({"path": str(path), **measured_profile.model_dump(mode="json")}, indent=1)
        if as_json
        else text(measured_profile, path)
    )


def types_of(names: str) -> tuple[str, ...]:
    """The device types of ``A,B,C``.

    Raises:
        UserError: another one, or none.
    """
    chosen = tuple(name.strip() for name in names.split(",") if name.strip())
    if not chosen or set(chosen) - set(TYPES):
        raise UserError(f"--types {names}: expected some of {','.join(TYPES)}, e.g. --types A,B,C")
    return tuple(name for name in TYPES if name in chosen)


def text(profiled: Profile, path: Path) -> str:
    """Tables of conditions, phases and stages."""
    assert profiled.measured is not None, "just measured"
    seen, row = profiled.measured, next(iter(profiled.devices.values()))
    assert row.stagewise is not None, "just measured"
    batch = int(seen.settings["windows_per_batch"] or 1)
    phases = [("forward", row.forward_flops_per_s), ("backward", row.backward_flops_per_s)]
    phases.append(("optimizer", row.optimizer_flops_per_s))
    over = row.stagewise.overheads
    stages = [
        [
            name,
            rate(paces.live),
            rate(paces.frozen),
            *(rate(paces.backward.get(m)) for m in ("weights", "input", "both")),
        ]
        for name, paces in row.stagewise.stages.items()
    ]
    lines = [
        f"Backbone {profiled.backbone}, engine {profiled.engine}, batches of {batch} windows: MEASURED {seen.date}",
        f"{seen.cpu}, {seen.num_cores} cores, threads: {seen.num_threads}; torch {seen.torch} ({seen.torch_build}); "
        f"commit {seen.commit}",
        f"Trained on {seen.device}; power mode {seen.power_mode or NOT_AVAILABLE}; the board took "
        f"{number(seen.power_w)} W meanwhile",
        f"Medians of {seen.turns} turns; a full round's quartiles lie {100 * seen.spread:.1f} % of its median apart",
        "",
        "  " + ", ".join(f"{name} {si(value, 'FLOP/s')}" for name, value in phases),
        f"  a step: {1e3 * (over.forward_step_s + over.backward_step_s + over.optimizer_step_s):.2f} ms beside its "
        f"stages, a round: {1e3 * over.round_s:.2f} ms",
        "",
        "FLOP/s after the call itself; backward by the gradients it computes",
        table(["stage", "live", "frozen", "weights", "input", "both"], stages),
        "",
        f"Written: {path} (types {', '.join(profiled.devices)}; the link stays the fleet's)",
        f"Use it:  relief-ray run demo --set costs.profile={typed(path)} --set costs.planning_time=measured",
    ]
    return "\n".join([*lines, *_warnings_of(profiled)])


def rate(pace: Pace | None) -> str:
    """FLOP/s, or a dash."""
    return "-" if pace is None else si(pace.flops_per_s)


def _warnings_of(profiled: Profile) -> list[str]:
    """Reasons why the figures may mislead."""
    seen = profiled.measured
    if seen is None or seen.load_before is None or seen.load_before < _BUSY:
        return []
    return [f"NOTE: the machine was busy (load {seen.load_before:.1f} before it began); measure again when it is idle"]
