"""A device's speed stage by stage: seconds of a call and FLOP/s after that, as `relief-ray device profile` finds them.

One speed for a whole phase misses small models badly: a convolution of three channels, a wide matrix product and a
normalisation do not run at one number of FLOPs a second, and every call costs something before the first FLOP.
"""

from __future__ import annotations

from math import ceil

from pydantic import Field

from relief_ray.core.stages import most_windows
from relief_ray.devices.workload import BackwardMode, StageRun, Workload
from relief_ray.support.frozen import FrozenConfig


class Pace(FrozenConfig):
    """Seconds per call (``call_s``) and FLOP/s of the computation (``flops_per_s``)."""

    call_s: float = Field(default=0.0, ge=0)
    flops_per_s: float = Field(gt=0)

    def seconds(self, num_calls: int, flops: float) -> float:
        """``num_calls * call_s + flops / flops_per_s``."""
        return num_calls * self.call_s + flops / self.flops_per_s


class StagePaces(FrozenConfig):
    """Speeds of a stage; where one was not measured, another stands in for it."""

    live: Pace | None = None
    """Forward pass that a gradient follows; stands in for ``frozen``."""
    frozen: Pace | None = None
    """Forward pass without gradient; stands in for ``live``."""
    backward: dict[BackwardMode, Pace] = Field(default_factory=dict)
    """Backward pass by the gradients that it computes; the first entry stands in for missing ones."""
    optimizer: Pace | None = None
    """Optimizer step of its groups."""
    step_bytes: int = Field(default=0, ge=0)
    """Bytes per window that are kept for the backward pass."""

    def forward_of(self, run: StageRun) -> Pace | None:
        """The pace of its forward pass."""
        return (self.live or self.frozen) if run.live else (self.frozen or self.live)

    def backward_of(self, mode: BackwardMode) -> Pace | None:
        """The pace of its backward pass."""
        return self.backward.get(mode) or next(iter(self.backward.values()), None)


class Overheads(FrozenConfig):
    """Seconds beside the stages: of a step by phase (forward includes batch and loss), and of a round."""

    forward_step_s: float = Field(ge=0)
    backward_step_s: float = Field(ge=0)
    optimizer_step_s: float = Field(ge=0)
    round_s: float = Field(ge=0)


class Stagewise(FrozenConfig):
    """Speeds of all stages of one backbone on one device, and the overheads between them.

    ``chunk``: windows of one pass without gradient, once a round; ``micro_batch``: the most windows that went forward
    and backward together, where the configuration says it (None: as ``step_bytes`` of the stages decide).
    """

    overheads: Overheads
    chunk: int = Field(ge=1)
    micro_batch: int | None = Field(default=None, ge=1)
    stages: dict[str, StagePaces] = Field(min_length=1)

    def seconds(self, load: Workload) -> tuple[float, float, float] | None:
        """Forward, backward and optimizer seconds of ``load``; None where a stage of it has not been timed."""
        forward_s, backward_s, optimizer_s = self.overheads.round_s, 0.0, 0.0
        parts = self.parts(load)
        for run in load.runs:
            paces, (num_calls, num_windows) = self._paces(run), self.repeats(load, run, parts)
            forward, backward = paces.forward_of(run), paces.backward_of(run.mode) if run.mode else None
            if forward is None or (run.mode is not None and backward is None):
                return None
            forward_s += forward.seconds(num_calls, num_windows * run.forward_flops)
            if backward is not None:
                backward_s += backward.seconds(num_calls, num_windows * run.backward_flops)
            if paces.optimizer is not None and run.optimizer_flops:
                optimizer_s += paces.optimizer.seconds(load.num_steps, load.num_steps * run.optimizer_flops)
        over, steps = self.overheads, load.num_steps
        backward_step_s = over.backward_step_s if any(run.mode for run in load.runs) else 0.0
        return (
            forward_s + steps * over.forward_step_s,
            backward_s + steps * backward_step_s,
            optimizer_s + steps * over.optimizer_step_s,
        )

    def parts(self, load: Workload) -> int:
        """Micro-batches of a step; where a round's steps differ in size, those of the mean one."""
        num_steps, num_trained = load.repeats["always"]
        kept = sum(self._paces(r).step_bytes for r in load.runs if r.live and r.times == "always")
        most = self.micro_batch or most_windows(kept)
        return ceil(num_trained / num_steps / most) if most and num_steps else 1

    def repeats(self, load: Workload, run: StageRun, parts: int) -> tuple[int, int]:
        """Calls of a stage in a round, and windows in all of them.

        Micro-batches multiply the calls of a step, and the windows of a stage that stands for all of them with one row.
        """
        num_calls, num_windows = load.repeats[run.times]
        if run.times == "once":
            return num_calls, num_windows
        if run.times == "round" and num_calls <= 1:
            return max(num_calls, -(-num_windows // self.chunk)), num_windows
        return num_calls * parts, num_windows * (parts if run.times == "step" else 1)

    def _paces(self, run: StageRun) -> StagePaces:
        return self.stages.get(run.stage, StagePaces())
