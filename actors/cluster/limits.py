"""Offer of this machine as a node of a cluster: its cores, GPUs and memory, within its control groups.

Ray itself reads the limits of a container's root only; a unit's ``CPUQuota`` lies deeper.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from actors.runtime.session import MIB
from relief_ray.support.process import memory_bytes, num_cores

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
        num_cpus=num_cores(root),
        num_gpus=_num_gpus(),
        memory_mib=max(_LEAST_MIB, rest_mib),
        object_store_mib=store_mib,
    )


def _num_gpus() -> int:
    """GPUs that torch sees. Ray asks NVML, which does not know a Jetson's GPU (ray-project/ray#46263)."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
