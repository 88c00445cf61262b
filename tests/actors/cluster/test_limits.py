"""Cores and memory within the limits of control groups, of both versions, in containers and in units."""

from pathlib import Path

import pytest

from actors.cluster import start_line as limits
from actors.runtime.session import MIB
from relief_ray.support import process as cgroups


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes the files of a machine of 16 cores, and gives their root."""
    monkeypatch.setattr(cgroups, "_bound_cores", lambda: 16)
    monkeypatch.setattr(cgroups.os, "cpu_count", lambda: 16)

    def make(groups: str, **files: str) -> Path:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
        for name, content in files.items():
            path = tmp_path / "sys/fs/cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return tmp_path

    return make


V1_QUOTA = {"cpu/lab/b/cpu.cfs_quota_us": "250000\n", "cpu/lab/b/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/\n", {}, 16),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 16),
        # A container: the group's own tree is the root.
        ("0::/\n", {"cpu.max": "400000 100000\n"}, 4),
        # A systemd unit: the limit is the slice's, above the unit's own group.
        (
            "0::/relief.slice/ray.service\n",
            {"relief.slice/cpu.max": "200000 100000", "relief.slice/ray.service/cpu.max": "max 100000"},
            2,
        ),
        # Less than a core is a core: Ray counts whole ones.
        ("0::/\n", {"cpu.max": "40000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "350000 100000\n"}, 4),
        ("9:memory:/x\n4:cpu,cpuacct:/lab/b\n", V1_QUOTA, 3),
        ("4:cpu:/lab/b\n", {"cpu/lab/b/cpu.cfs_quota_us": "-1\n", "cpu/lab/b/cpu.cfs_period_us": "100000\n"}, 16),
        # A container of version 1 sees the host's path, and its own limit at the root.
        ("4:cpu:/docker/abc\n", {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
    ],
)
def test_cores_are_those_of_the_tightest_quota(machine, groups, files, cores):
    assert cgroups.num_cores(machine(groups, **files)) == cores


def test_cores_are_at_most_those_that_the_process_is_bound_to(machine, monkeypatch):
    monkeypatch.setattr(cgroups, "_bound_cores", lambda: 3)
    assert cgroups.num_cores(machine("0::/\n", **{"cpu.max": "800000 100000\n"})) == 3


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        ("0::/ray.service\n", {"ray.service/memory.max": f"{4096 * MIB}\n", "memory.max": "max\n"}),
        ("5:memory:/lab\n", {"memory/lab/memory.limit_in_bytes": f"{4096 * MIB}\n"}),
    ],
)
def test_memory_is_bounded_by_the_groups_limit(machine, groups, files):
    root = machine(groups, **files)
    assert cgroups.memory_bytes(root) == 4096 * MIB
    head, device = limits.capacity(True, root), limits.capacity(False, root)
    assert device.object_store_mib == 512
    assert device.memory_mib == int(0.8 * 4096) - 512 - 300
    assert device.memory_mib - head.memory_mib == 1000, "a head keeps room for its own processes"


def test_a_large_machine_keeps_its_object_store_small(machine):
    root = machine("0::/\n")
    assert cgroups.memory_bytes(root) == cgroups.memory_bytes()
    assert limits.capacity(False, root).object_store_mib <= 1024
