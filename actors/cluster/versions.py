"""Before a node joins: does a head answer, does it take the token, and does it run the same Python and Ray?"""

from __future__ import annotations

import platform
import socket
from dataclasses import dataclass

from relief_ray.support.errors import UserError
from relief_ray.support.text import pip

_KNOCK_S = 10.0


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions that nodes of one cluster must share: Ray's exactly, Python's but for the patch level."""

    ray: str
    python: str


def versions_here() -> Versions:
    """Versions of this process."""
    import ray

    return Versions(ray.__version__, platform.python_version())


def versions_of(address: str) -> Versions:
    """Versions of the cluster whose head is at ``HOST:PORT``.

    Raises:
        UserError: nothing answers there, or it refuses the token.
    """
    _knock(address)
    # Ray has no public call for it: this is what `ray start` itself asks, after it has started processes.
    from ray._common.usage.usage_lib import get_cluster_metadata
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    try:
        metadata = get_cluster_metadata(GcsClient(address=address))
    except Exception as error:
        line = str(error).strip().partition(". ")[0].splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{address}: does not let this machine in ({line}); expected a head that `relief-ray cluster head` "
            "started, and its token: copy the head's token file here and name it with --token FILE"
        ) from error
    return Versions(str(metadata["ray_version"]), str(metadata["python_version"]))


def _knock(address: str) -> None:
    """Check that something listens at ``HOST:PORT``; Ray itself would wait for minutes.

    Raises:
        UserError: nothing does.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_KNOCK_S).close()
    except OSError as error:
        raise UserError(
            f"{address}: nothing answers there ({error}); expected the head's address and port; on the head: "
            "relief-ray cluster head"
        ) from error


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
