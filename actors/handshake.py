"""Who runs what: every host reports its version and its sources before it gets any work."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import dataclass

import ray
import torch

from relief_ray import __version__
from relief_ray.errors import UserError
from relief_ray.records.identity import source_digest


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """A process: the code it runs and where; ``node`` is Ray's id, empty where Ray does not run."""

    version: str
    digest: str
    python: str
    torch: str
    hostname: str
    pid: int
    node: str


def identify() -> Identity:
    """This process."""
    return Identity(
        version=__version__,
        digest=source_digest(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        hostname=socket.gethostname(),
        pid=os.getpid(),
        node=ray.get_runtime_context().get_node_id() if ray.is_initialized() else "",
    )


def check(mine: Identity, theirs: Identity) -> None:
    """Refuses a host that runs other code than the driver.

    Raises:
        UserError: version or source digest differ; both are shown.
    """
    if (mine.version, mine.digest) != (theirs.version, theirs.digest):
        raise UserError(
            f"host {theirs.hostname} (process {theirs.pid}) runs relief-ray {theirs.version}, sources "
            f"{theirs.digest[:12]}; this process runs {mine.version}, sources {mine.digest[:12]}; "
            "install the same version on every node"
        )
