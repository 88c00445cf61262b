"""One program, a hash of what it computed: the same by every compiler and on both kinds of processors."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relief_ray.kernels import library
from tests.guards.model_hashes import BY_PROCESSOR, METHODS

# What every machine prints: a hash, and one weight, finite and changed. It follows the source, and nothing else.
EXPECTED = "bd71abdd2053f290 0.200975\n"
DRIVER = Path(__file__).with_name("driver.c")
EMULATED = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
LEVELS = [level for level in library.LEVELS.get(platform.machine(), ()) if level.needs <= library._cpu_flags()]
HERE = LEVELS[-1].flags if LEVELS else ()
# (compiler, flags, what runs the program)
WAYS = {
    "gcc": ("gcc", HERE, []),
    "gcc, the fastest level": ("gcc", LEVELS[0].flags if LEVELS else (), []),
    "gcc, plain C": ("gcc", (*HERE, "-DRELIEF_PLAIN"), []),
    "gcc, a little optimised": ("gcc", (*HERE, "-O1"), []),
    "clang": ("clang", HERE, []),
    "clang, the fastest level": ("clang", LEVELS[0].flags if LEVELS else (), []),
    "clang, plain C": ("clang", (*HERE, "-DRELIEF_PLAIN"), []),
    "aarch64": ("aarch64-linux-gnu-gcc", (), EMULATED),
}

pytestmark = pytest.mark.skipif(bool(library.why_missing()), reason=f"no library here: {library.why_missing()}")


def printed_by(way, folder):
    compiler, flags, runner = WAYS[way]
    program = folder / way.replace(" ", "-")
    shared = {"-shared", "-fPIC"}
    command = [compiler, *(f for f in library.FLAGS if f not in shared), *flags, f'-DSOURCE="{library.SOURCE}"']
    subprocess.run([*command, "-o", str(program), str(DRIVER), "-lm"], check=True, timeout=120)
    return subprocess.run([*runner, str(program)], capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


RUN = """
import relief_ray as rr
study = rr.run("quick", strategies={methods}, rounds=3, quiet=True, out={out!r},
               training={{"engine": "fused", "clip_norm": 1.0}})
print([run.ledger[-1].model_sha256 for run in study.runs])
"""
# What torch, MKL and numpy take on a processor without AVX2.
OLDER = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3",
}


@pytest.mark.ci
def test_a_whole_run_has_the_same_bits_where_libraries_take_an_older_processor(tmp_path, run_cache):
    printed, methods = [], [name for name in METHODS if name not in BY_PROCESSOR]
    for name, extra in (("here", {}), ("older", OLDER)):
        command = [sys.executable, "-c", RUN.format(out=str(tmp_path / name), methods=methods)]
        done = subprocess.run(command, env=os.environ | extra, capture_output=True, text=True, check=True, timeout=300)
        printed.append(done.stdout.splitlines()[-1])
    assert printed[0] == printed[1]


@pytest.mark.ci
@pytest.mark.parametrize("way", WAYS)
def test_the_bits_are_the_same(way, folder):
    compiler, _, runner = WAYS[way]
    if missing := [name for name in (compiler, *runner[:1]) if not shutil.which(name)]:
        pytest.skip(f"not here: {', '.join(missing)}")
    assert printed_by(way, folder) == EXPECTED
