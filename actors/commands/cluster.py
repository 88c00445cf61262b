"""`relief-ray cluster head` and `join`: check what can be checked, say what comes next, become `ray start`."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from actors.cluster import DASHBOARD_PORT, GCS_PORT
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
from actors.cluster.survey import (
    PLAIN,
    Bundle,
    Fit,
    NodeFacts,
    at_once,
    changes,
    data_faults,
    data_notes,
    faults_of,
    fit,
    in_words,
    survey,
    warnings_of,
    wished,
)
from actors.launch import choose_mode
from actors.runtime.placement import Nodes, total_of
from actors.runtime.session import SessionOptions, ray_session
from actors.runtime.tokens import check_token, make_token, refuse_open, token_path, use_token
from actors.terminal.exit_codes import BAD_INPUT, INTERRUPTED, RAY_LOST, Stopped, say
from relief_ray.config.experiment import ExperimentConfig
from relief_ray.studies.plan import target_config
from relief_ray.studies.presets import PRESETS
from relief_ray.studies.spec import Cell
from relief_ray.support.errors import UserError, counted
from relief_ray.support.text import wrapped

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

# `relief-ray cluster check`: the nodes of a cluster, and whether a target fits on them.


_MOST_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """Processes of a target and the resources that they take.

    Attributes:
        title: the target in words.
        data: by dataset, where its rows come from (``runtime.data``); in a grid ``node`` where one of its cells has it.
        bundles: resources of each of its processes; of a grid, of those of its most demanding cell.
        num_cells: cells of a grid; None: it is none.
        impossible: why no number of nodes like these can give it; empty where some can.
    """

    title: str
    data: Mapping[str, str] = field(default_factory=dict)
    bundles: tuple[Bundle, ...]
    num_cells: int | None = None
    impossible: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A target on the nodes of a cluster: the commands that would make it fit are in ``changes``."""

    need: Need
    fit: Fit
    at_once: int
    changes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """True where it can run."""
        return self.fit.fits and not self.need.impossible


def check(target: Sequence[str], settings: Sequence[str], address: str | None, as_json: bool) -> None:
    """Show nodes and verdict.

    Raises:
        Stopped: something does not fit, with exit code 2.
        UserError: the cluster cannot be joined, or the target is none.
    """
    place = _place(address)
    with ray_session(SessionOptions(address=place)):
        nodes = survey()
    verdict = _judge(target, settings, [node.resources for node in nodes], place) if target else None
    faults, notes = faults_of(nodes), warnings_of(nodes)
    if verdict is not None:
        training = trains(nodes, verdict.need)
        faults += data_faults(training, verdict.need.data)
        notes += data_notes(training, verdict.need.data)
    print(
        as_text(place, nodes, verdict, faults, notes) if not as_json else as_data(place, nodes, verdict, faults, notes)
    )
    if faults or (verdict is not None and not verdict.fits):
        raise Stopped(BAD_INPUT, "it does not fit" if not faults else "the nodes are no cluster for a run yet")


def trains(nodes: Sequence[NodeFacts], need: Need) -> list[NodeFacts]:
    """The nodes that a process of the target may be put on; the head is where the driver opens the data itself."""
    return [
        node
        for node in nodes
        if not node.is_head
        and any(all(node.resources.get(name, 0.0) >= amount for name, amount in b.items()) for b in need.bundles)
    ]


def _place(address: str | None) -> str:
    """Address of the head, which answers and takes the token.

    Raises:
        UserError: it does not, or runs other versions of Ray or Python.
    """
    place = address or os.environ.get("RAY_ADDRESS") or f"127.0.0.1:{GCS_PORT}"
    place = place if ":" in place or place == "auto" else f"{place}:{GCS_PORT}"
    if place != "auto":
        refuse_other(versions_here(), versions_of(place), place)
    return place


def _judge(target: Sequence[str], settings: Sequence[str], offers: Sequence[Bundle], place: str) -> Verdict:
    need = need_of(target, settings, offers)
    result = fit(need.bundles, offers)
    most = min(need.num_cells or 1, _MOST_AT_ONCE)
    return Verdict(
        need=need,
        fit=result,
        at_once=at_once(need.bundles, offers, most) if need.num_cells else 0,
        changes=tuple(changes(result, place)),
    )


def need_of(target: Sequence[str], settings: Sequence[str], offers: Sequence[Bundle]) -> Need:
    """Needs of a target: of a preset or file placed by type, unless ``settings`` say otherwise; of a grid as it is.

    ``target``: the words after `relief-ray`, of which `run` may be left out, and `grid` where no preset has the name.
    ``offers``: resources of each node.

    Raises:
        UserError: there is no such target.
    """
    from tune_configs.registry import GRIDS, cells_of, load_grid

    verb, name = ("", target[0]) if len(target) == 1 else (target[0], target[1])
    if len(target) > 2 or verb not in ("", "run", "grid"):
        raise UserError(f"check {' '.join(target)}: expected a preset, FILE.yaml, or a grid: `demo`, `grid smoke`")
    # As a command on a node of all its resources would see the cluster.
    nodes = Nodes(each=tuple(offers), here=total_of(offers))
    if verb == "grid" or (not verb and (name.endswith(".py") or (name in GRIDS and name not in PRESETS))):
        return _grid_need(name, cells_of(load_grid(name), settings), nodes)
    keys = {setting.partition("=")[0] for setting in settings}
    typed = [] if keys & {"runtime.mode", "runtime.placement"} else ["runtime.mode=actors", "runtime.placement=typed"]
    return _needed(target_config(name, [*typed, *settings]), f"run {name}", nodes, is_trial=False)


