"""Cores and memory that this process may use: those of the machine, within its control groups (containers, units).

A container's quota lies at the root of the tree that it sees, a systemd unit's ``CPUQuota`` deeper: all groups that the
process is in count.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

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
