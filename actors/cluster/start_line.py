"""The line `ray start` of a head or of a joining node, with fixed ports, and the environment that goes with it."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from actors.cluster import FIRST_PORT, GCS_PORT
from actors.runtime.session import MAX_FOLDER_LENGTH, MIB, require_listener
from actors.runtime.tokens import MODE, PATH, WORD
from relief_ray.devices.fleet import fault_of_name, resource_of
from relief_ray.support.errors import UserError, clipped, first_line
from relief_ray.support.process import memory_bytes, num_cores
from relief_ray.support.text import pip

# Offer of this machine as a node of a cluster: its cores, GPUs and memory, within its control groups.
#
# Ray itself reads the limits of a container's root only; a unit's ``CPUQuota`` lies deeper.

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
    import torch

    total_mib = memory_bytes(root) // MIB
    store_mib = int(min(max(total_mib * _STORE_SHARE, _STORE_MIB[0]), _STORE_MIB[1]))
    rest_mib = int(total_mib * _SHARE) - store_mib - _NODE_MIB - (_HEAD_MIB if is_head else 0)
    return Capacity(
        num_cpus=num_cores(root),
        # Ray asks NVML, which does not know a Jetson's GPU (ray-project/ray#46263).
        num_gpus=torch.cuda.device_count() if torch.cuda.is_available() else 0,
        memory_mib=max(_LEAST_MIB, rest_mib),
        object_store_mib=store_mib,
    )


# Before a node joins: does a head answer, does it take the token, and does it run the same Python and Ray?


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions that nodes of one cluster must share: Ray's exactly, Python's but for the patch level."""

    ray: str
    python: str


def refuse_unlike(address: str) -> None:
    """Check that a node of this machine may join the cluster whose head is at ``HOST:PORT``.

    Raises:
        UserError: nothing answers there, it refuses the token, or the versions cannot be one cluster.
    """
    try:
        require_listener(address)
    except OSError as error:
        raise UserError(
            f"{address}: nothing answers there ({error}); expected the head's address and port; on the head: "
            "relief-ray cluster head"
        ) from error
    import ray

    # Ray has no public call for it: this is what `ray start` itself asks, after it has started processes.
    from ray._common.usage.usage_lib import get_cluster_metadata
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    try:
        metadata = get_cluster_metadata(GcsClient(address=address))
    except Exception as error:
        sentence = first_line(error).partition(". ")[0]
        raise UserError(
            f"{address}: does not let this machine in ({sentence}); expected a head that `relief-ray cluster head` "
            "started, and its token: copy the head's token file here and name it with --token FILE"
        ) from error
    there = Versions(str(metadata["ray_version"]), str(metadata["python_version"]))
    refuse_other(Versions(ray.__version__, platform.python_version()), there, address)


def refuse_other(here: Versions, there: Versions, address: str) -> None:
    """Check that a node and its head can be one cluster.

    Raises:
        UserError: Ray's versions differ, or Python's minor versions; the message has the command.
    """
    if here.ray != there.ray:
        raise UserError(
            f"{address} runs Ray {there.ray}, this machine has {here.ray}; expected the same version:\n  "
            + pip(f"'ray[default]=={there.ray}'")
        )
    if minor(here.python) != minor(there.python):
        raise UserError(
            f"{address} runs Python {there.python}, this machine has {here.python}; expected {minor(there.python)}.x "
            f"on all nodes, since what they send each other is not readable otherwise; make an environment with it:\n"
            f"  python{minor(there.python)} -m venv .venv"
        )


def minor(python: str) -> str:
    """``3.11`` of ``3.11.7``."""
    return ".".join(python.split(".")[:2])


def with_port(address: str) -> str:
    """``HOST:PORT`` of a head that is given as such, or as ``HOST``."""
    return address if ":" in address else f"{address}:{GCS_PORT}"