def _grid_need(name: str, cells: Sequence[Cell], nodes: Nodes) -> Need:
    """Needs of the most demanding cell of a grid."""
    kinds = {repr((c.config.fleet, c.config.data, c.config.runtime, c.config.training.device)): c for c in cells}
    needs = [_needed(cell.config, f"grid {name}", nodes, is_trial=True) for cell in kinds.values()]
    largest = max(needs, key=lambda n: (bool(n.impossible), len(n.bundles), sorted(total_of(n.bundles).values())))
    data: dict[str, str] = {}
    for name, rule in (item for need in needs for item in need.data.items()):
        data[name] = "node" if "node" in (rule, data.get(name)) else rule
    return replace(largest, title=f"{largest.title}, a cell of {len(cells)}", data=data, num_cells=len(cells))


def _needed(config: ExperimentConfig, title: str, nodes: Nodes, *, is_trial: bool) -> Need:
    """Bundles of one run; of a typed one as if the cluster had all devices."""
    from actors.grids.places import bundles_of, fleet_of, is_chosen_here, settled

    fleet, types = fleet_of(config)
    is_typed = config.runtime.placement == "typed"
    devices = [types[client.device].ray_resources for client in fleet.clients] if is_typed else []
    if is_trial and is_chosen_here(config.runtime):
        runtime = settled(config.runtime, config.runtime.num_hosts or int(nodes.number > 1))
    else:
        mode = choose_mode(config.runtime, len(fleet), config.training.stack)
        runtime = config.runtime.model_copy(update={"mode": mode})
    config = config.model_copy(update={"runtime": runtime})
    title = f"{title}: {counted(len(fleet), 'client')}, mode {runtime.mode}, placement {config.runtime.placement}"
    data = {config.data.name: config.runtime.data}
    try:
        bundles = bundles_of(config, replace(nodes, each=(*nodes.each, *wished(devices, nodes.each))))
    except UserError as error:
        return Need(title=title, data=data, bundles=(), impossible=str(error))
    # The first is the process of a trial; a run's coordinator asks for nothing.
    return Need(title=title, data=data, bundles=bundles if is_trial else bundles[1:] or bundles)


def as_text(
    place: str, nodes: Sequence[NodeFacts], verdict: Verdict | None, faults: Sequence[str], notes: Sequence[str]
) -> str:
    """Nodes and verdict for a terminal of 80 columns."""
    lines = [f"{place}: {counted(len(nodes), 'node')}, {in_words(total_of(node.resources for node in nodes))}"]
    for node in nodes:
        head = "head, " if node.is_head else ""
        lines += wrapped(f"{node.name} ({head}{node.address}): {in_words(node.resources)}", rest="  ")
        lines += _answer_lines(node)
    if verdict is not None:
        lines += ["", *_verdict_lines(verdict)]
    lines += [line for text in notes for line in wrapped(f"NOTE: {text}", rest="  ")]
    lines += [line for text in faults for line in wrapped(f"FAULT: {text}", rest="  ")]
    return "\n".join(lines)


def _answer_lines(node: NodeFacts) -> list[str]:
    answer = node.answer
    if answer is None:
        return wrapped(f"does not answer: {node.why}", "  ", "    ")
    return [
        f"  Python {answer.python}, Ray {answer.ray}, torch {answer.torch}, RELIEF-Ray {answer.version} "
        f"({answer.digest[:8]})",
        *wrapped(f"{answer.device}; data: {', '.join(answer.data()) or 'none'}", "  ", "    "),
    ]


def _verdict_lines(verdict: Verdict) -> list[str]:
    need, result = verdict.need, verdict.fit
    lines = [*wrapped(need.title, rest="  ")]
    if need.impossible:
        return [*lines, *wrapped(f"does not fit: {need.impossible}", "  ", "    ")]
    lines += wrapped(f"needs {in_words(result.needed)}", "  ", "    ")
    if verdict.fits:
        number = f"; {counted(verdict.at_once, 'cell')} at a time" if need.num_cells else ""
        return [*lines, f"  fits{number}"]
    places = f"{len(result.unplaced)} of {len(need.bundles)} processes have no place (each takes one node)"
    lines += wrapped(f"does not fit: {places}; missing: {in_words(result.missing)}", "  ", "    ")
    lines.append("  smallest change, on one machine each:")
    for change in verdict.changes:
        # A command stays one line; a sentence does not.
        lines += [f"    {change}"] if change.startswith("relief-ray") else wrapped(change, "    ", "      ")
    if any(name not in PLAIN for name in result.missing):
        lines.append("  or without types: --set runtime.placement=virtual")
    return lines


def as_data(
    place: str, nodes: Sequence[NodeFacts], verdict: Verdict | None, faults: Sequence[str], notes: Sequence[str]
) -> str:
    """The same as JSON."""
    shown: dict[str, object] = {
        "address": place,
        "nodes": [{"name": node.name, **asdict(node)} for node in nodes],
        "faults": list(faults),
        "notes": list(notes),
    }
    if verdict is not None:
        shown["target"] = {
            "title": verdict.need.title,
            "data": dict(verdict.need.data),
            "needed": dict(verdict.fit.needed),
            "missing": dict(verdict.fit.missing),
            "fits": verdict.fits,
            "why_not": verdict.need.impossible,
            "cells": verdict.need.num_cells,
            "cells_at_once": verdict.at_once if verdict.need.num_cells else None,
            "changes": list(verdict.changes),
        }
    return json.dumps(shown, indent=1)


# `relief-ray submit`: a command as a job on a cluster's head, from any folder with one's own code.


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
