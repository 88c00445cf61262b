"""Times single stages in place, while the trainer does its usual work.

A stage run alone would find its inputs in the cache and its memory allocated, which it does not in a round. So the
modules of a backbone are wrapped: forward is timed around the call, backward from the moment that a stage's output
gradient is computed to the moment that the next stage's is (autograd runs one node after another, and so does a GPU's
stream). On a GPU moments are marks in its work (``torch.cuda.Event``), which are read once a round is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from torch import Tensor, nn

from relief_ray.core.client import LocalStep, task_loss
from relief_ray.models.backbone import Backbone
from relief_ray.support.process import Moment, moment, seconds_between

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
class _Call:
    """A forward call whose moments are not read yet."""

    stage: str
    phase: Phase
    rows: int
    began: Moment
    ended: Moment


@dataclass(frozen=True, kw_only=True, slots=True)
class _Arrival:
    stage: str
    phase: Phase
    rows: int
    at: Moment


class _Probe(nn.Module):
    """Wraps a stage's module and times its calls."""

    def __init__(self, module: nn.Module, stage: str, probes: Probes) -> None:
        super().__init__()
        self.module, self.stage, self.probes = module, stage, (probes,)

    def forward(self, *inputs: Tensor) -> Tensor:
        probes = self.probes[0]
        began = probes.now()
        output: Tensor = self.module(*inputs)
        ended, rows, live = probes.now(), max(map(len, inputs)), output.requires_grad
        probes.calls.append(
            _Call(stage=self.stage, phase="live" if live else "frozen", rows=rows, began=began, ended=ended)
        )
        if live:
            is_trained = any(p.requires_grad for p in self.module.parameters())
            reaches_input = any(x.requires_grad for x in inputs)
            phase: Phase = "weights" if not reaches_input else "both" if is_trained else "input"
            output.register_hook(partial(probes.arrive, self.stage, phase, rows))  # type: ignore[no-untyped-call]
        return output


class Probes:
    """Wraps all stages of a backbone, permanently, and collects the spans of the rounds that it trains."""

    def __init__(self, backbone: Backbone, on_gpu: bool = False) -> None:
        """Build the trainer before: it rebinds the parameters. ``on_gpu``: that is where it trains."""
        self.calls: list[_Call] = []
        self._rounds: list[tuple[list[_Arrival], Moment | None]] = []
        self._arrivals: list[_Arrival] = []
        self._touched: Moment | None = None
        self._on_gpu = on_gpu
        stages = backbone.stages
        backbone.stages = tuple(replace(s, module=_Probe(s.module, s.spec.id, self)) for s in stages)
        for p in (p for ps in backbone.parameters.values() for p in ps):
            p.requires_grad_(True).register_post_accumulate_grad_hook(self._touch)  # type: ignore[no-untyped-call]

    def now(self) -> Moment:
        """Now, by the clock of the device that trains."""
        return moment(self._on_gpu)

    def objective(self, step: LocalStep) -> Tensor:
        """The task loss; also closes the spans of the previous step."""
        self._close()
        return task_loss(step)

    def arrive(self, stage: str, phase: Phase, rows: int, _gradient: Tensor) -> None:
        """Note when the gradient of a stage's output is computed: until then the stage above it ran."""
        self._arrivals.append(_Arrival(stage=stage, phase=phase, rows=rows, at=self.now()))

    def take(self) -> list[Span]:
        """Return the spans since the last call, forward before backward."""
        self._close()
        calls, rounds, self.calls, self._rounds = self.calls, self._rounds, [], []
        forward = [
            Span(stage=c.stage, phase=c.phase, rows=c.rows, seconds=seconds_between(c.began, c.ended)) for c in calls
        ]
        return forward + [span for arrivals, touched in rounds for span in _backward(arrivals, touched)]

    def _touch(self, _parameter: Tensor) -> None:
        self._touched = self.now()

    def _close(self) -> None:
        if self._arrivals:
            self._rounds.append((self._arrivals, self._touched))
        self._arrivals = []


def _backward(arrivals: Sequence[_Arrival], touched: Moment | None) -> Iterator[Span]:
    """Spans of one backward pass; its last one ends when the last parameter was touched, if that came later."""
    for arrival, following in zip(arrivals, [*arrivals[1:], None], strict=True):
        end = touched if following is None else following.at
        seconds = 0.0 if end is None else seconds_between(arrival.at, end)
        yield Span(
            stage=arrival.stage, phase=arrival.phase, rows=arrival.rows,
            seconds=max(0.0, seconds) if following is None else seconds,
        )  # fmt: skip
