import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.engine import noop, start
from benchmarks.engine.noop import family, kind_of, pss_by_kind
from benchmarks.engine.tables import targets

CHILD = "import sys; x = bytearray(64 << 20); print('up', flush=True); sys.stdin.read()"


def test_memory_of_children_counts():
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"up\n"
        assert child.pid in family(os.getpid())
        mine, its = pss_by_kind(os.getpid()), pss_by_kind(child.pid)
        assert sum(mine.values()) > sum(its.values()) > 64 << 20
        assert pss_by_kind(os.getpid())["ray"] > 64 << 20, "whatever is below the driver and no actor"
    finally:
        child.communicate()
    assert child.pid not in family(os.getpid())


def test_actors_are_recognised_by_the_names_that_ray_gives_them():
    kinds = [kind_of(name) for name in ("ray::ClientWorker.train", "ray::Coordinator", "raylet --x", "ray::IDLE")]
    assert kinds == ["hosts", "coordinator", "ray", "ray"]


def test_memory_that_the_system_does_not_tell_is_not_none_at_all(monkeypatch, tmp_path):
    monkeypatch.setattr(noop, "Path", lambda *parts: Path(tmp_path, *(str(p).lstrip("/") for p in parts)))
    assert pss_by_kind(os.getpid()) is None
    begin = lambda folder, clients, windows, watch: watch(pss_by_kind(1)) or {"_last_round": None}  # noqa: E731
    monkeypatch.setattr(start, "begin", begin)
    figures = start._memory(tmp_path, 100, 32)
    assert set(figures.values()) == {None} and "| – | not measured |" in targets(figures)


def test_the_most_of_all_moments_counts(monkeypatch, tmp_path):
    moments = [dict.fromkeys(noop.KINDS, n << 30) for n in (1, 3, 2)]

    def begin(folder, clients, windows, watch):
        for memory in (*moments, None):
            watch(memory)
        return {"_last_round": 0.5}

    monkeypatch.setattr(start, "begin", begin)
    figures = start._memory(tmp_path, 8, 32)
    assert figures["pss_n8_last_round_s"] == 0.5
    assert figures["pss_n8_gib"] == pytest.approx(12.0) and figures["pss_n8_ray_gib"] == pytest.approx(3.0)
