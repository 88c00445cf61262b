"""Jobs on a cluster's head through Ray's job server: submit, follow, stop."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from actors.runtime.tokens import holds_token
from relief_ray.records.sync.mirror import is_uri
from relief_ray.support.errors import UserError, clipped, first_line
from relief_ray.support.table import grouped

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

# Files that travel with a job: a folder without what it ignores, and in any case the files that its command names.

MIB = 2**20
# The head takes no larger request.
LIMIT_BYTES = 100 * MIB
# A walk that goes on for longer is one through a home folder.
_MAX_FILES = 20_000
# What Ray itself leaves out; credentials; what runs leave behind.
_NEVER = (".git", ".venv", "venv", "__pycache__", ".env", ".env.*", "runs", "mlruns", "mlartifacts")
# Ray would apply them to the upload once more, and drop what the command names.
_IGNORE_FILES = (".gitignore", ".rayignore")
_MAX_ENTRIES = 8
Ignores = list[Callable[[Path], bool]]
# Ray tells of every ignore file.
_SILENT = logging.Logger("upload", logging.ERROR)


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadFile:
    """A file by its path below the folder; ``is_named``: the command names it."""

    path: Path
    num_bytes: int
    is_named: bool


def files_to_upload(folder: Path, arguments: Sequence[str], token: Path | None = None) -> list[UploadFile]:
    """The files of a folder that a job gets; `.gitignore` and `.rayignore` hold, but not for files in ``arguments``.

    The cluster's ``token`` stays here, as every file does that looks like one: whoever reads it may run any program on
    every node.

    Raises:
        UserError: they are more than a head takes; a file in ``arguments`` lies elsewhere, or is the token; there is
            no such folder, or something in it cannot be read.
    """
    if not folder.is_dir():
        raise UserError(f"--working-dir {folder}: no such folder; expected the one that holds your files")
    root = folder.resolve()
    named = _named_files(root, arguments)
    secret = token and token.resolve()
    if secret in [(root / path).resolve() for path in named]:
        raise UserError(f"{token}: the cluster's token, which no job needs; leave it out of the command")
    paths = set(named)
    with _readable(root):
        for path in _walk(root, []):
            if path.resolve() != secret and not holds_token(path):
                paths.add(path.relative_to(root))
            if len(paths) > _MAX_FILES:
                raise UserError(
                    f"--working-dir {root}: more than {_MAX_FILES} files; expected the folder of your experiment, or a "
                    f".rayignore in it that names what stays here"
                )
        files = [
            UploadFile(path=path, num_bytes=(root / path).stat().st_size, is_named=path in named)
            for path in sorted(paths, key=Path.as_posix)
        ]
    if (total := _num_bytes(files)) > LIMIT_BYTES:
        largest = "\n".join(f"  {line}" for line in summary(files))
        raise UserError(
            f"--working-dir {root}: {_mib(total)} to upload, a head takes at most {_mib(LIMIT_BYTES)}; name in a "
            f".rayignore there what the job does not need (data sets live on the nodes):\n{largest}"
        )
    return files


@contextmanager
def _readable(root: Path) -> Iterator[None]:
    """Block that reads the files below a folder.

    Raises:
        UserError: one may not be read, or has vanished meanwhile.
    """
    try:
        yield
    except (PermissionError, FileNotFoundError) as error:
        raise UserError(
            f"--working-dir {root}: {error.filename} cannot be read ({error.strerror}); expected files that stay and "
            "that you may read; mend that, or name it in a .rayignore there, and submit again"
        ) from error


def _named_files(root: Path, arguments: Sequence[str]) -> list[Path]:
    """Files that a command names: ``results/tuned.json`` in ``tuned=results/tuned.json``.

    Raises:
        UserError: one lies outside of the folder: the job would not find it.
    """
    named = []
    for argument in arguments:
        text = argument.rpartition("=")[2]
        path = root / text
        if not text or not os.path.isfile(path):  # False too where it may not be looked at
            continue
        if Path(text).is_absolute() or not path.resolve().is_relative_to(root):
            raise UserError(
                f"{argument}: a file outside of {root}, which alone travels with the job; copy it there and name it by "
                "its path in that folder"
            )
        named.append(path.resolve().relative_to(root))
    return named


def _walk(folder: Path, ignores: Ignores) -> Iterator[Path]:
    """Files below a folder that nothing ignores, in order; links to folders are not followed."""
    # Ray's own reading of these files, so that a job gets what `ray job submit` would send.
    from ray._private.runtime_env.packaging import get_excludes_from_ignore_files

    here: Ignores = [*ignores, *get_excludes_from_ignore_files(folder, include_gitignore=True, logger=_SILENT)]
    for path in sorted(folder.iterdir()):
        is_never = any(fnmatch(path.name, name) for name in (*_NEVER, *_IGNORE_FILES))
        if is_never or any(is_ignored(path) for is_ignored in here):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path, here)
        elif path.is_file():
            yield path


def summary(files: Sequence[UploadFile]) -> list[str]:
    """Lines about the largest entries of the folder, then the files that the command names."""
    entries = grouped((file.path.parts[0] + ("/" if len(file.path.parts) > 1 else ""), file) for file in files)
    by_size = sorted(entries.items(), key=lambda item: -_num_bytes(item[1]))
    parts = by_size[:_MAX_ENTRIES]
    if rest := [file for _, part in by_size[_MAX_ENTRIES:] for file in part]:
        parts.append(("others", rest))
    lines = [f"{len(part):>4}  {_mib(_num_bytes(part)):>9}  {name}" for name, part in parts]
    return [*lines, *(f"{'named':>16}  {file.path.as_posix()}" for file in files if file.is_named)]


def headline(root: Path, files: Sequence[UploadFile]) -> str:
    """``upload: 143 files, 2.3 MiB of /home/me/study (limit 100.0 MiB)``."""
    size = _mib(_num_bytes(files))
    return f"upload: {len(files)} files, {size} of {root.resolve()} (limit {_mib(LIMIT_BYTES)})"


def _num_bytes(files: Iterable[UploadFile]) -> int:
    return sum(file.num_bytes for file in files)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:.1f} MiB"


def stage(root: Path, files: Sequence[UploadFile], place: Path) -> None:
    """Copy the files into an empty folder, whole and without what is ignored: what Ray then sends is that folder.

    Raises:
        UserError: one of them cannot be read.
    """
    with _readable(root):
        for file in files:
            (place / file.path.parent).mkdir(parents=True, exist_ok=True)
            shutil.copy2(root.resolve() / file.path, place / file.path)


# Jobs on the head: the command that its shell runs, submitting, following and stopping it.

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
# `~/x` and `--out=~/x`: the head's home, which quotes would hide from its shell.
_AT_HOME = re.compile(r"(--[\w-]+=)?~(/.*)?", re.DOTALL)
# Variables of a job.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXPANDED = re.compile(r"\$[\w{]")
_RESERVED = {
    "RELIEF_RAY_THREADS": "it says how Ray was started",
    "CUDA_VISIBLE_DEVICES": "Ray gives each process its GPUs; use --set training.device",
    "OMP_NUM_THREADS": "threads decide the last bits of sums; use --set runtime.num_threads",
}


class HeadSilent(Exception):
    """Raised where a head does not answer a question about a job: it is gone, restarts, or the way to it is cut."""


@contextmanager
def asking_head() -> Iterator[None]:
    """Block that talks to a head's job server; its client raises errors of various libraries.

    Raises:
        HeadSilent: no answer, or one that tells of a fault of the head.
    """
    from aiohttp import ClientError

    try:
        yield
    except (OSError, RuntimeError, ClientError) as error:
        raise HeadSilent(f"the head does not answer ({first_line(error)})") from error


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
            f"{url}: no job server that lets this machine in ({first_line(error)}); expected a head's dashboard, by "
            "default http://127.0.0.1:8265 (from another machine: ssh -L 8265:127.0.0.1:8265 HEAD), and its token: "
            "--token FILE"
        ) from error


def entrypoint(arguments: Sequence[str], job: str) -> str:
    """The command line that the head's shell runs for ``relief-ray ARGUMENTS``.

    The shell becomes the command (``exec``). A shell that waits for it would be ended by the signal that stops the job,
    and leave it to the first process of the container: where that one takes in no ended children, Ray counts the
    command as running for ``RAY_JOB_STOP_WAIT_TIME_S``.

    Records, and a copy that `resume URI` brings, go to the head's home folder unless the command names a place. A run
    uses the cluster that it is on.
    """
    command = " ".join(_quoted(word) for word in ["exec", "relief-ray", *arguments])
    if "--dry-run" in arguments:
        return command
    verb, following = [*arguments, ""][:2]
    is_new = verb in _WRITING and not (verb == "grid" and following in _READING_GRIDS)
    # `runtime.mirror=s3://..` is a setting.
    fetches = "resume" in (verb, following) and any(is_uri(word.partition("=")[0]) for word in arguments)
    if (is_new or fetches) and not _has(arguments, "--out"):
        command += f' --out "$HOME"/relief-ray/{job}'
    if verb == "run" and not _has(arguments, "--address"):
        command += " --address auto"
    if verb == "resume":
        command += " --set runtime.address=auto"
    return command


def variables_of(texts: Iterable[str]) -> dict[str, str]:
    """A job's variables, each given as ``NAME=VALUE``.

    Raises:
        UserError: one has no name, a name that Ray or a setting decides, or a value that Ray would change.
    """
    variables: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not _NAME.fullmatch(name):
            raise UserError(f"--env {clipped(name)}: expected NAME=VALUE, the name of letters, digits and _")
        if name.startswith("RAY_") or name in _RESERVED:
            why = _RESERVED.get(name, "Ray's own; set it where the node is started")
            raise UserError(f"--env {name}: a job cannot choose it: {why}")
        if _EXPANDED.search(value):
            raise UserError(
                f"--env {name}: its value has a $ before a name, which Ray replaces by a variable of the node; "
                "expected the value itself: put one that needs a $ into a file there"
            )
        variables[name] = value
    return variables


def _quoted(word: str) -> str:
    """Quote a word for the head's shell; a leading ``~`` is the home folder there."""
    at_home = _AT_HOME.fullmatch(word)
    if at_home is None:
        return shlex.quote(word)
    option, below = at_home.groups(default="")
    return f'{option}"$HOME"{shlex.quote(below) if below else ""}'


