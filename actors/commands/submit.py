"""`relief-ray submit`: a command as a job on a cluster's head, from any folder with one's own code."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from actors.cluster import DASHBOARD_PORT
from actors.cluster.jobs import (
    HeadSilent,
    connect,
    entrypoint,
    files_to_upload,
    follow,
    headline,
    stage,
    stop,
    submit,
    summary,
)
from actors.terminal.exit_codes import INTERRUPTED, RAY_LOST, Stopped, say
from relief_ray.support.errors import UserError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmitOptions:
    """Options of `relief-ray submit`.

    Attributes:
        address: the head's dashboard; None: ``RAY_API_SERVER_ADDRESS``, or this machine's.
        folder: folder to upload.
        detach: do not follow the job.
        dry_run: only list the files.
        token: the cluster's token, which is not uploaded.
    """

    address: str | None
    folder: Path
    detach: bool
    dry_run: bool
    token: Path


def submit_command(arguments: Sequence[str], options: SubmitOptions, jobs: Collection[str]) -> None:
    """Upload, start the job, follow it; ``jobs``: names of the commands that a job can run.

    Raises:
        UserError: no command, too much to upload, or a head that does not answer.
        Stopped: with the job's exit code, unless it is 0.
    """
    words = list(arguments[1:] if arguments[0] == "relief-ray" else arguments)
    if words[0] not in jobs:
        raise UserError(f"submit -- {words[0]}: no command for a job; expected one of {', '.join(jobs)}")
    files = files_to_upload(options.folder, words, options.token)
    if options.dry_run:
        print(headline(options.folder, files), *(file.path.as_posix() for file in files), sep="\n")
        return
    say("\n".join([headline(options.folder, files), *summary(files)]))
    url = _url(options.address)
    client, job = connect(url), _name(words)
    command = entrypoint(words, job)
    with TemporaryDirectory(prefix="relief-ray-") as place:
        stage(options.folder, files, Path(place))
        with _told_how_to_go_on(job, options.address):
            submit(client, command, Path(place), job)
    say(f"job {job}: {command}")
    if options.detach:
        say(_how_to_go_on(job, options.address))
    else:
        _follow(client, job, options.address)


def attach_command(job: str, address: str | None) -> None:
    """Follow a job from its first line.

    Raises:
        Stopped: with the job's exit code, unless it is 0.
    """
    _follow(connect(_url(address)), job, address)


def stop_command(job: str, address: str | None) -> None:
    """Ask a job to stop: its run or grid ends within seconds, and can be resumed."""
    client = connect(_url(address))
    with _told_how_to_go_on(job, address):
        said = "is asked to stop" if stop(client, job) else "has ended already"
    print(f"job {job} {said}")


def _follow(client: JobSubmissionClient, job: str, address: str | None) -> None:
    """Show a job's output until it ends.

    Raises:
        Stopped: with the job's exit code; or 130 after Ctrl-C, and 9 where the head is gone: the job goes on.
    """
    try:
        with _told_how_to_go_on(job, address):
            code = follow(client, job, _write)
    except KeyboardInterrupt:
        raise Stopped(INTERRUPTED, f"job {job} goes on\n{_how_to_go_on(job, address)}") from None
    if code:
        raise Stopped(code, f"job {job} ended with exit code {code}")
    say(f"job {job} is done")


@contextmanager
def _told_how_to_go_on(job: str, address: str | None) -> Iterator[None]:
    """Ask a head about a job inside the block.

    Raises:
        Stopped: the head does not answer; the message has the commands for later.
    """
    try:
        yield
    except HeadSilent as error:
        raise Stopped(RAY_LOST, f"{error}; job {job} may go on\n{_how_to_go_on(job, address)}") from error


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _how_to_go_on(job: str, address: str | None) -> str:
    head = "" if address is None else f" --address {address}"
    command = f"relief-ray submit{head}"
    return f"follow it with: {command} --attach {job}\nstop it with:   {command} --stop {job}"


def _url(address: str | None) -> str:
    """The job server's URL; ``HOST:PORT`` stands for http."""
    chosen = address or os.environ.get("RAY_API_SERVER_ADDRESS") or f"127.0.0.1:{DASHBOARD_PORT}"
    return chosen if "://" in chosen else f"http://{chosen}"


def _name(words: Sequence[str]) -> str:
    """A name for a job, used once: ``grid-smoke-1f2e3d``."""
    plain = [re.sub(r"[^\w.-]+", "-", Path(word).name) for word in words[:2] if not word.startswith("-")]
    return "-".join([*plain, secrets.token_hex(3)])
