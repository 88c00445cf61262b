import os
import subprocess
import sys

from benchmarks.engine.noop import family, kind_of, pss_by_kind, pss_bytes

CHILD = "import sys; x = bytearray(64 << 20); print('up', flush=True); sys.stdin.read()"


def test_memory_of_children_counts():
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"up\n"
        assert child.pid in family(os.getpid())
        assert pss_bytes(child.pid) > 64 << 20
        assert pss_bytes(os.getpid()) > pss_bytes(child.pid)
        assert pss_by_kind(os.getpid())["ray"] > 64 << 20, "whatever is below the driver and no actor"
    finally:
        child.communicate()
    assert child.pid not in family(os.getpid())


def test_actors_are_told_by_the_names_that_ray_gives_them():
    kinds = [kind_of(name) for name in ("ray::ClientHost.train", "ray::Coordinator", "raylet --x", "ray::IDLE")]
    assert kinds == ["hosts", "coordinator", "ray", "ray"]
