"""Links of a lab: a bridge in a namespace of its own, a pair of virtual devices per node, a rate per direction."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

from relief_ray.support.errors import UserError
from tests.lab.plan import NodePlan
from tests.lab.state import Link, Process

_BRIDGE = "br0"
# A burst of one large packet (64 KiB) keeps the mean at the rate; what would wait longer is dropped, as in a router.
_BURST, _LATENCY = "64kb", "400ms"
_NO_SUCH_QDISC = "qdisc kind is unknown"


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


def qdisc_lines(device: str, mbit: float | None, delay_ms: float | None) -> list[list[str]]:
    """The ``tc`` commands that make what leaves a device slow (token bucket) and late (``netem``); None: neither."""
    lines = [["tc", "qdisc", "del", "dev", device, "root"]]
    above = ["root", "handle", "1:"]
    if delay_ms:
        lines.append(["tc", "qdisc", "add", "dev", device, *above, "netem", "delay", f"{delay_ms:g}ms"])
        above = ["parent", "1:1", "handle", "10:"]
    if mbit:
        bits = str(round(mbit * 1e6))
        lines.append(
            ["tc", "qdisc", "add", "dev", device, *above, "tbf", "rate", bits, "burst", _BURST, "latency", _LATENCY]
        )
    return lines


def shape(switch: Process, name: str, init: Process, link: Link) -> None:
    """Set a link's rates and delay; each direction is delayed by half.

    Raises:
        UserError: a delay, and the kernel has no ``netem``.
    """
    half_ms = None if link.delay_ms is None else link.delay_ms / 2
    ends = ((switch, _port(name), link.down_mbit), (init, "eth0", link.up_mbit))
    for process, device, mbit in ends:
        first, *others = qdisc_lines(device, mbit, half_ms)
        _drop(process, first)
        for line in others:
            _add(process, line)


def _drop(process: Process, line: Sequence[str]) -> None:
    """Remove what an earlier command put there; to ``tc``, a device with nothing to remove is an error."""
    kinds = {row["kind"] for row in json.loads(_within(process, "tc", "-j", "qdisc", "show", "dev", line[4]))}
    if kinds & {"tbf", "netem"}:
        _within(process, *line)


def _add(process: Process, line: Sequence[str]) -> None:
    try:
        _within(process, *line)
    except UserError as error:
        if _NO_SUCH_QDISC in str(error) and "netem" in line:
            raise UserError(
                "--delay-ms: n/a on this machine, its kernel has no sch_netem; leave the option out (rates work "
                "without it), or take a kernel with CONFIG_NET_SCH_NETEM"
            ) from error
        raise


def set_cut(switch: Process, name: str, is_cut: bool) -> None:
    """Pull a node's cable, or plug it in again."""
    _within(switch, "ip", "link", "set", _port(name), "down" if is_cut else "up")


def traffic_bytes(switch: Process) -> dict[str, tuple[int, int]]:
    """Bytes that crossed each node's link since it is there, by name: towards the node, and away from it."""
    rows = json.loads(_within(switch, "ip", "-j", "-s", "link"))
    ports = {row["ifname"]: row["stats64"] for row in rows if row["ifname"].startswith("p-")}
    return {port[2:]: (stats["tx"]["bytes"], stats["rx"]["bytes"]) for port, stats in ports.items()}
