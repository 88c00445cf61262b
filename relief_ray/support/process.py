"""Settings of a computing process: torch threads, the device, the allocator's handling of freed memory."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Literal, TypeAlias

import torch

from relief_ray.support.errors import UserError
from relief_ray.support.files import opened

# Cores and memory that this process may use: those of the machine, within its control groups (containers, units).
#
# A container's quota lies at the root of the tree that it sees, a systemd unit's ``CPUQuota`` deeper: all groups that
# the process is in count.


# Version 1 mounts a tree of groups for each controller, version 2 one for all.
_V1_TREES = {"cpu": ("cpu", "cpu,cpuacct"), "memory": ("memory",)}


def num_cores(root: Path = Path("/")) -> int:
    """Whole cores that this process may use: those it is bound to, at most its CPU quota, at least one.

    ``root``: where the machine's ``proc`` and ``sys`` lie.
    """
    return max(1, min(_bound_cores(), *(int(quota + 0.5) for quota in _cpu_quotas(root))))


def _bound_cores() -> int:
    """Cores that the scheduler may give this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_quotas(root: Path) -> Iterator[float]:
    """CPU quotas, in cores, of all groups that this process is in."""
    yield float(os.cpu_count() or 1)
    for folder in _groups("cpu", root):
        quota, period = number_in(folder / "cpu.cfs_quota_us"), number_in(folder / "cpu.cfs_period_us")
        words = text_in(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdecimal():
            quota, period = int(words[0]), int(words[1])
        if quota is not None and period and quota > 0:
            yield quota / period


def memory_bytes(root: Path = Path("/")) -> int:
    """Memory that this process may use, in bytes: the machine's, at most its groups' limits."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    names = ("memory.max", "memory.limit_in_bytes")
    limits = (number_in(folder / name) for folder in _groups("memory", root) for name in names)
    return min([machine, *filter(None, limits)])


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Folders of this process's groups, innermost first; in a container the path may be the host's, and be absent."""
    mount = root / "sys" / "fs" / "cgroup"
    for line in text_in(root / "proc" / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        trees = [mount / name for name in _V1_TREES[controller]] if controllers else [mount, mount / "unified"]
        for tree in trees:
            group = tree / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder == tree or tree in folder.parents)


# Bytes that are read of a small file of the system.
_LARGEST = 2**16


def number_in(path: Path) -> int | None:
    """The whole number in a small file of the system; None where there is none."""
    try:
        return int(text_in(path))
    except ValueError:
        return None


def text_in(path: Path) -> str:
    """The text in a small file of the system; empty where it is not there or cannot be read."""
    try:
        with opened(path) as file:
            return file.read(_LARGEST).decode("utf-8", errors="replace").strip("\0 \n\t")
    except OSError:
        return ""


Device = Literal["cpu", "cuda"]
Autocast = Literal["none", "bf16"]
MIB = 2**20
# Parameters of glibc's mallopt(3). Blocks below M_MMAP_THRESHOLD come from the heap, which shrinks once more than
# M_TRIM_THRESHOLD is free at its end. By default every few training steps return tens of MiB to the system and fetch
# them again page by page.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES, LARGEST_HEAP_BLOCK_BYTES = 128 * MIB, 32 * MIB
# The unit of `ru_maxrss`: KiB, but for macOS.
_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024


def peak_mib() -> float:
    """Peak resident memory of this process, MiB; memory that it maps and shares with others counts too."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES / MIB


def use_threads(number: int) -> None:
    """Pin torch's thread count, which the last bits of sums depend on, and keep freed memory in the process."""
    torch.set_num_threads(number)
    keep_freed_memory()


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Pin torch's threads inside the block; a notebook's own work goes on with as many as before."""
    before = torch.get_num_threads()
    use_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def keep_freed_memory() -> bool:
    """Tell the C library not to return small and medium blocks to the system; False where that is not possible."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False  # not glibc
    return all(
        mallopt(what, value) == 1
        for what, value in ((_M_MMAP_THRESHOLD, LARGEST_HEAP_BLOCK_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES))
    )


def choose_device(requested: Literal["cpu", "cuda", "auto"]) -> Device:
    """The device to compute on: ``auto`` is a CUDA device where this process sees one, else the CPU.

    Raises:
        UserError: ``cuda`` where there is none.
    """
    if requested != "cpu" and torch.cuda.is_available():
        return "cuda"
    if requested != "cuda":
        return "cpu"
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    raise UserError(
        f"training.device = 'cuda': this process sees no CUDA device (torch {torch.__version__}, {built}, "
        f"CUDA_VISIBLE_DEVICES={'not set' if visible is None else repr(visible)}), expected one; take "
        "training.device=auto or cpu, or install a torch that is built for this machine's GPU"
    )


def use_device(device: Device) -> None:
    """Make this process's GPU results repeatable: deterministic kernels, and float32 products without TF32.

    Changes nothing for the CPU. Where no deterministic kernel exists torch warns and takes another.

    Raises:
        UserError: there is no such device here.
    """
    if choose_device(device) == "cpu":
        return
    # Read by cuBLAS when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def device_name(device: Device) -> str:
    """The device's name in records: ``cpu``, or ``cuda: `` and the GPU's model."""
    return f"cuda: {torch.cuda.get_device_name()}" if device == "cuda" else "cpu"


def refuse_changed_torch() -> None:
    """Check that torch has its own defaults, with which results are computed: a script may have changed them before.

    Raises:
        UserError: it has not; the first is named, with the call that undoes it.
    """
    kind, place = torch.get_default_dtype(), torch.get_default_device()
    cast = next((name for name in ("cpu", "cuda") if torch.is_autocast_enabled(name)), None)
    changed = {
        f"default type is {kind}, expected torch.float32; undo it with torch.set_default_dtype(torch.float32)": (
            kind != torch.float32
        ),
        f"default device is {str(place)!r}, expected 'cpu'; undo it with torch.set_default_device(None), and choose a "
        "GPU by training.device": place.type != "cpu",
        "inference mode is on, in which nothing is trained, expected it off; leave the block of "
        "torch.inference_mode()": torch.is_inference_mode_enabled(),
        "gradients are off, so that nothing is trained, expected them on; undo it with torch.set_grad_enabled(True), "
        "or leave the block of torch.no_grad()": not torch.is_grad_enabled(),
        f"autocast is on for {cast}, expected it off; leave the block of torch.autocast(), and choose its types by "
        "training.autocast": cast is not None,
    }
    for what, is_so in changed.items():
        if is_so:
            raise UserError(f"torch: its {what}")


Moment: TypeAlias = "float | torch.cuda.Event"


def moment(on_gpu: bool) -> Moment:
    """Now: seconds of a monotonic clock, or a mark in the work of the GPU, which computes asynchronously."""
    if not on_gpu:
        return perf_counter()
    make: Callable[..., torch.cuda.Event] = torch.cuda.Event
    event = make(enable_timing=True)
    event.record()
    return event


def seconds_between(began: Moment, ended: Moment) -> float:
    """Seconds from one moment to another of the same clock; of a GPU's marks, once the later one is reached.

    Negative where ``ended`` is the earlier one.
    """
    if isinstance(began, float) and isinstance(ended, float):
        return ended - began
    assert isinstance(began, torch.cuda.Event) and isinstance(ended, torch.cuda.Event), "two clocks"
    began.synchronize()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1e3


@contextmanager
def flushing() -> Iterator[None]:
    """Block in which torch takes numbers below 2^-126 for zero, as our kernels do; then the caller's mode comes back.

    Late in training gradients are that small, and a processor takes about ten times as long for them.
    """
    was = not bool(torch.tensor(1e-38, dtype=torch.float32) * 0.1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was)


def casting(autocast: Autocast, device: torch.device) -> AbstractContextManager[object]:
    """Context in which ``bf16`` lets torch compute matrix products in bfloat16; parameters stay float32."""
    return nullcontext() if autocast == "none" else torch.autocast(device.type, dtype=torch.bfloat16)
