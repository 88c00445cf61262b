"""Plan of a lab: its nodes, their addresses, and the line that starts Ray on each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from relief_ray.support.errors import UserError

HEAD = "head"
# Where every node has its own memory disk; all else is shared and read-only.
HOME = "/tmp/home"
GCS_PORT = 6379
_NETWORK = "10.77.0"
_FIRST_HOST = 11
MAX_NODES = 40
# `NAME`, `NAME=TYPE`, `NAME=TYPE:COUNT`; without TYPE the name without its number is the type: a2, watch3.
_WORD = re.compile(r"(?P<name>[a-z][a-z0-9]{0,7})(=(?P<device>[a-z][a-z0-9_]*))?(:(?P<count>\d+))?")


@dataclass(frozen=True, kw_only=True)
class NodePlan:
    """A node as requested.

    Attributes:
        name: its name in commands, and its host name.
        device: its device type in lower case; empty for the head.
        count: how many clients of that type it takes at once: the amount of its Ray resource ``type_x``.
        address: its address inside the lab.
        num_cpus: cores that it offers to Ray.
        store_mib: Ray's object store, MiB.
    """

    name: str
    device: str = ""
    count: int = 1
    address: str
    num_cpus: int = 1
    store_mib: int = 150

    @property
    def resources(self) -> dict[str, int]:
        """Resources that the node offers to Ray beside its cores."""
        return {f"type_{self.device}": self.count} if self.device else {"server": 1}


def make_plan(words: Sequence[str], *, num_cpus: int = 1, store_mib: int = 150) -> tuple[NodePlan, ...]:
    """The head and one node for each word: ``a:3`` (three clients of type a), ``old=c:2``.

    Raises:
        UserError: a word that is no node, a name twice, an unknown type, or too many nodes.
    """
    nodes = [NodePlan(name=HEAD, address=f"{_NETWORK}.1", num_cpus=num_cpus, store_mib=store_mib)]
    for place, word in enumerate(words):
        node = _node(word, f"{_NETWORK}.{_FIRST_HOST + place}")
        if node.name in {n.name for n in nodes}:
            raise UserError(f"node {word!r}: the name {node.name!r} is taken; give each node a name of its own")
        nodes.append(replace(node, num_cpus=num_cpus, store_mib=store_mib))
    if not words or len(words) > MAX_NODES:
        raise UserError(f"expected 1 to {MAX_NODES} nodes beside the head, found {len(words)}; e.g. `up a:3 b:3 c:2`")
    return tuple(nodes)


def _node(word: str, address: str) -> NodePlan:
    match = _WORD.fullmatch(word)
    if not match or match["count"] == "0":
        raise UserError(
            f"node {word!r}: expected NAME[=TYPE][:COUNT] with at most 8 small letters and digits, a device type (by "
            "default the name without its number) and a count of 1 or more; e.g. a:3, watch:2, or old=c:2"
        )
    device = match["device"] or match["name"].rstrip("0123456789")
    return NodePlan(name=match["name"], device=device, count=int(match["count"] or 1), address=address)


def environment(path: str, sources: str, data: str | None) -> dict[str, str]:
    """Variables of every process of a node, equal on all of them; nothing else of the caller's comes along.

    Args:
        path: folder of the interpreter's programs.
        sources: the checkout, for ``import``.
        data: folder with data sets that the node has, if any.
    """
    return {
        "PATH": f"{path}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": HOME,
        "LANG": "C.UTF-8",
        "PYTHONPATH": sources,
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": f"{HOME}/.ray/auth_token",
        "RAY_USAGE_STATS_ENABLED": "0",
        # All nodes share the machine's cores: Ray's default of 15 would starve workers beside any other program.
        "RAY_worker_niceness": "0",
        **({"RELIEF_DATA": data} if data else {}),
    }


def ray_line(node: NodePlan, head: NodePlan) -> list[str]:
    """The command that makes a node part of the cluster and stays in the foreground.

    Ray's temporary folder is its default one, which lies on the node's own disk.
    """
    own = ["head"] if node.name == HEAD else ["join", head.address, f"--type={node.device}", f"--count={node.count}"]
    return [
        "relief-ray",
        "cluster",
        *own,
        f"--bind={node.address}",
        f"--num-cpus={node.num_cpus}",
        "--num-gpus=0",
        f"--object-store-mib={node.store_mib}",
    ]