def address_here(towards: str) -> str:
    """Address of this machine as the one at ``towards`` would see it; nothing is sent. Without a route: loopback.

    Raises:
        UserError: there is no host of that name.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))
        except socket.gaierror as error:
            raise UserError(
                f"{towards}: no host of that name ({error}); expected the head's name or address"
            ) from error
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


# The line itself.

# The first ports of a node's range, in order; what is left of it is for worker processes.
_SERVICES = (
    "node-manager-port",
    "ray-client-server-port",
    "object-manager-port",
    "runtime-env-agent-port",
    "dashboard-agent-grpc-port",
    "dashboard-agent-listen-port",
    "metrics-export-port",
)
_HEAD_ONLY = "ray-client-server-port"
_FIRST_WORKER, NUM_PORTS = 10, 200
# A node that is silent for period x threshold + timeout counts as lost: 5 s, measured 10 s. Ray's own 65 s are the
# length of many rounds. The head alone asks.
HEALTH_CHECK = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
# A job that is stopped ends or drops its round, and itself, within ten seconds; Ray kills it after 3 s otherwise.
_JOB_STOP = {"RAY_JOB_STOP_WAIT_TIME_S": "60"}
_COMMON = {"RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor", "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeOptions:
    """A node as its owner wants it."""

    host: str
    """Address under which other nodes reach it."""
    first_port: int = FIRST_PORT
    """First of the ``NUM_PORTS`` ports that it listens on."""
    capacity: Capacity
    token: Path | None
    """File of the cluster's token; None: none is asked for."""
    temp_dir: Path | None = None
    """Folder of Ray's sockets and logs; None: Ray's own, which nodes on one machine cannot share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StartLine:
    """A command and the variables that differ from this process's."""

    arguments: tuple[str, ...]
    variables: Mapping[str, str]

    def text(self) -> str:
        """The line as one types it."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return " ".join([*variables, shlex.join(self.arguments)])

    def run(self) -> None:
        """Become that command: this process ends with it."""
        # A token in the environment would be taken instead of the file.
        inherited = {k: v for k, v in os.environ.items() if k != WORD or PATH not in self.variables}
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(self.arguments[0], list(self.arguments), {**inherited, **self.variables})


def head_line(node: NodeOptions, *, port: int, dashboard_host: str, dashboard_port: int) -> StartLine:
    """The head: it coordinates, keeps records (resource ``server``) and lends its cores.

    Raises:
        UserError: ports overlap, or the temporary folder's name is too long.
    """
    _refuse_overlap(node.first_port, {"--port": port, "--dashboard-port": dashboard_port})
    own = [
        "--head",
        f"--port={port}",
        "--include-dashboard=true",
        f"--dashboard-host={dashboard_host}",
        f"--dashboard-port={dashboard_port}",
    ]
    return _line(node, own, {"server": 1}, "server", HEALTH_CHECK | _JOB_STOP)


def join_line(node: NodeOptions, address: str, kind: str | None, count: int) -> StartLine:
    """A node that joins the cluster at ``address`` as ``count`` devices of type ``kind``; None: it lends cores only.

    Raises:
        UserError: the temporary folder's name is too long, the ports do not exist, or the type's name is none.
    """
    _refuse_overlap(node.first_port, {})
    if kind is not None and (fault := fault_of_name(kind)):
        raise UserError(f"--type {clipped(kind)}: {fault}")
    device = "cores" if kind is None else resource_of(kind)
    offered = {} if kind is None else {device: count}
    return _line(node, [f"--address={address}"], offered, device, {})


def _line(
    node: NodeOptions, own: list[str], offered: dict[str, int], device: str, variables: dict[str, str]
) -> StartLine:
    if node.temp_dir is not None and len(str(node.temp_dir)) > MAX_FOLDER_LENGTH:
        raise UserError(
            f"--temp-dir {node.temp_dir}: {len(str(node.temp_dir))} characters, expected at most {MAX_FOLDER_LENGTH}, "
            "since paths of sockets are short; e.g. --temp-dir /tmp/rr"
        )
    ports = {name: node.first_port + i for i, name in enumerate(_SERVICES) if "--head" in own or name != _HEAD_ONLY}
    ports |= {"min-worker-port": node.first_port + _FIRST_WORKER, "max-worker-port": node.first_port + NUM_PORTS - 1}
    arguments = (
        _ray(),
        "start",
        "--block",
        *own,
        f"--node-ip-address={node.host}",
        *(f"--{name}={port}" for name, port in ports.items()),
        f"--num-cpus={node.capacity.num_cpus}",
        f"--num-gpus={node.capacity.num_gpus}",
        f"--memory={node.capacity.memory_mib * MIB}",
        f"--object-store-memory={node.capacity.object_store_mib * MIB}",
        *([f"--resources={json.dumps(offered)}"] if offered else []),
        f"--labels=device={device}",
        *([] if node.temp_dir is None else [f"--temp-dir={node.temp_dir}"]),
        "--disable-usage-stats",
    )
    return StartLine(arguments=arguments, variables=_variables(node, variables))


def _refuse_overlap(first: int, others: Mapping[str, int]) -> None:
    """Check that a node's ports exist and are its own.

    Raises:
        UserError: one does not, or two are the same.
    """
    last = first + NUM_PORTS - 1
    if not 1024 <= first <= last <= 65535:
        raise UserError(f"--ports {first}: the ports {first} to {last}, expected {NUM_PORTS} of 1024 to 65535")
    for name, port in others.items():
        if first <= port <= last:
            raise UserError(f"{name} {port}: lies within --ports {first} to {last}; choose another one for either")


def _variables(node: NodeOptions, own: dict[str, str]) -> dict[str, str]:
    """Variables of the node's processes, without those that the user has set already."""
    chosen = {name: value for name, value in (_COMMON | own).items() if name not in os.environ}
    token = {MODE: "disabled"} if node.token is None else {MODE: "token", PATH: str(node.token)}
    folder = str(Path(sys.executable).parent)
    # The entrypoint of a job says `relief-ray`, which lies in the environment's folder.
    is_known = folder in os.environ.get("PATH", "").split(os.pathsep)
    path = {} if is_known else {"PATH": os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])}
    return {**token, **chosen, **path}


def _ray() -> str:
    """Ray's command in this environment.

    Raises:
        UserError: there is none.
    """
    folder = Path(sys.executable).parent
    command = shutil.which("ray", path=str(folder)) or shutil.which("ray")
    if command is None:
        raise UserError(
            f"ray: no such command in {folder} or on PATH; expected an installed Ray; "
            "in a checkout: sh bootstrap.sh edge"
        )
    return command
