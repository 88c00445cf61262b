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
OURS = ("driver", "ClientWorker")
# In 600 rounds; a leak of a KiB per client and round would be 59 MiB.
ROUNDS, MIB, DESCRIPTORS, STORE_MIB = 600, 4.0, 2, 4.0


def growth(samples, values, num_rounds):
    """Growth by the line of least squares, so that single peaks do not decide: in 600 rounds, or in all if fewer."""
    per_second = float(np.polyfit([s["at_s"] for s in samples], values, 1)[0])
    return per_second * SECONDS * min(1.0, ROUNDS / num_rounds)


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
    assert [sum(n.startswith(kind) for n in names) for kind in OURS] == [1, 2], names
    rounds = told["rounds"]
    grown = {n: growth(samples, [s["rss_mib"][n] for s in samples], rounds) for n in names}
    opened = {n: samples[-1]["descriptors"][n] - samples[0]["descriptors"][n] for n in names}
    stored = growth(samples, [s["store_bytes"] / 2**20 for s in samples], rounds)
    print(f"{rounds} rounds, {len(samples)} samples; MiB {grown}; descriptors {opened}; store {stored:.2f} MiB")
    assert rounds > SECONDS / 20
    assert max(grown.values()) < MIB, grown
    assert max(opened.values()) <= DESCRIPTORS, opened
    assert stored < STORE_MIB
