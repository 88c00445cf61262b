import os
import subprocess
import sys

from benchmarks.engine.noop import family, pss_bytes

CHILD = "import sys; x = bytearray(64 << 20); print('up', flush=True); sys.stdin.read()"


def test_memory_of_children_counts():
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"up\n"
        assert child.pid in family(os.getpid())
        assert pss_bytes(child.pid) > 64 << 20
        assert pss_bytes(os.getpid()) > pss_bytes(child.pid)
    finally:
        child.communicate()
    assert child.pid not in family(os.getpid())
