"""Errors between driver and hosts (worker processes), in a user's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

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

from relief_ray.core.federated import RoundVoid
from relief_ray.support.errors import ClientFailed, UserError


class EvaluationFailed(RoundVoid):
    """Raised where hosts were lost while a model was tested, twice; the round is not committed."""


class CoordinatorLost(RuntimeError):
    """Raised where the process that runs the rounds died or froze again and again; the folder stays resumable."""


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


@contextmanager
def errno_travels() -> Iterator[None]:
    """Keep the number of the system's error behind a ``UserError`` of the block, which decides the exit code.

    An exception leaves its process without its cause.
    """
    try:
        yield
    except UserError as error:
        if isinstance(error.__cause__, OSError):
            error.__dict__["errno"] = error.__cause__.errno
        raise


def raised_there(error: RayTaskError) -> BaseException:
    """The exception that another process raised: of its own class, with the system's error behind it.

    To be raised without ``from``, which would put another cause in the place of that one.
    """
    cause = error.cause
    assert isinstance(cause, BaseException)
    errno = getattr(cause, "errno", None)
    is_systems = isinstance(cause, UserError) and isinstance(errno, int)
    cause.__cause__ = OSError(errno, str(cause)) if is_systems else error
    return cause


def raise_cause(error: RayTaskError, where: str) -> NoReturn:
    """Raise what user code raised on a host.

    Raises:
        UserError: bad input, as the host found it.
        ClientFailed: everything else, with the client and the stage named.
    """
    cause = raised_there(error)
    if isinstance(cause, UserError | ClientFailed):
        raise cause
    raise ClientFailed(f"{where}: {type(cause).__name__}: {cause}") from error
