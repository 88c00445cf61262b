"""Jobs on a cluster's head through Ray's job server: submit, follow, stop."""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from relief_ray.errors import UserError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_POLL_S, _SETTLE_S = 0.5, 30.0
# A head answers some seconds before it takes jobs; it says so, in a message alone.
_NOT_READY, _READY_S = "No available agent", 60.0
_STOPPED, _LOST = 143, 1
# They tell of every package and every connection.
_TALKATIVE = (
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.runtime_env.packaging",
)
# Commands that write run folders. In a job, the current folder is a copy that Ray removes.
_WRITING = ("run", "grid")
_READING_GRIDS = ("resume", "status", "freeze")
_ONLY_TELLING = ("--dry-run", "--help", "-h")


def connect(url: str) -> JobSubmissionClient:
    """A client of the job server at ``url``.

    Raises:
        UserError: nothing answers there, or it refuses the token.
    """
    from ray.exceptions import RayError
    from ray.job_submission import JobSubmissionClient

    for module in _TALKATIVE:
        logging.getLogger(module).setLevel(logging.WARNING)
    try:
        return JobSubmissionClient(url)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise UserError(
            f"{url}: no job server that lets this machine in ({_first_line(error)}); expected a head's dashboard, by "
            "default http://127.0.0.1:8265 (from another machine: ssh -L 8265:127.0.0.1:8265 HEAD), and its token: "
            "--token FILE"
        ) from error


def entrypoint(arguments: Sequence[str], job: str) -> str:
    """The command line that the head's shell runs for ``relief-ray ARGUMENTS``.

    Records go to the head's home folder unless the command names a place, and a run uses the cluster that it is on.
    """
    command = shlex.join(["relief-ray", *arguments])
    if set(arguments) & set(_ONLY_TELLING):
        return command
    verb, following = arguments[0], arguments[1] if len(arguments) > 1 else ""
    writes = verb in _WRITING and not (verb == "grid" and following in _READING_GRIDS)
    if writes and not _has(arguments, "--out"):
        command += f' --out "$HOME"/relief-ray/{job}'
    if verb == "run" and not _has(arguments, "--address"):
        command += " --address auto"
    if verb == "resume":
        command += " --set runtime.address=auto"
    return command


def _has(arguments: Sequence[str], option: str) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in arguments)


def submit(client: JobSubmissionClient, command: str, folder: Path, job: str) -> None:
    """Start a job whose working folder is a copy of ``folder``.

    No resources are asked for: Ray puts such a driver on the head, and what it writes stays there.

    Raises:
        UserError: the head refuses it.
    """
    until_s = time.monotonic() + _READY_S
    while True:
        try:
            client.submit_job(entrypoint=command, submission_id=job, runtime_env={"working_dir": str(folder)})
            return
        except RuntimeError as error:
            if _NOT_READY not in str(error) or time.monotonic() > until_s:
                raise UserError(f"the head does not take the job: {_first_line(error)}") from error
            time.sleep(_POLL_S)


def follow(client: JobSubmissionClient, job: str, write: Callable[[str], None]) -> int:
    """Pass a job's output on until it ends; return the exit code of its command.

    Raises:
        UserError: there is no such job.
        ConnectionError: the head does not answer any more; the job may be running.
    """
    refuse_unknown(client, job)
    with suppress(RuntimeError):
        # It ends without its last word where the connection breaks; the state decides.
        asyncio.run(_tail(client, job, write))
    until_s = time.monotonic() + _SETTLE_S
    while not (details := client.get_job_info(job)).status.is_terminal():
        if time.monotonic() > until_s:
            raise ConnectionError(f"the output of {job} broke off, and it has not ended")
        time.sleep(_POLL_S)
    if details.driver_exit_code is not None:
        return int(details.driver_exit_code)
    write(f"{details.status}: {details.message}\n")
    return _STOPPED if details.status == "STOPPED" else _LOST


async def _tail(client: JobSubmissionClient, job: str, write: Callable[[str], None]) -> None:
    async for text in client.tail_job_logs(job):
        write(text)


def stop(client: JobSubmissionClient, job: str) -> bool:
    """Ask a job to stop; False where it has ended already."""
    refuse_unknown(client, job)
    return bool(client.stop_job(job))


def refuse_unknown(client: JobSubmissionClient, job: str) -> None:
    """Check that the head knows a job.

    Raises:
        UserError: it does not; those that it knows are named.
    """
    jobs = sorted(str(known.submission_id) for known in client.list_jobs() if known.submission_id)
    if job not in jobs:
        raise UserError(f"job {job}: unknown to the head; expected one of {', '.join(jobs) or '(none was submitted)'}")


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__
