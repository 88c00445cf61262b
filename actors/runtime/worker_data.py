"""A job's windows on a worker: read from the node's own data, from a client's shard, or sent by the driver.

Windows come as row numbers and labels, whose signal lies in a file of the driver's node. On any other node that path is
worth nothing: the dataset is found there by its name and compared by its digest (``relief_ray.data.dataset``).
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import ray

from relief_ray.data.dataset import SignalAbsent, find_signal
from relief_ray.data.shard import Shards, find_shards, open_shard, shard_command
from relief_ray.data.window_set import WindowSet
from relief_ray.support.errors import UserError, listed, several
from relief_ray.training.executor import client_windows
from relief_ray.training.job import Job

# References in a mapping are not fetched by Ray itself: a worker fetches those that it has to read.
RowBoxes = Mapping[str, "ray.ObjectRef[WindowSet]"]

# Windows by name, with the modalities that are read of them.
Wanted = Mapping[str, tuple[WindowSet, tuple[str, ...]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobBox:
    """A job's reference, which Ray does not fetch by itself, and where its data are."""

    job: ray.ObjectRef[Job]
    """The job; a worker reads it once, after the handshake."""
    data: Literal["auto", "node", "ship"]
    home: str
    """Ray's id of the node on which the windows' file is."""
    encoded: bool = False
    """Whether models and updates travel as the codec writes them, each client's by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeData:
    """A node's part of a job's data."""

    kind: Literal["driver", "own", "shard", "none"]
    """``driver``: it is the driver's node, with the windows' file; ``own``: the node's own dataset; ``shard``: the
    shards of ``shards`` and nothing else; ``none``: nothing, or nothing that may be read (``ship``)."""
    machine: str
    """The node for people: host name and Ray's id, shortened."""
    path: Path | None = None
    """The parsed signal among the node's own files."""
    shards: Shards = field(default_factory=dict)
    why: str = ""
    """Reason for ``none``."""


def refusal(job: Job, absent: NodeData) -> str:
    """Message where a node may read its own data only and has none, with the commands that fill it."""
    assert job.data is not None
    shard = shard_command(job.data, job.fleet.clients[0].id)
    return (
        f"runtime.data = 'node': {absent.machine} lacks the data: {absent.why}. Do that on that node "
        f"(RELIEF_DATA counts as it was at `ray start`), or bring it the shard of its own client: `{shard}`; or let "
        "the driver send rows: runtime.data=auto"
    )


class WorkerData:
    """Finds a job's windows on this worker."""

    def __init__(self, job: Job, box: JobBox, node: str) -> None:
        """``node``: Ray's id of this worker's node."""
        self.job, self.box, self._node = job, box, node
        self.sent: RowBoxes = {}
        self.fetched_bytes = 0

    @cached_property
    def node_data(self) -> NodeData:
        """This node's part of the data; the first process that is asked parses them, where they have to be.

        Raises:
            UserError: the node's data are others than the driver's, or a shard cannot be read.
        """
        machine = f"node {socket.gethostname()} ({self._node[:8]})"
        if self.box.data == "ship":
            return NodeData(kind="none", machine=machine, why="as configured")
        if self.job.data is None or self._node == self.box.home:
            return NodeData(kind="driver", machine=machine)
        if shards := find_shards(self.job.data.name):
            return NodeData(kind="shard", machine=machine, shards=shards)
        try:
            return NodeData(kind="own", machine=machine, path=find_signal(self.job.data, machine))
        except SignalAbsent as error:
            return NodeData(kind="none", machine=machine, why=str(error))

    def lacking(self, wanted: Wanted) -> Wanted:
        """The windows that can neither be read here nor were sent.

        Raises:
            UserError: they may not be sent: ``runtime.data=node``, or this node holds other clients' shards.
        """
        data = self.node_data
        if data.kind == "none":
            missing = {name: windows for name, windows in wanted.items() if name not in self.sent}
            if missing and self.box.data == "node":
                raise UserError(refusal(self.job, data))
            return missing
        held = [client_windows(client) for client in data.shards]
        if data.kind == "shard" and (strangers := [name for name in wanted if name not in held]):
            folders = listed(shard.folder for shards in data.shards.values() for shard in shards)
            raise UserError(
                f"{data.machine} holds the shard of {several('client', data.shards)} alone ({folders}), but was asked "
                f"for the windows {listed(strangers)}; put the shard of that client there, give each client a node of "
                "its own (runtime.mode=actors), or take the shard out of RELIEF_DATA"
            )
        return {}

    def readable(self, name: str, windows: WindowSet) -> WindowSet:
        """The same windows where this process can read them (``Worker``)."""
        data = self.node_data
        if data.kind == "none":
            sent: WindowSet = ray.get(self.sent[name])
            assert sent.rows is not None
            self.fetched_bytes += sent.rows.nbytes
            return sent
        if data.kind == "shard":
            assert self.job.data is not None
            shards = {client_windows(client): shards for client, shards in data.shards.items()}
            return open_shard(shards[name], windows, self.job.data, data.machine)
        return windows if data.path is None else replace(windows, signal_path=str(data.path))
