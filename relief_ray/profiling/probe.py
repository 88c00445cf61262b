"""Times single stages in place, while the trainer does its usual work.

A stage run alone would find its inputs in the cache and its memory allocated, which it does not in a round. So the
modules of a backbone are wrapped: forward is timed around the call, backward from the moment that a stage's output
gradient is computed to the moment that the next stage's is (on a CPU, autograd runs one node after another).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Literal

from torch import Tensor, nn

from relief_ray.client import LocalStep, task_loss
from relief_ray.models.backbone import Backbone

Phase = Literal["live", "frozen", "weights", "input", "both"]
FORWARD: frozenset[Phase] = frozenset({"live", "frozen"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One timed call of a stage.

    Attributes:
        stage: the stage.
        phase: forward with (``live``) or without gradient (``frozen``); backward to ``weights``, ``input`` or both.
        rows: windows of the call.
        seconds: duration.
    """

    stage: str
    phase: Phase
    rows: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Arrival:
    stage: str
    phase: Phase
    rows: int
    at_s: float


class _Probe(nn.Module):
    """Wraps a stage's module and times its calls."""

    def __init__(self, module: nn.Module, stage: str, probes: Probes) -> None:
        super().__init__()
        self.module, self.stage, self.probes = module, stage, (probes,)

    def forward(self, *inputs: Tensor) -> Tensor:
        began = perf_counter()
        output: Tensor = self.module(*inputs)
        seconds, rows, probes = perf_counter() - began, max(map(len, inputs)), self.probes[0]
        live = output.requires_grad
        probes.spans.append(Span(stage=self.stage, phase="live" if live else "frozen", rows=rows, seconds=seconds))
        if live:
            is_trained = any(p.requires_grad for p in self.module.parameters())
            reaches_input = any(x.requires_grad for x in inputs)
            phase: Phase = "weights" if not reaches_input else "both" if is_trained else "input"
            output.register_hook(partial(probes.arrive, self.stage, phase, rows))  # type: ignore[no-untyped-call]
        return output


class Probes:
    """Wraps all stages of a backbone, permanently, and collects the spans of the rounds that it trains."""

    def __init__(self, backbone: Backbone) -> None:
        """Build the trainer before: it rebinds the parameters."""
        self.spans: list[Span] = []
        self._arrivals: list[_Arrival] = []
        self._touched_s = 0.0
        stages = backbone.stages
        backbone.stages = tuple(replace(s, module=_Probe(s.module, s.spec.id, self)) for s in stages)
        for p in (p for ps in backbone.parameters.values() for p in ps):
            p.requires_grad_(True).register_post_accumulate_grad_hook(self._touch)  # type: ignore[no-untyped-call]

    def objective(self, step: LocalStep) -> Tensor:
        """The task loss; also closes the spans of the previous step."""
        self._close()
        return task_loss(step)

    def arrive(self, stage: str, phase: Phase, rows: int, _gradient: Tensor) -> None:
        """Note when the gradient of a stage's output is computed: until then the stage above it ran."""
        self._arrivals.append(_Arrival(stage=stage, phase=phase, rows=rows, at_s=perf_counter()))

    def take(self) -> list[Span]:
        """Return the spans since the last call."""
        self._close()
        taken, self.spans = self.spans, []
        return taken

    def _touch(self, _parameter: Tensor) -> None:
        self._touched_s = perf_counter()

    def _close(self) -> None:
        self.spans += self._backward()
        self._arrivals = []

    def _backward(self) -> Iterator[Span]:
        if not self._arrivals:
            return
        ends = [*(a.at_s for a in self._arrivals[1:]), max(self._touched_s, self._arrivals[-1].at_s)]
        for arrival, end_s in zip(self._arrivals, ends, strict=True):
            yield Span(stage=arrival.stage, phase=arrival.phase, rows=arrival.rows, seconds=end_s - arrival.at_s)
