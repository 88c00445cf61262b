"""A step that is the same every time: on a GPU recorded once and replayed, which spares the launch of each kernel."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch


class Memory:
    """What recordings that never run at the same time share; nothing where nothing is recorded."""

    def __init__(self, device: torch.device) -> None:
        """Asked for on a GPU only."""
        self.handle = torch.cuda.graph_pool_handle() if device.type == "cuda" else None


class Replay:
    """Calls a step that reads and writes the same tensors each time; recorded as a CUDA graph where those are.

    The first call is an ordinary one beside the usual stream, since libraries set themselves up in their first; the
    second records, which computes nothing, and replays. A step that cannot be recorded stays an ordinary one. The step
    is not kept, or all that it reads would live until Python looks for circles.
    """

    def __init__(self, device: torch.device, memory: Memory) -> None:
        """Nothing is called yet."""
        self._memory, self._num_calls = memory, 0
        self._graph = torch.cuda.CUDAGraph() if device.type == "cuda" else None

    def __call__(self, step: Callable[[], None]) -> None:
        """One step, the same as ever."""
        self._num_calls += 1
        if self._graph is not None and self._num_calls == 1:
            _aside(step)
        elif self._graph is None or (self._num_calls == 2 and not self._record(self._graph, step)):
            step()
        else:
            self._graph.replay()

    def _record(self, graph: torch.cuda.CUDAGraph, step: Callable[[], None]) -> bool:
        usual = torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, pool=self._memory.handle):
                step()
        except RuntimeError as error:
            # Where a recording is broken off torch may leave its stream behind.
            torch.cuda.set_stream(usual)
            self._graph = None
            warnings.warn(f"training.stack: a step runs unrecorded, and slower: {error}", stacklevel=2)
        return self._graph is not None


def _aside(step: Callable[[], None]) -> None:
    make: Callable[[], torch.cuda.Stream] = torch.cuda.Stream
    usual, aside = torch.cuda.current_stream(), make()
    aside.wait_stream(usual)
    with torch.cuda.stream(aside):
        step()
    usual.wait_stream(aside)
