"""Build a lab, disturb its nodes and links, remove all of it."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from relief_ray.support.errors import UserError
from tests.lab import network
from tests.lab.cgroup import find_controller
from tests.lab.node import NodeSetup
from tests.lab.plan import HEAD, HOME, NodePlan
from tests.lab.state import MARK, Link, Node, Place, Process, State, end, inside, marked

SOURCES = Path(__file__).resolve().parents[2]
_POLL_S = 0.01
_PROGRAMS = ("ip", "tc", "mount", "nsenter", "unshare")


def check_machine() -> None:
    """Refuse where no lab can be built.

    Raises:
        UserError: not Linux, not root, or a program is missing.
    """
    if sys.platform != "linux":
        raise UserError(f"a lab needs Linux with namespaces, found {sys.platform}")
    if os.geteuid() != 0:
        raise UserError(f"a lab needs root for namespaces, links and quotas, found user id {os.geteuid()}; use sudo")
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        raise UserError(f"a lab needs {', '.join(missing)}: not installed; Debian: apt install iproute2 util-linux")
    find_controller()


def group_of(place: Place, name: str) -> str:
    """Name of a node's control group."""
    return f"{_group_prefix(place)}{name}"


def _group_prefix(place: Place) -> str:
    return f"relief-lab-{place.name}-"


def node_of(state: State, name: str) -> Node:
    """A node by name.

    Raises:
        UserError: there is none.
    """
    if name not in state.nodes:
        raise UserError(f"node {name!r}: not in this lab; expected one of {', '.join(state.nodes)}")
    return state.nodes[name]


def nodes_of(state: State, words: str) -> list[Node]:
    """The nodes of ``a,b``; ``all`` are all but the head.

    Raises:
        UserError: one is not in the lab.
    """
    names = [name for name in state.nodes if name != HEAD] if words == "all" else words.split(",")
    return [node_of(state, name) for name in names]


def init_of(node: Node) -> Process:
    """The first process of a node.

    Raises:
        UserError: it is gone.
    """
    if node.init is None or not node.init.is_alive:
        raise UserError(f"node {node.plan.name!r}: its first process is gone; remove the lab with `down`")
    return node.init


def up(
    place: Place,
    plan: Sequence[NodePlan],
    *,
    disk_mib: int = 2048,
    data: Path | None = None,
    hide: Sequence[Path] = (),
    stores: Sequence[Path] = (),
) -> State:
    """Build all nodes, without Ray. What was built is removed again if anything fails.

    Args:
        place: the lab's folder.
        plan: its nodes (``make_plan``).
        disk_mib: limit of each node's own disks, MiB; only what is written takes memory.
        data: folder with data sets that every node has.
        hide: folders of this machine that no node sees.
        stores: folders of this machine that all nodes write to.

    Raises:
        UserError: not possible on this machine, or the lab is up already.
    """
    check_machine()
    if place.is_up:
        raise UserError(f"lab {place.name!r}: up already ({place.folder}); remove it with `down`, or take --lab NAME")
    place.logs.mkdir(parents=True, exist_ok=True)
    place.token.touch(mode=0o600)
    place.token.write_text(secrets.token_hex(32))
    place.write(State(nodes={n.name: Node(plan=n, data=str(data) if data else None) for n in plan}))
    try:
        with place.changing() as state:
            state.switch = _start_switch(place)
            place.write(state)
            network.make_bridge(state.switch)
            for node in state.nodes.values():
                _build(place, state, node, disk_mib, [str(path) for path in hide], [str(path) for path in stores])
    except BaseException:
        down(place)
        raise
    return place.read()


def _start_switch(place: Place) -> Process:
    """Start the process whose network namespace holds the bridge; return once it has left that of this machine.

    Raises:
        UserError: no namespace can be made.
    """
    holder = subprocess.Popen(
        ["unshare", "--net", "sleep", "infinity"], env={**os.environ, MARK: str(place.folder)},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, cwd="/",
    )  # fmt: skip
    # Until then a command in "its" namespace would change this machine's own links.
    while not _has_own_network(holder.pid):
        if holder.poll() is not None:
            raise UserError(f"no network namespace can be made: `unshare --net` ended with {holder.returncode}")
        time.sleep(_POLL_S)
    return Process.of(holder.pid)


