"""The line `ray start` of a head or of a joining node, with fixed ports, and the environment that goes with it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from actors.cluster import FIRST_PORT
from actors.cluster.limits import Capacity
from actors.runtime.session import MAX_FOLDER_LENGTH, MIB
from actors.runtime.tokens import MODE, PATH, WORD
from relief_ray.support.errors import UserError

DeviceLetter = Literal["a", "b", "c"]

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
_HEAD_ONLY = ("ray-client-server-port",)
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
    """A node as its owner wants it.

    Attributes:
        host: address under which other nodes reach it.
        first_port: first of the ``NUM_PORTS`` ports that it listens on.
        capacity: cores, GPUs and memory that it offers.
        token: file of the cluster's token; None: none is asked for.
        temp_dir: folder of Ray's sockets and logs; None: Ray's own, which nodes on one machine cannot share.
    """

    host: str
    first_port: int = FIRST_PORT
    capacity: Capacity
    token: Path | None
    temp_dir: Path | None = None


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
    arguments = _line(node, own, {"server": 1}, "server", is_head=True)
    return StartLine(arguments=arguments, variables=_variables(node, HEALTH_CHECK | _JOB_STOP))


def join_line(node: NodeOptions, address: str, letter: DeviceLetter | None, count: int) -> StartLine:
    """A node that joins the cluster at ``address`` as ``count`` devices of type ``letter``; None: it lends cores only.

    Raises:
        UserError: the temporary folder's name is too long, or the ports do not exist.
    """
    _refuse_overlap(node.first_port, {})
    offered = {} if letter is None else {f"type_{letter}": count}
    device = "cores" if letter is None else f"type_{letter}"
    arguments = _line(node, [f"--address={address}"], offered, device, is_head=False)
    return StartLine(arguments=arguments, variables=_variables(node, {}))


def _line(
    node: NodeOptions, own: list[str], offered: Mapping[str, int], device: str, *, is_head: bool
) -> tuple[str, ...]:
    if node.temp_dir is not None and len(str(node.temp_dir)) > MAX_FOLDER_LENGTH:
        raise UserError(
            f"--temp-dir {node.temp_dir}: {len(str(node.temp_dir))} characters, expected at most {MAX_FOLDER_LENGTH}, "
            "since paths of sockets are short; e.g. --temp-dir /tmp/rr"
        )
    ports = {name: node.first_port + i for i, name in enumerate(_SERVICES) if is_head or name not in _HEAD_ONLY}
    ports |= {
        "min-worker-port": node.first_port + _FIRST_WORKER,
        "max-worker-port": node.first_port + NUM_PORTS - 1,
    }
    return (
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
        *([f"--resources={json.dumps(dict(offered))}"] if offered else []),
        f"--labels=device={device}",
        *([] if node.temp_dir is None else [f"--temp-dir={node.temp_dir}"]),
        "--disable-usage-stats",
    )


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


def _variables(node: NodeOptions, own: Mapping[str, str]) -> dict[str, str]:
    """Variables of the node's processes, but for those that the user has set already."""
    chosen = {name: value for name, value in (_COMMON | dict(own)).items() if name not in os.environ}
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