def _has(arguments: Sequence[str], option: str) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in arguments)


def submit(client: JobSubmissionClient, command: str, folder: Path, job: str, variables: dict[str, str]) -> None:
    """Start a job whose working folder is a copy of ``folder``; all its processes have ``variables``.

    No resources are asked for: Ray puts such a driver on the head, and what it writes stays there.

    Raises:
        UserError: the head refuses it.
        HeadSilent: it does not answer; the job may have begun.
    """
    until_s = time.monotonic() + _READY_S
    environment = {"working_dir": str(folder), "env_vars": variables}
    while True:
        try:
            with asking_head():
                client.submit_job(entrypoint=command, submission_id=job, runtime_env=environment)
            return
        except HeadSilent as silent:
            refusal = silent.__cause__
            if not isinstance(refusal, RuntimeError):
                raise
            if _NOT_READY not in str(refusal) or time.monotonic() > until_s:
                raise UserError(f"the head does not take the job: {first_line(refusal)}") from refusal
            time.sleep(_POLL_S)


def follow(client: JobSubmissionClient, job: str, write: Callable[[str], None]) -> int:
    """Pass a job's output on until it ends; return the exit code of its command.

    Raises:
        UserError: there is no such job.
        HeadSilent: the head does not answer any more; the job may be running.
    """
    _refuse_unknown(client, job)
    asyncio.run(_tail(client, job, write))
    details = _end_of(client, job)
    if details.driver_exit_code is not None:
        return int(details.driver_exit_code)
    write(f"{details.status}: {details.message}\n")
    return _STOPPED if details.status == "STOPPED" else _LOST


