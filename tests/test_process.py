import subprocess
import sys

import pytest
import torch

from relief_ray.process import keep_freed_memory, use_threads

FAULTS = """
import resource, sys, torch
from relief_ray.process import use_threads
if sys.argv[1] == "kept":
    use_threads(1)
def step():
    blocks = [torch.ones(2_000_000) for _ in range(8)]
    del blocks
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how):
    return int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True).stdout)


def test_memory_that_is_freed_is_not_fetched_again_page_by_page():
    if not keep_freed_memory():
        pytest.skip("not glibc")
    # 64 MB a step in pages of at least 4 KiB: the system is asked again and again, or not at all.
    assert faults("kept") < 100 < 1000 < faults("as ever")


def test_threads_are_pinned():
    before = torch.get_num_threads()
    try:
        use_threads(1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
