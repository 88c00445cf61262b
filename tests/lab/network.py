"""Links of a lab: a bridge in a namespace of its own, a pair of virtual devices per node, a rate per direction."""

from __future__ import annotations

import json
import subprocess

from relief_ray.support.errors import UserError
from tests.lab.plan import NodePlan
from tests.lab.state import Link, Process

_BRIDGE = "br0"
# A burst of one large packet (64 KiB) keeps the mean at the rate; what would wait longer is dropped, as in a router.
_BURST, _LATENCY = "64kb", "400ms"


def _within(process: Process, *words: str) -> str:
    """Run a command in the network namespace of a process.

    Raises:
        UserError: it fails.
    """
    full = ["nsenter", f"--net=/proc/{process.pid}/ns/net", "--", *words]
    done = subprocess.run(full, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"`{' '.join(words)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def make_bridge(switch: Process) -> None:
    """Put the bridge into the switch's namespace."""
    _within(switch, "ip", "link", "add", _BRIDGE, "type", "bridge")
    _within(switch, "ip", "link", "set", _BRIDGE, "up")


def plug(switch: Process, node: NodePlan, init: Process) -> None:
    """Give a node its device ``eth0`` and hang the other end on the bridge."""
    _within(
        switch, "ip", "link", "add", _port(node.name), "type", "veth", "peer", "name", "eth0", "netns", str(init.pid)
    )  # fmt: skip
    _within(switch, "ip", "link", "set", _port(node.name), "master", _BRIDGE, "up")
    _within(init, "ip", "address", "add", f"{node.address}/24", "dev", "eth0")
    _within(init, "ip", "link", "set", "eth0", "up")


def _port(name: str) -> str:
    return f"p-{name}"


def shape(switch: Process, name: str, init: Process, link: Link) -> None:
    """Set a link's rates, by a token bucket at either end; None: as fast as the machine."""
    for process, device, mbit in ((switch, _port(name), link.down_mbit), (init, "eth0", link.up_mbit)):
        if mbit:
            bucket = ("tbf", "rate", str(round(mbit * 1e6)), "burst", _BURST, "latency", _LATENCY)
            _within(process, "tc", "qdisc", "replace", "dev", device, "root", *bucket)
        elif "tbf" in _within(process, "tc", "qdisc", "show", "dev", device):
            _within(process, "tc", "qdisc", "del", "dev", device, "root")


def set_cut(switch: Process, name: str, is_cut: bool) -> None:
    """Pull a node's cable, or plug it in again."""
    _within(switch, "ip", "link", "set", _port(name), "down" if is_cut else "up")


def traffic_bytes(switch: Process) -> dict[str, tuple[int, int]]:
    """Bytes that crossed each node's link since it is there, by name: towards the node, and away from it."""
    rows = json.loads(_within(switch, "ip", "-j", "-s", "link"))
    ports = {row["ifname"]: row["stats64"] for row in rows if row["ifname"].startswith("p-")}
    return {port[2:]: (stats["tx"]["bytes"], stats["rx"]["bytes"]) for port, stats in ports.items()}
