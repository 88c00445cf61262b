"""The first process of a node: gives it disks of its own, then waits for its children; and the way into a node.

Started by ``tests.lab.lab`` in fresh namespaces. Only what is needed is imported: each node runs one.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# Flags of setns(2). The mount namespace is entered last: behind it other files answer to the same paths.
_NAMESPACES = {"uts": 0x04000000, "net": 0x40000000, "pid": 0x20000000, "mnt": 0x00020000}
# Folders that programs write to: each node has its own, in memory, with a limit that Ray's store need not share.
_PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")
_NOT_DISKS = {"proc", "sysfs", "cgroup", "cgroup2", "devtmpfs", "devpts", "mqueue", "debugfs", "tracefs", "securityfs"}
# A shell as first process: small, and `wait` takes in whatever has ended, children of others included.
_REAPER = "while :; do sleep 3600 & wait; done"
_ALL_READ_WRITE = 0o1777


@dataclass(frozen=True, kw_only=True)
class NodeSetup:
    """All that a node needs to know to set itself up.

    Attributes:
        name: its host name.
        home: folder on its own disk; holds ``.ray/auth_token``.
        token: the cluster's token.
        hosts: addresses of all nodes by name.
        disk_mib: limit of each of its disks, MiB.
        shared: folders that stay visible, read-only, although they lie where its own disk is.
        stores: folders that all nodes write to, as to a store outside of the cluster.
        hidden: folders that it shall not see, such as data sets.
    """

    name: str
    home: str
    token: str
    hosts: Mapping[str, str]
    disk_mib: int
    shared: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The text for the first process' standard input: a token has no place among arguments."""
        return json.dumps(asdict(self))


def enter(init: int, kinds: Sequence[str] = tuple(_NAMESPACES)) -> None:
    """Move this process into the namespaces of a node's first process; of the process namespace, its children.

    ``kinds``: only some of them.

    Raises:
        OSError: the process is gone, or rights are lacking.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    places = {kind: os.open(f"/proc/{init}/ns/{kind}", os.O_RDONLY) for kind in kinds}
    for kind, place in places.items():
        if libc.setns(place, _NAMESPACES[kind]) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"setns: {os.strerror(number)}")
        os.close(place)


def _mount(*words: str, fd: int | None = None) -> None:
    done = subprocess.run(
        ["mount", *words], capture_output=True, text=True, pass_fds=() if fd is None else (fd,), check=False
    )
    if done.returncode:
        raise OSError(f"mount {' '.join(words)}: {done.stderr.strip()}")


def _own_disks(setup: NodeSetup) -> None:
    """Put empty disks where programs write; what has to stay visible there comes back from its open folder."""
    seen = (*setup.shared, *setup.stores)
    below = [path for path in seen if path.startswith(tuple(f"{p}/" for p in _PRIVATE))]
    folders = {path: os.open(path, os.O_PATH | os.O_DIRECTORY) for path in below}
    _mount("-t", "proc", "proc", "/proc")
    for path in _PRIVATE:
        _mount("-t", "tmpfs", "-o", f"size={setup.disk_mib}m,mode={_ALL_READ_WRITE:o}", "relief-lab", path)
    for path, fd in folders.items():
        Path(path).mkdir(parents=True, exist_ok=True)
        # As it is: made canonical, the link would be the path, behind which the empty disk lies now.
        _mount("--no-canonicalize", "--bind", f"/proc/self/fd/{fd}", path, fd=fd)
        os.close(fd)
    for path in setup.stores:
        if path not in below:
            # A mount of its own, which stays as it is when the one around it becomes read-only.
            _mount("--bind", path, path)


def _rest_read_only(stores: Sequence[str]) -> None:
    """Make all but the own disks and ``stores`` read-only: what one node writes, no other one reads."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        path, kind, source = fields[4], fields[fields.index("-") + 1], fields[fields.index("-") + 2]
        # A mount below an own disk of the same path cannot be reached.
        if kind not in _NOT_DISKS and source != "relief-lab" and path not in (*_PRIVATE, *stores):
            _mount("-o", "remount,bind,ro", path)


def _set_up(setup: NodeSetup) -> None:
    _own_disks(setup)
    token = Path(setup.home, ".ray", "auth_token")
    token.parent.mkdir(parents=True)
    token.touch(mode=0o600)
    token.write_text(setup.token)
    socket.sethostname(setup.name)
    names = [f"{address} {name}" for name, address in {"localhost": "127.0.0.1", **setup.hosts}.items()]
    hosts = Path(setup.home, ".hosts")
    hosts.write_text("\n".join(names) + "\n")
    _mount("--bind", str(hosts), "/etc/hosts")
    for path in setup.hidden:
        _mount("-t", "tmpfs", "-o", "size=4k,ro", "relief-lab", path)
    _rest_read_only(setup.stores)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def main() -> None:
    """Set the node up, say which process this is for the rest of the machine, become the reaper."""
    # Still the machine's /proc: its number for this process.
    pid = os.readlink("/proc/self")
    setup = NodeSetup(**json.load(sys.stdin))
    try:
        _set_up(setup)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"error: {error}", flush=True)
        raise SystemExit(1) from error
    print(pid, flush=True)
    os.chdir(setup.home)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.execv("/bin/sh", ["sh", "-c", _REAPER])


if __name__ == "__main__":
    main()
