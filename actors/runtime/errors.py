"""Errors between driver and hosts (worker processes), in a user's words."""

from __future__ import annotations

from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
)

from relief_ray.errors import ClientFailed, UserError
from relief_ray.federated import RoundVoid


class EvaluationFailed(RoundVoid):
    """Raised where hosts were lost while a model was tested, twice; the round is not committed."""


class Interrupted(KeyboardInterrupt):
    """Raised when a stop drops a long round. Not an ``Exception``, so that no handler swallows it."""


_REASONS: tuple[tuple[type[RayError], str], ...] = (
    (
        OutOfMemoryError,
        "its process was killed because the machine ran out of memory; use fewer hosts (runtime.num_hosts)",
    ),
    (ActorDiedError, "its process died"),
    (ActorUnavailableError, "its process died or its node cannot be reached"),
    (NodeDiedError, "its node died"),
    (ObjectLostError, "its answer was lost with its node"),
    (GetTimeoutError, "its answer could not be fetched in time"),
)


def reason(error: RayError) -> str:
    """Reason for a lost call that is no fault of the code it ran."""
    known = next((text for kind, text in _REASONS if isinstance(error, kind)), type(error).__name__)
    detail = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{known} ({detail[:200]})"


def raise_cause(error: RayTaskError, where: str) -> None:
    """Raise what user code raised, with the remote traceback behind it.

    Raises:
        UserError: bad input, as the host found it.
        ClientFailed: everything else, with the client and the stage named.
    """
    cause = error.cause
    if isinstance(cause, UserError):
        raise UserError(str(cause)) from error
    if isinstance(cause, ClientFailed):
        raise type(cause)(str(cause)) from error
    raise ClientFailed(f"{where}: {type(cause).__name__}: {cause}") from error
