"""Tests which steps are recorded and when; ``pytest -m gpu`` shows that a real GPU replays them."""

from contextlib import contextmanager

import pytest
import torch

from relief_ray.training.stacked_step import CudaGraphStep, graph_memory

CPU = torch.device("cpu")


def test_without_a_gpu_every_call_is_a_step():
    steps = []
    replay = CudaGraphStep(CPU, graph_memory(CPU))
    for _ in range(3):
        replay(lambda: steps.append(len(steps)))
    assert steps == [0, 1, 2] and graph_memory(CPU) is None


@pytest.fixture
def log(monkeypatch):
    """Stands in for a GPU: what was asked of it. While it records, kernels do not run."""
    seen, recording = [], []

    class Stream:
        def wait_stream(self, other):
            seen.append("wait")

    class Graph:
        def replay(self):
            seen.append("replay")

    @contextmanager
    def record(graph, pool):
        recording.append(pool)
        try:
            yield
        finally:
            recording.clear()

    @contextmanager
    def on(stream):
        seen.append("aside")
        yield

    for name, value in {"CUDAGraph": Graph, "Stream": Stream, "graph": record, "stream": on}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: seen.append("back"))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    return seen, recording


def test_a_gpu_steps_once_then_records_then_replays(log):
    seen, recording = log
    gpu = torch.device("cuda")
    replay = CudaGraphStep(gpu, graph_memory(gpu))
    for _ in range(4):
        replay(lambda: seen.append(("recorded", *recording) if recording else "stepped"))
    assert seen == ["wait", "aside", "stepped", "wait", ("recorded", "pool"), "replay", "replay", "replay"]


def test_a_step_that_cannot_be_recorded_stays_an_ordinary_one(log):
    seen, recording = log
    gpu = torch.device("cuda")

    def step():
        if recording:
            raise RuntimeError("operation not permitted when stream is capturing")
        seen.append("stepped")

    replay = CudaGraphStep(gpu, graph_memory(gpu))
    replay(step)
    with pytest.warns(UserWarning, match=r"training.stack: a step runs unrecorded.*not permitted"):
        replay(step)
    replay(step)
    assert seen == ["wait", "aside", "stepped", "wait", "back", "stepped", "stepped"]
