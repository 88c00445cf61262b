"""CPU quotas: one control group per node, by version 1 or 2 of the kernel's interface."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from relief_ray.support.errors import UserError

_PERIOD_US = 100_000
_WAIT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Controller:
    """Place of CPU quotas on this machine: the interface's version and the folder of its root group."""

    version: Literal[1, 2]
    root: Path

    def create(self, group: str) -> None:
        """Make a group, without a quota.

        Raises:
            UserError: the kernel refuses.
        """
        try:
            if self.version == 2:
                control = self.root / "cgroup.subtree_control"
                if "cpu" not in control.read_text().split():
                    control.write_text("+cpu")
            (self.root / group).mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(
                f"CPU quota: {self.root / group} cannot be made ({error}); expected root's rights"
            ) from error

    def limit(self, group: str, percent: int | None) -> None:
        """Let a group's processes together use ``percent`` of one core (above 100: of several); None lifts it."""
        amount = None if percent is None else percent * _PERIOD_US // 100
        if self.version == 1:
            (self.root / group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (self.root / group / "cpu.cfs_quota_us").write_text(str(-1 if amount is None else amount))
        else:
            (self.root / group / "cpu.max").write_text(f"{'max' if amount is None else amount} {_PERIOD_US}")

    def join(self, group: str, pid: int) -> None:
        """Put a process into a group; its children are born there."""
        (self.root / group / "cgroup.procs").write_text(str(pid))

    def remove(self, group: str) -> None:
        """Remove a group, once its last process is gone.

        Raises:
            UserError: processes are left in it.
        """
        folder, deadline = self.root / group, time.monotonic() + _WAIT_S
        while folder.exists():
            try:
                os.rmdir(folder)
            except OSError as error:
                if time.monotonic() > deadline:
                    ids = (folder / "cgroup.procs").read_text().split()
                    raise UserError(f"{folder}: cannot be removed ({error}); processes {ids} are in it") from error
                time.sleep(0.05)

    def groups(self, prefix: str) -> list[str]:
        """Names of the groups that begin so."""
        return sorted(path.name for path in self.root.glob(f"{prefix}*") if path.is_dir())


def find_controller(mounts: str | None = None) -> Controller:
    """The controller of this machine, version 1 where it has both: there version 2 lacks ``cpu``.

    ``mounts``: content of ``/proc/self/mounts``, by default this machine's.

    Raises:
        UserError: neither is mounted.
    """
    lines = (mounts if mounts is not None else Path("/proc/self/mounts").read_text()).splitlines()
    rows = [line.split() for line in lines]
    for _, folder, kind, options, *_ in rows:
        if kind == "cgroup" and "cpu" in options.split(","):
            return Controller(version=1, root=Path(folder))
    for _, folder, kind, *_ in rows:
        controllers = Path(folder) / "cgroup.controllers"
        if kind == "cgroup2" and controllers.exists() and "cpu" in controllers.read_text().split():
            return Controller(version=2, root=Path(folder))
    raise UserError(
        "CPU quota: found no cgroup with the controller 'cpu'; expected one of version 1 or 2 under /sys/fs/cgroup"
    )
