"""Libraries of the same source by other flags and compilers, for comparison with the one that runs use."""

import ctypes
import subprocess
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from relief_ray.kernels import library

PLAIN = "-DRELIEF_PLAIN"


@cache
def built(compiler, *more):
    """The library by ``compiler`` with ``more`` flags beside this machine's."""
    path = Path(mkdtemp(prefix="relief-tests-")) / "kernels.so"
    flags = (*library.FLAGS, *library._level(library.platform.machine()).flags, *more)
    subprocess.run([compiler, *flags, "-o", str(path), str(library.SOURCE)], check=True, timeout=120)
    loaded = ctypes.CDLL(str(path))
    for name in ("loss", "squares", "coded"):
        getattr(loaded, f"relief_{name}").restype = ctypes.c_double
    return loaded


@contextmanager
def using(monkeypatch, loaded):
    """Every call goes to this library."""
    with monkeypatch.context() as patched:
        patched.setattr(library, "library", lambda dtype=None: loaded)
        yield
