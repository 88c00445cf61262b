import re
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch

from relief_ray.support.errors import UserError
from relief_ray.support.process import (
    casting,
    choose_device,
    device_name,
    keep_freed_memory,
    refuse_changed_torch,
    use_device,
    use_threads,
)

FAULTS = """
import resource, torch
from relief_ray.support.process import use_threads
def step():
    blocks = [torch.ones(2_000_000) for _ in range(8)]
    del blocks
def faults():
    for _ in range(3):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
before = faults()
use_threads(1)
print(before, faults())
"""


def faults():
    """Page faults of five steps in a new process: as it started, and where freed memory is kept."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    return tuple(map(int, done.stdout.split()))


@pytest.mark.ci
def test_memory_that_is_freed_is_not_fetched_again_page_by_page():
    if not keep_freed_memory():
        pytest.skip("not glibc")
    # 64 MB a step in pages of at least 4 KiB: the system is asked again and again, or not at all. Where something small
    # happens to lie at the heap's end, glibc cannot give anything back by itself either: then another process may.
    for _ in range(5):
        before, kept = faults()
        assert kept < 100
        if before > 1000:
            return
    pytest.fail("memory was never given back, not even by a process as it started")


def test_threads_are_pinned():
    before = torch.get_num_threads()
    try:
        use_threads(1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")


@NO_GPU
def test_a_gpu_that_is_not_there_is_refused_with_what_was_found():
    for ask in (choose_device, use_device):
        with pytest.raises(UserError, match=r"training.device = 'cuda'.*no CUDA device.*built.*expected one; take"):
            ask("cuda")


@NO_GPU
def test_auto_takes_what_there_is():
    assert choose_device("auto") == choose_device("cpu") == device_name("cpu") == "cpu"


def test_the_cpu_is_left_as_it_was():
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    use_device("cpu")
    assert (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark) == before


def test_bfloat16_is_for_products_inside_alone():
    a = torch.ones(2, 2)
    with casting("bf16", a.device):
        assert (a @ a).dtype == torch.bfloat16
    with casting("none", a.device):
        assert (a @ a).dtype == torch.float32


@contextmanager
def _kept():
    kind, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(kind)
        torch.set_grad_enabled(grad)
        torch.set_default_device(None)


CHANGES = {
    "default type is torch.float64": lambda: torch.set_default_dtype(torch.float64),
    "default type is torch.bfloat16": lambda: torch.set_default_dtype(torch.bfloat16),
    "gradients are off": lambda: torch.set_grad_enabled(False),
    "default device is 'meta'": lambda: torch.set_default_device("meta"),
}
BLOCKS = {
    "gradients are off": torch.no_grad,
    "inference mode is on": torch.inference_mode,
    "autocast is on for cpu": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize(("said", "change"), CHANGES.items(), ids=CHANGES)
def test_a_script_that_changed_torch_is_told_so_and_how_to_undo_it(said, change):
    refuse_changed_torch()
    with _kept():
        change()
        with pytest.raises(UserError, match=f"^torch: its {said}.* expected .*; undo it with torch") as caught:
            refuse_changed_torch()
        exec(re.search(r"undo it with (torch\.[^;,]*\))", str(caught.value))[1])
        refuse_changed_torch()


@pytest.mark.parametrize(("said", "block"), BLOCKS.items(), ids=BLOCKS)
def test_a_block_that_changes_torch_is_named(said, block):
    with block(), pytest.raises(UserError, match=f"^torch: its {said}.*leave the block of"):
        refuse_changed_torch()
    refuse_changed_torch()