async def _tail(client: JobSubmissionClient, job: str, write: Callable[[str], None]) -> None:
    """Pass the output on; it ends without its last word where the connection breaks."""
    output = client.tail_job_logs(job)
    while True:
        try:
            with asking_head():
                text = await anext(output, None)
        except HeadSilent:
            return
        if text is None:
            return
        write(text)


def _end_of(client: JobSubmissionClient, job: str) -> JobDetails:
    """Return what became of a job whose output has ended; a head that stumbles is asked again for half a minute.

    Raises:
        HeadSilent: it does not answer, or the job goes on.
    """
    until_s = time.monotonic() + _SETTLE_S
    while True:
        try:
            with asking_head():
                details = client.get_job_info(job)
            if details.status.is_terminal():
                return details
            silent = HeadSilent("the head's line with the output broke off")
        except HeadSilent as error:
            silent = error
        if time.monotonic() > until_s:
            raise silent
        time.sleep(_POLL_S)


def stop(client: JobSubmissionClient, job: str) -> bool:
    """Ask a job to stop; False where it has ended already.

    Raises:
        UserError: there is no such job.
        HeadSilent: the head does not answer.
    """
    _refuse_unknown(client, job)
    with asking_head():
        return bool(client.stop_job(job))


def _refuse_unknown(client: JobSubmissionClient, job: str) -> None:
    """Check that the head knows a job.

    Raises:
        UserError: it does not; those that it knows are named.
        HeadSilent: it does not answer.
    """
    with asking_head():
        known_jobs = client.list_jobs()
    jobs = sorted(str(known.submission_id) for known in known_jobs if known.submission_id)
    if job not in jobs:
        raise UserError(f"job {job}: unknown to the head; expected one of {', '.join(jobs) or '(none was submitted)'}")
