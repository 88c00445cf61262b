"""CUDA graphs of training steps: a step recorded once and replayed spares the launch of each of its kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch


class GraphMemory:
    """A memory pool shared by CUDA graphs that never run at the same time; ``handle`` is None on a CPU."""

    def __init__(self, device: torch.device) -> None:
        """Reserve a pool handle if ``device`` is a GPU."""
        self.handle = torch.cuda.graph_pool_handle() if device.type == "cuda" else None


class CudaGraphStep:
    """Calls a step that reads and writes the same tensors each time; on a GPU it is replayed as a CUDA graph.

    The first call runs eagerly on a side stream, since libraries initialise themselves in their first call. The second
    call records the graph, which computes nothing, and replays it. A step that cannot be recorded keeps running
    eagerly. No reference to the step is kept: a cycle would keep all its tensors alive until the garbage collector
    runs.
    """

    def __init__(self, device: torch.device, memory: GraphMemory) -> None:
        """Prepare a graph on ``device``; nothing is recorded yet."""
        self._memory, self._num_calls = memory, 0
        self._graph = torch.cuda.CUDAGraph() if device.type == "cuda" else None

    def __call__(self, step: Callable[[], None]) -> None:
        """Run ``step``, which must be the same at every call."""
        self._num_calls += 1
        if self._graph is not None and self._num_calls == 1:
            _on_side_stream(step)
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
            # A recording that was broken off may leave its stream current.
            torch.cuda.set_stream(usual)
            self._graph = None
            warnings.warn(f"training.stack: a step runs unrecorded, and slower: {error}", stacklevel=2)
        return self._graph is not None


def _on_side_stream(step: Callable[[], None]) -> None:
    make: Callable[[], torch.cuda.Stream] = torch.cuda.Stream
    usual, side = torch.cuda.current_stream(), make()
    side.wait_stream(usual)
    with torch.cuda.stream(side):
        step()
    usual.wait_stream(side)
