"""A step that is the same every time: on a GPU recorded once and replayed, which spares the launch of each kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Memory:
    """What recordings that never run at the same time share; nothing where nothing is recorded."""

    def __init__(self, device: torch.device) -> None:
        """Asked for on a GPU only."""
        self.handle = torch.cuda.graph_pool_handle() if device.type == "cuda" else None


class Replay:
    """Calls ``step``, which reads and writes the same tensors each time; recorded as a CUDA graph where those are.

    The first call is an ordinary one beside the usual stream, since libraries set themselves up in their first; the
    second records, which computes nothing, and replays.
    """

    def __init__(self, step: Callable[[], None], device: torch.device, memory: Memory) -> None:
        """Nothing is called yet."""
        self._step, self._memory, self._num_calls = step, memory, 0
        self._graph = torch.cuda.CUDAGraph() if device.type == "cuda" else None

    def __call__(self) -> None:
        """One step."""
        self._num_calls += 1
        if self._graph is None:
            self._step()
        elif self._num_calls == 1:
            self._aside()
        else:
            if self._num_calls == 2:
                with torch.cuda.graph(self._graph, pool=self._memory.handle):
                    self._step()
            self._graph.replay()

    def _aside(self) -> None:
        make: Callable[[], torch.cuda.Stream] = torch.cuda.Stream
        usual, aside = torch.cuda.current_stream(), make()
        aside.wait_stream(usual)
        with torch.cuda.stream(aside):
            self._step()
        usual.wait_stream(aside)
