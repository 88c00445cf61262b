"""Ten minutes of 100 clients on Ray: memory, descriptors and the object store stay where they were."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.pages import ROOT

SECONDS = float(os.environ.get("RELIEF_SOAK_S", "600"))
# The beginning, in which processes start and caches fill, is left out.
SETTLED = 0.25
OURS = ("driver", "Coordinator", "ClientHost")
# A leak of a KiB per client and round would be 20 MiB here.
MIB_PER_RUN, DESCRIPTORS, STORE_MIB = 4.0, 2, 4.0


def per_run(samples, values):
    """Growth over the whole run by the line of least squares: single peaks do not decide."""
    return float(np.polyfit([s["at_s"] for s in samples], values, 1)[0]) * SECONDS


@pytest.mark.slow
@pytest.mark.ray
def test_memory_descriptors_and_the_object_store_stay_level(tmp_path):
    command = [sys.executable, "-m", "tests.soak", str(SECONDS), str(tmp_path / "run")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=SECONDS + 120)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    samples = [s for s in told["samples"] if s["at_s"] > SETTLED * SECONDS]
    names = [n for n in samples[-1]["rss_mib"] if n.split()[0] in OURS and n in samples[0]["rss_mib"]]
    assert [sum(n.startswith(kind) for n in names) for kind in OURS] == [1, 1, 2], names
    grown = {n: per_run(samples, [s["rss_mib"][n] for s in samples]) for n in names}
    opened = {n: samples[-1]["descriptors"][n] - samples[0]["descriptors"][n] for n in names}
    stored = per_run(samples, [s["store_bytes"] / 2**20 for s in samples])
    print(f"{told['rounds']} rounds, {len(samples)} samples; MiB {grown}; descriptors {opened}; store {stored:.2f} MiB")
    assert told["rounds"] > SECONDS / 20
    assert max(grown.values()) < MIB_PER_RUN, grown
    assert max(opened.values()) <= DESCRIPTORS, opened
    assert stored < STORE_MIB
