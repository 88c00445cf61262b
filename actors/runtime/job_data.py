"""The executor's side of a job's data: asks every node what it has, and sends rows to hosts that ask for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from actors.runtime.errors import raise_cause
from actors.runtime.hosts import Host
from actors.runtime.worker import NeedsRows, identify
from actors.runtime.worker_data import DataMode, JobBox, NodeData, refusal
from relief_ray.core.messages import ClientId, Json
from relief_ray.data.window_set import WindowSet
from relief_ray.support.errors import UserError
from relief_ray.training.job import Job

# A board may take minutes to parse a dataset for the first time.
_PARSE_S = 1800.0


class JobData:
    """A job's data by node, and the rows that were sent."""

    def __init__(
        self, job: Job, ref: ray.ObjectRef[Job], mode: DataMode, hosts: Sequence[Host], physical: bool = False
    ) -> None:
        """Ask one host of every other node what it has; it parses the dataset where it has to.

        ``physical``: hosts measure their calls.

        Raises:
            UserError: a node has other data than the driver, or has none and ``mode`` is ``node``.
        """
        self.box = JobBox(job=ref, data=mode, home=identify().node, physical=physical)
        self._sent: dict[str, ray.ObjectRef[WindowSet]] = {}
        self._hosts, self._num_sent_bytes = hosts, 0
        self._nodes = {} if job.data is None or mode == "ship" else _survey(hosts, self.box)
        if mode == "node" and (absent := [data for data in self._nodes.values() if data.kind == "none"]):
            raise UserError("\n".join(refusal(job, data) for data in absent))

    @property
    def testers(self) -> list[int]:
        """Indices of the hosts that may test: all, or those on the driver's node.

        Test windows stay there with ``runtime.data=node``, and where a node holds a shard.
        """
        stays = self.box.data == "node" or any(data.kind == "shard" for data in self._nodes.values())
        return [host.index for host in self._hosts if not stays or host.identity.node == self.box.home]

    def rows(self, names: Sequence[str]) -> dict[str, ray.ObjectRef[WindowSet]]:
        """Return those of the windows that a host has asked for before."""
        return {name: self._sent[name] for name in names if name in self._sent}

    def send(self, lack: NeedsRows) -> dict[str, ray.ObjectRef[WindowSet]]:
        """Put the rows that a host asked for into the object store, each client's once."""
        for name, (windows, modalities) in lack.wanted.items():
            if name not in self._sent:
                cut = windows.cut(modalities)
                assert cut.rows is not None
                self._num_sent_bytes += cut.rows.nbytes
                self._sent[name] = ray.put(cut)
        return self.rows(list(lack.wanted))

    def by_shards(self, host_of: Mapping[ClientId, int], alike: Callable[[int, int], bool]) -> dict[ClientId, int]:
        """Swap clients between ``alike`` hosts so that each is trained where its shard is; returns host by client."""
        placed = dict(host_of)
        for client, other in permutations(host_of, 2):
            mine, theirs = placed[client], placed[other]
            is_wrong = self._holds(theirs, client) and not (self._holds(mine, client) or self._holds(theirs, other))
            if is_wrong and alike(mine, theirs):
                placed[client], placed[other] = theirs, mine
                here, there = self._hosts[mine], self._hosts[theirs]
                here.name, there.name = there.name, here.name
        return placed

    def _holds(self, index: int, client: ClientId) -> bool:
        """True where the host's node has that client's shard."""
        data = self._nodes.get(self._hosts[index].identity.node)
        return data is not None and client in data.shards

    def facts(self) -> dict[str, Json]:
        """Source of the data by kind of node, for the run's record."""
        kinds = [data.kind for data in self._nodes.values()]
        return {
            "data": self.box.data,
            "data_nodes": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
            "data_sent_bytes": self._num_sent_bytes,
        }


def _survey(hosts: Sequence[Host], box: JobBox) -> dict[str, NodeData]:
    """Ask every node but the driver's for its part of the data; a host that is lost meanwhile says it later."""
    first = {host.identity.node: host for host in reversed(hosts) if host.identity.node != box.home}
    refs = {node: host.handle.node_data.remote(box) for node, host in first.items()}
    answers: dict[str, NodeData] = {}
    for node, ref in refs.items():
        try:
            answers[node] = ray.get(ref, timeout=_PARSE_S)
        except RayTaskError as error:
            raise_cause(error, f"{first[node].name}, looking for the data")
        except GetTimeoutError as error:
            raise UserError(
                f"{first[node].name}: its node did not find or parse the dataset within {_PARSE_S:g} s; parse it there "
                "beforehand (`relief-ray data describe NAME`), or send rows: runtime.data=ship"
            ) from error
        except RayError:
            continue
    return answers
