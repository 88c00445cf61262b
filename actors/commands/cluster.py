"""`relief-ray cluster head` and `join`: check what can be checked, say what comes next, become `ray start`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from actors.cluster import GCS_PORT
from actors.cluster.start_line import (
    Capacity,
    DeviceLetter,
    NodeOptions,
    StartLine,
    address_here,
    capacity,
    head_line,
    join_line,
    refuse_other,
    versions_here,
    versions_of,
)
from actors.runtime.tokens import check_token, make_token, refuse_open, token_path, use_token
from relief_ray.support.errors import UserError

# Nothing is sent there: any address outside shows which interface the default route takes (RFC 5737).
_OUTSIDE = "192.0.2.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeChoice:
    """Options that head and joining nodes share; None: the default of this machine.

    Attributes:
        bind: address that other nodes use.
        first_port: first of the node's ports.
        num_cpus: cores to lend.
        num_gpus: GPUs to lend.
        memory_mib: MiB for worker processes.
        object_store_mib: MiB of shared memory.
        token: file of the cluster's token.
        insecure: ask for no token.
        temp_dir: folder of Ray's sockets and logs.
        print_only: print the line instead of running it.
    """

    bind: str | None
    first_port: int
    num_cpus: int | None
    num_gpus: int | None
    memory_mib: int | None
    object_store_mib: int | None
    token: Path | None
    insecure: bool
    temp_dir: Path | None
    print_only: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadOptions:
    """Options of the head alone."""

    port: int
    dashboard_host: str
    dashboard_port: int


def head(choice: NodeChoice, options: HeadOptions) -> None:
    """Start the head in the place of this process, or print how.

    Raises:
        UserError: no token, ports that overlap, or a token that others may read.
    """
    refuse_open(choice.insecure)
    node = _node(choice, choice.bind or address_here(_OUTSIDE), is_head=True)
    line = head_line(
        node, port=options.port, dashboard_host=options.dashboard_host, dashboard_port=options.dashboard_port
    )
    if choice.print_only:
        _show(line, _token_lines(node.token))
        return
    if node.token is not None and make_token(node.token):
        _say(f"token   {node.token} (new; only you can read it)")
    _say(*_next(node, options))
    line.run()


def join(address: str, letter: DeviceLetter | None, count: int, choice: NodeChoice) -> None:
    """Join a cluster in the place of this process, or print how.

    Raises:
        UserError: nothing answers, the token is refused, or the versions cannot be one cluster.
    """
    refuse_open(choice.insecure)
    if letter is None and count != 1:
        raise UserError(f"--count {count}: counts devices of a type; expected --type a, b or c with it")
    place = address if ":" in address else f"{address}:{GCS_PORT}"
    host = place.rpartition(":")[0]
    node = _node(choice, choice.bind or address_here(host), is_head=False)
    line = join_line(node, place, letter, count)
    if choice.print_only:
        _show(line, [])
        return
    if node.token is not None:
        check_token(node.token)
        # Before Ray is imported, which reads it once.
        use_token(node.token)
    refuse_other(versions_here(), versions_of(place), place)
    what = "cores only" if letter is None else f"{count} x type {letter.upper()}"
    _say(f"joins   {place} as {what}, with {_offer(node.capacity)}")
    line.run()


def _node(choice: NodeChoice, host: str, *, is_head: bool) -> NodeOptions:
    """The node with this machine's defaults."""
    offered = capacity(is_head)
    chosen = {
        name: value
        for name in ("num_cpus", "num_gpus", "memory_mib", "object_store_mib")
        if (value := getattr(choice, name)) is not None
    }
    return NodeOptions(
        host=host,
        first_port=choice.first_port,
        capacity=replace(offered, **chosen),
        token=None if choice.insecure else token_path(choice.token),
        temp_dir=None if choice.temp_dir is None else choice.temp_dir.absolute(),
    )


def _offer(offered: Capacity) -> str:
    gpus = f", {offered.num_gpus} GPU" if offered.num_gpus else ""
    return (
        f"{offered.num_cpus} cores{gpus}, {offered.memory_mib} MiB for workers, {offered.object_store_mib} MiB shared"
    )


def _show(line: StartLine, before: list[str]) -> None:
    print(*before, line.text(), sep="\n")


def _token_lines(path: Path | None) -> list[str]:
    """Commands that make the token, where there is none yet."""
    if path is None or path.exists():
        return []
    return [f"(umask 077; mkdir -p {shlex.quote(str(path.parent))}; openssl rand -hex 32 > {shlex.quote(str(path))})"]


def _next(node: NodeOptions, options: HeadOptions) -> list[str]:
    """Lines with the commands to type once the head is up."""
    token = "" if node.token is None else f" --token {shlex.quote(str(node.token))}"
    variables = "" if node.token is None else f"RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={shlex.quote(str(node.token))} "
    url = f"http://{options.dashboard_host}:{options.dashboard_port}"
    place = f"{node.host}:{options.port}"
    return [
        f"head    {place} with {_offer(node.capacity)}; dashboard and jobs at {url}",
        f"device  relief-ray cluster join {place} --type c --token COPY_OF_THE_TOKEN",
        f"check   relief-ray cluster check --address {place}{token}",
        f"job     relief-ray submit --address {url}{token} -- grid smoke",
        f"run     {variables}relief-ray run demo --address {place} --placement typed",
        "Ctrl-C ends the head and with it the cluster.",
    ]


def _say(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr, flush=True)
