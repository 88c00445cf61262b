"""Cores and memory that this machine may use, within the limits of its container or systemd unit (cgroups).

Ray reads the limits of a container's root only; a unit's ``CPUQuota`` lies deeper.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from actors.runtime.session import MIB, num_cores

# Version 1 mounts a tree of groups for each controller, version 2 one for all.
_V1_TREES = {"cpu": ("cpu", "cpu,cpuacct"), "memory": ("memory",)}
# What a node's own processes take, and what a head's (its database of the cluster, the dashboard) take besides.
_NODE_MIB, _HEAD_MIB = 300, 1000
_SHARE, _STORE_SHARE = 0.8, 0.125
_STORE_MIB = (100, 1024)
_LEAST_MIB = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """Offer of a node to a cluster: whole cores, GPUs that torch sees, MiB for processes and for shared objects."""

    num_cpus: int
    num_gpus: int
    memory_mib: int
    object_store_mib: int


def capacity(is_head: bool, root: Path = Path("/")) -> Capacity:
    """Capacity of this machine as a node; ``root`` is where its ``proc`` and ``sys`` lie."""
    total_mib = memory_bytes(root) // MIB
    store_mib = int(min(max(total_mib * _STORE_SHARE, _STORE_MIB[0]), _STORE_MIB[1]))
    rest_mib = int(total_mib * _SHARE) - store_mib - _NODE_MIB - (_HEAD_MIB if is_head else 0)
    return Capacity(
        num_cpus=cores_within_quota(root),
        num_gpus=_num_gpus(),
        memory_mib=max(_LEAST_MIB, rest_mib),
        object_store_mib=store_mib,
    )


def _num_gpus() -> int:
    """GPUs that torch sees. Ray asks NVML, which does not know a Jetson's GPU (ray-project/ray#46263)."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def cores_within_quota(root: Path = Path("/")) -> int:
    """Whole cores that this process may use: those it is bound to, at most its CPU quota, at least one."""
    return max(1, min(num_cores(), *(int(quota + 0.5) for quota in _cpu_quotas(root))))


def _cpu_quotas(root: Path) -> Iterator[float]:
    """CPU quotas, in cores, of all groups that this process is in."""
    yield float(os.cpu_count() or 1)
    for folder in _groups("cpu", root):
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        words = _text(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdecimal():
            quota, period = int(words[0]), int(words[1])
        if quota is not None and period and quota > 0:
            yield quota / period


def memory_bytes(root: Path = Path("/")) -> int:
    """Memory that this process may use, in bytes: the machine's, at most its groups' limits."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    names = ("memory.max", "memory.limit_in_bytes")
    limits = (_number(folder / name) for folder in _groups("memory", root) for name in names)
    return min(machine, *(limit for limit in limits if limit), machine)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Folders of this process's groups, innermost first; in a container the path may be the host's, and be absent."""
    mount = root / "sys" / "fs" / "cgroup"
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        trees = [mount / name for name in _V1_TREES[controller]] if controllers else [mount, mount / "unified"]
        for tree in trees:
            group = tree / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder == tree or tree in folder.parents)


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