def _has_own_network(pid: int) -> bool:
    """Whether a process is in another network namespace than this one; False where it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    except FileNotFoundError:
        return False


def _build(place: Place, state: State, node: Node, disk_mib: int, hidden: Sequence[str], stores: Sequence[str]) -> None:
    controller, group = find_controller(), group_of(place, node.plan.name)
    controller.create(group)
    shared = {str(SOURCES), sys.prefix, sys.base_prefix, *([node.data] if node.data else [])}
    setup = NodeSetup(
        name=node.plan.name,
        home=HOME,
        token=place.token.read_text(),
        hosts={name: other.plan.address for name, other in state.nodes.items()},
        disk_mib=disk_mib,
        shared=tuple(sorted(shared)),
        hidden=tuple(hidden),
        stores=tuple(stores),
    )
    words = ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--kill-child=SIGKILL", "--propagation=private"]
    holder = subprocess.Popen(
        [*words, sys.executable, "-m", "tests.lab.node"],
        env={**os.environ, MARK: str(place.folder), "PYTHONPATH": str(SOURCES)}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True, cwd="/",
    )  # fmt: skip
    node.holder = Process.of(holder.pid)
    place.write(state)
    assert holder.stdin is not None and holder.stdout is not None
    holder.stdin.write(setup.to_json())
    holder.stdin.close()
    answer = holder.stdout.readline().strip()
    if not answer.isdigit():
        raise UserError(f"node {node.plan.name!r} cannot be built: {answer or 'its first process ended at once'}")
    node.init = Process.of(int(answer))
    place.write(state)
    controller.join(group, node.init.pid)
    assert state.switch is not None
    network.plug(state.switch, node.plan, node.init)


def down(place: Place) -> list[str]:
    """Remove the lab: processes by their ids, with them their namespaces, links and mounts; then groups and folder.

    Works on what a killed ``up`` left, and where there is nothing.

    Returns:
        What could not be removed, in words.

    Raises:
        UserError: a control group that still has processes.
    """
    try:
        known = place.read().processes if place.is_up else []
    except UserError:
        known = []
    left = end([*known, *(p for p in marked(place) if p not in known)])
    controller = find_controller()
    for group in controller.groups(_group_prefix(place)):
        controller.remove(group)
    shutil.rmtree(place.folder, ignore_errors=True)
    if place.root.is_dir() and not any(place.root.iterdir()):
        place.root.rmdir()
    return [f"process {p.pid}" for p in left]


def shape(place: Place, words: str, link: Link) -> None:
    """Set the rates of nodes' links; whether a link is cut stays as it is."""
    with place.changing() as state:
        for node in nodes_of(state, words):
            assert state.switch is not None
            network.shape(state.switch, node.plan.name, init_of(node), link)
            node.link = link.model_copy(update={"is_cut": node.link.is_cut})


def quota(place: Place, words: str, percent: int | None) -> None:
    """Limit each node to ``percent`` of one core; None lifts the limit."""
    with place.changing() as state:
        for node in nodes_of(state, words):
            node.quota_percent = percent
            find_controller().limit(group_of(place, node.plan.name), percent)


def cut(place: Place, words: str, is_cut: bool = True) -> None:
    """Cut nodes' links, or heal them: packets are lost, connections stay."""
    with place.changing() as state:
        for node in nodes_of(state, words):
            assert state.switch is not None
            network.set_cut(state.switch, node.plan.name, is_cut)
            node.link.is_cut = is_cut


def kill(place: Place, name: str) -> int:
    """End all processes of a node at once, as pulling its plug does; its disk stays. Returns how many there were."""
    with place.changing() as state:
        node = node_of(state, name)
        init, count = init_of(node), 0
        # One may have started another meanwhile; the first process' own `sleep` comes back at once.
        for _ in range(5):
            others = [p for p in inside(init) if not _is_reapers(p)]
            if not others:
                break
            count += len(others)
            end(others)
        node.ray = None
        return count


def _is_reapers(process: Process) -> bool:
    """Whether it is the `sleep` of the first process."""
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes() == b"sleep\x003600\x00"
    except FileNotFoundError:
        return True
