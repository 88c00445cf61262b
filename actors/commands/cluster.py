"""`relief-ray cluster head|join|check` and `relief-ray submit`: several machines, and jobs on them."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer
from typer.core import TyperGroup

from actors.cluster import DASHBOARD_PORT, jobs, start_line
from actors.cluster import survey as nodes_of
from actors.cluster.survey import Bundle, NodeFacts, in_words
from actors.commands.options import NodeChoice
from actors.grids.places import bundles_of, fleet_of, is_chosen_here, num_at_once, settled
from actors.runtime import tokens
from actors.runtime.placement import Nodes
from actors.runtime.session import total_of
from actors.runtime.single_run import choose_mode
from actors.terminal.exit_codes import BAD_INPUT, INTERRUPTED, RAY_LOST, Result, Stopped, say
from relief_ray.config.experiment import ExperimentConfig, read_settings
from relief_ray.studies.plan import target_config
from relief_ray.studies.presets import PRESETS
from relief_ray.studies.spec import Cell
from relief_ray.support.errors import Setting, UserError, counted
from relief_ray.support.text import wrapped
from tune_configs.registry import GRIDS, cells_of, load_grid

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

# `relief-ray cluster check`: the nodes of a cluster, and whether a target fits on them.


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """Processes of a target and the resources that they take."""

    title: str
    """The target in words."""
    data: Mapping[str, str]
    """By dataset, where its rows come from (``runtime.data``); in a grid ``node`` where one of its cells has it."""
    bundles: tuple[Bundle, ...] = ()
    """Resources of each of its processes; of a grid, of those of its most demanding cell."""
    num_cells: int | None = None
    """Cells of a grid; None: it is none."""
    impossible: str = ""
    """Why no number of nodes like these can give it; empty where some can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A target on the nodes of a cluster."""

    need: Need
    unplaced: tuple[Bundle, ...]
    """Processes that find no place, the most demanding first."""
    at_once: int | None
    """Cells of a grid that find places together; None: it is none."""
    changes: tuple[str, ...]
    """Commands that would make it fit."""

    @property
    def fits(self) -> bool:
        """True where it can run."""
        return not self.unplaced and not self.need.impossible


def check(
    target: Sequence[str], settings: Sequence[Setting], address: str | None, token: Path | None = None
) -> Iterator[Result]:
    """Show the nodes, and whether a target fits.

    Raises:
        Stopped: something does not fit, with exit code 2.
        UserError: the cluster cannot be joined, or the target is none.
    """
    place = nodes_of.head_at(address)
    nodes = nodes_of.survey_at(place)
    offers = tuple(node.resources for node in nodes)
    fit = judge(target, settings, Nodes(each=offers, here=offers[0]), place) if target else None
    faults, notes = nodes_of.faults_of(nodes), nodes_of.warnings_of(nodes)
    if fit is not None:
        training = trains(nodes, fit.need)
        faults += nodes_of.data_faults(training, fit.need.data)
        notes += nodes_of.data_notes(training, fit.need.data)
    yield answer(place, nodes, fit, faults, notes)
    if faults or (fit is not None and not fit.fits):
        raise Stopped(BAD_INPUT, "it does not fit" if not faults else "the nodes are no cluster for a run yet")


def trains(nodes: Sequence[NodeFacts], need: Need) -> list[NodeFacts]:
    """The nodes that a process of the target may be put on; the head is where the driver opens the data itself."""
    return [
        node
        for node in nodes
        if not node.is_head and any(not nodes_of.unplaced([bundle], [node.resources]) for bundle in need.bundles)
    ]


def judge(target: Sequence[str], settings: Sequence[Setting], nodes: Nodes, place: str) -> Fit:
    """Whether a target fits on the nodes; ``place``: the head's address.

    Raises:
        UserError: there is no such target.
    """
    need = need_of(target, settings, nodes)
    lacking = nodes_of.unplaced(need.bundles, nodes.each)
    is_grid = need.num_cells is not None and not need.impossible
    number = num_at_once(need.bundles, nodes, need.num_cells) if is_grid else None
    return Fit(need=need, unplaced=lacking, at_once=number, changes=tuple(nodes_of.changes(lacking, place)))


def need_of(target: Sequence[str], settings: Sequence[Setting], nodes: Nodes) -> Need:
    """Resources that a target needs. Presets and files are placed by type unless ``settings`` say otherwise.

    ``target``: the words after `relief-ray`, of which `run` may be left out, and `grid` where no preset has the name.
    ``nodes``: the cluster as a command on its head sees it.

    Raises:
        UserError: there is no such target.
    """
    verb, name = ["", *target][-2:]
    if len(target) > 2 or verb not in ("", "run", "grid"):
        raise UserError(f"check {' '.join(target)}: expected a preset, FILE.yaml, or a grid: `demo`, `grid smoke`")
    if verb == "grid" or (not verb and (name.endswith(".py") or (name in GRIDS and name not in PRESETS))):
        return _grid_need(name, cells_of(load_grid(name), settings), nodes)
    keys = {setting.path for setting in settings}
    typed = [Setting("runtime.mode", "actors"), Setting("runtime.placement", "typed")]
    typed = [] if keys & {"runtime.mode", "runtime.placement"} else typed
    return _run_need(target_config(name, [*typed, *settings]), f"run {name}", nodes, is_trial=False)


def _grid_need(name: str, cells: Sequence[Cell], nodes: Nodes) -> Need:
    """Needs of the most demanding cell of a grid."""
    kinds = {repr((c.config.fleet, c.config.data, c.config.runtime, c.config.training.device)): c for c in cells}
    needs = [_run_need(cell.config, f"grid {name}", nodes, is_trial=True) for cell in kinds.values()]
    largest = max(needs, key=lambda n: (bool(n.impossible), len(n.bundles), sorted(total_of(n.bundles).values())))
    data: dict[str, str] = {}
    for name, rule in (item for need in needs for item in need.data.items()):
        data[name] = "node" if "node" in (rule, data.get(name)) else rule
    return replace(largest, title=f"{largest.title}, a cell of {len(cells)}", data=data, num_cells=len(cells))


def _run_need(config: ExperimentConfig, title: str, nodes: Nodes, *, is_trial: bool) -> Need:
    """Needs of one run; of a typed one as if the cluster had all devices."""
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
        bundles = bundles_of(config, replace(nodes, each=(*nodes.each, *nodes_of.wished(devices, nodes.each))))
    except UserError as error:
        return Need(title=title, data=data, impossible=str(error))
    # The first is the process of a trial; a run's coordinator asks for nothing.
    return Need(title=title, data=data, bundles=bundles if is_trial else bundles[1:] or bundles)


def answer(
    place: str, nodes: Sequence[NodeFacts], fit: Fit | None, faults: Sequence[str], notes: Sequence[str]
) -> Result:
    """Nodes and fit for a terminal of 80 columns, and as JSON."""
    lines = [f"{place}: {counted(len(nodes), 'node')}, {in_words(total_of(node.resources for node in nodes))}"]
    for node in nodes:
        head = "head, " if node.is_head else ""
        lines += wrapped(f"{node.name} ({head}{node.address}): {in_words(node.resources)}", rest="  ")
        if (own := node.answer) is None:
            lines += wrapped(f"does not answer: {node.why}", "  ", "    ")
            continue
        lines.append(f"  {own.versions()}")
        lines += wrapped(f"{own.device}; data: {', '.join(own.data()) or 'none'}", "  ", "    ")
    if fit is not None:
        lines += ["", *_fit_lines(fit)]
    for head, texts in (("NOTE", notes), ("FAULT", faults)):
        lines += [line for text in texts for line in wrapped(f"{head}: {text}", rest="  ")]
    facts: dict[str, object] = {
        "address": place,
        "nodes": [{"name": node.name, **asdict(node)} for node in nodes],
        "faults": faults,
        "notes": notes,
    }
    if fit is not None:
        facts["target"] = {
            "title": fit.need.title,
            "data": fit.need.data,
            "needed": total_of(fit.need.bundles),
            "missing": total_of(fit.unplaced),
            "fits": fit.fits,
            "why_not": fit.need.impossible,
            "cells": fit.need.num_cells,
            "cells_at_once": fit.at_once,
            "changes": list(fit.changes),
        }
    return Result(lines, facts)


def _fit_lines(fit: Fit) -> list[str]:
    need, missing = fit.need, total_of(fit.unplaced)
    lines = wrapped(need.title, rest="  ")
    if need.impossible:
        return [*lines, *wrapped(f"does not fit: {need.impossible}", "  ", "    ")]
    lines += wrapped(f"needs {in_words(total_of(need.bundles))}", "  ", "    ")
    if fit.fits:
        number = "" if fit.at_once is None else f"; {counted(fit.at_once, 'cell')} at a time"
        return [*lines, f"  fits{number}"]
    places = f"{len(fit.unplaced)} of {len(need.bundles)} processes have no place (each takes one node)"
    lines += wrapped(f"does not fit: {places}; missing: {in_words(missing)}", "  ", "    ")
    lines.append("  smallest change, on one machine each:")
    for change in fit.changes:
        # A command stays one line; a sentence does not.
        lines += [f"    {change}"] if change.startswith("relief-ray") else wrapped(change, "    ", "      ")
    if missing.keys() - nodes_of.PLAIN:
        lines.append("  or without types: --set runtime.placement=virtual")
    return lines


# `relief-ray submit`: a command as a job on a cluster's head, from any folder with one's own code.


def submit(
    context: typer.Context,
    arguments: Sequence[str],
    address: str | None,
    token: Path | None,
    folder: Path,
    variables: Sequence[str],
    detach: bool,
    dry_run: bool,
    attach: str | None,
    stop: str | None,
) -> None:
    """Start a job of ``arguments`` and follow it; or follow the one that is named, or ask it to stop.

    A job that is asked to stop ends within seconds, and its run or grid can be resumed.

    Args:
        context: of this command, which knows all others.
        arguments: the command line, with or without `relief-ray`.
        address: the head's dashboard; None: ``RAY_API_SERVER_ADDRESS``, or this machine's.
        token: the cluster's token, which is not uploaded.
        folder: folder to upload.
        variables: ``NAME=VALUE``, set for the job and all its processes.
        detach: do not follow the job.
        dry_run: only list the files.
        attach: the job to follow.
        stop: the job to stop.

    Raises:
        UserError: no command, too much to upload, or a head that does not answer.
        Stopped: with the job's exit code, unless it is 0.
    """
    again = _command_of(address, token)
    if attach is not None:
        return _follow(_connect(address), attach, again)
    if stop is not None:
        client = _connect(address)
        with _silence_ends(stop, again):
            print(f"job {stop} {'is asked to stop' if jobs.stop(client, stop) else 'has ended already'}")
        return None
    root = context.find_root().command
    assert isinstance(root, TyperGroup)
    words = list(arguments[1:] if arguments[0] == "relief-ray" else arguments)
    _refuse_wrong(root, words)
    files, chosen = jobs.files_to_upload(folder, words, tokens.token_path(token)), jobs.variables_of(variables)
    if dry_run:
        print(jobs.headline(folder, files), *(file.path.as_posix() for file in files), sep="\n")
        return None
    say("\n".join([jobs.headline(folder, files), *jobs.summary(files)]))
    plain = [re.sub(r"[^\w.-]+", "-", Path(word).name) for word in words[:2] if not word.startswith("-")]
    # A name that is used once: `grid-smoke-1f2e3d`.
    client, job = _connect(address), "-".join([*plain, secrets.token_hex(3)])
    command = jobs.entrypoint(words, job)
    with TemporaryDirectory(prefix="relief-ray-") as place:
        jobs.stage(folder, files, Path(place))
        with _silence_ends(job, again):
            jobs.submit(client, command, Path(place), job, chosen)
    say(f"job {job}: {command}")
    if detach:
        return say(_how_to_go_on(job, again))
    return _follow(client, job, again)


def _refuse_wrong(root: TyperGroup, words: Sequence[str]) -> None:
    """Read the command line of a job as the head will; nothing of it is carried out.

    Raises:
        UserError: no job can run this command, or a setting is none.
        typer's own errors: an option or argument that it does not have; and its end where `--help` was asked for.
    """
    known = sorted({*root.commands} - {"submit", "cluster"})
    if not {*words[:1]} & {*known}:
        raise UserError(f"submit -- {' '.join(words[:1])}: no command for a job; expected one of {', '.join(known)}")
    context = root.make_context("relief-ray", list(words))
    while isinstance(group := context.command, TyperGroup):
        name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)
    read_settings(context.params.get("settings") or ())


def _connect(address: str | None) -> JobSubmissionClient:
    """A client of the job server; ``HOST:PORT`` stands for http."""
    url = address or os.environ.get("RAY_API_SERVER_ADDRESS") or f"127.0.0.1:{DASHBOARD_PORT}"
    return jobs.connect(url if "://" in url else f"http://{url}")


def _follow(client: JobSubmissionClient, job: str, again: str) -> None:
    """Show a job's output until it ends.

    Raises:
        Stopped: with the job's exit code; or 130 after Ctrl-C, and 9 where the head is gone: the job goes on.
    """
    try:
        with _silence_ends(job, again):
            code = jobs.follow(client, job, lambda text: print(text, end="", flush=True))
    except KeyboardInterrupt:
        raise Stopped(INTERRUPTED, f"job {job} goes on\n{_how_to_go_on(job, again)}") from None
    if code:
        raise Stopped(code, f"job {job} ended with exit code {code}")
    say(f"job {job} is done")


@contextmanager
def _silence_ends(job: str, again: str) -> Iterator[None]:
    """Ask a head about a job inside the block.

    Raises:
        Stopped: the head does not answer; the message has the commands for later.
    """
    try:
        yield
    except jobs.HeadSilent as error:
        raise Stopped(RAY_LOST, f"{error}; job {job} may go on\n{_how_to_go_on(job, again)}") from error


def _command_of(address: str | None, token: Path | None) -> str:
    """`relief-ray submit` with the options with which it reached the head."""
    options = {"--address": address, "--token": token}
    given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    return shlex.join(["relief-ray", "submit", *given])


def _how_to_go_on(job: str, again: str) -> str:
    return f"follow it with: {again} --attach {job}\nstop it with:   {again} --stop {job}"


# `relief-ray cluster head` and `join`: check what can be checked, say what comes next, become `ray start`.

# Nothing is sent there: any address outside shows which interface the default route takes (RFC 5737).
_OUTSIDE = "192.0.2.1"


def _settled(choice: NodeChoice, towards: str, *, is_head: bool) -> start_line.NodeOptions:
    """The node with this machine's defaults; ``towards``: host to which its address is a route.

    Raises:
        UserError: there is no such host.
    """
    host = choice.bind or start_line.address_here(towards)
    names = (part.name for part in fields(start_line.Capacity))
    chosen = {name: value for name in names if (value := getattr(choice, name)) is not None}
    return start_line.NodeOptions(
        host=host,
        first_port=choice.ports,
        capacity=replace(start_line.capacity(is_head), **chosen),
        token=None if choice.insecure else tokens.token_path(choice.token),
        temp_dir=choice.temp_dir and choice.temp_dir.absolute(),
    )


def head(node: NodeChoice, port: int, dashboard_host: str, dashboard_port: int) -> None:
    """Start the head in the place of this process, or print how.

    Raises:
        UserError: no token, ports that overlap, or a token that others may read.
    """
    tokens.refuse_open(node.insecure)
    settled = _settled(node, _OUTSIDE, is_head=True)
    line = start_line.head_line(settled, port=port, dashboard_host=dashboard_host, dashboard_port=dashboard_port)
    token = None if settled.token is None else shlex.quote(str(settled.token))
    if node.print_only:
        if settled.token is not None and not settled.token.exists():
            folder = shlex.quote(str(settled.token.parent))
            print(f"(umask 077; mkdir -p {folder}; openssl rand -hex 32 > {token})")
        print(line.text())
        return
    if settled.token is not None and tokens.make_token(settled.token):
        say(f"token   {settled.token} (new; only you can read it)")
    option = "" if token is None else f" --token {token}"
    variables = "" if token is None else f"RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={token} "
    place, url = f"{settled.host}:{port}", f"http://{dashboard_host}:{dashboard_port}"
    say(
        "\n".join(
            (
                f"head    {place} with {_offer(settled.capacity)}; dashboard and jobs at {url}",
                f"device  relief-ray cluster join {place} --type TYPE --token COPY_OF_THE_TOKEN",
                f"check   relief-ray cluster check --address {place}{option}",
                f"job     relief-ray submit --address {url}{option} -- grid smoke",
                f"run     {variables}relief-ray run demo --address {place} --placement typed",
                "Ctrl-C ends the head and with it the cluster.",
            )
        )
    )
    line.run()


def join(address: str, node: NodeChoice, kind: str | None, count: int) -> None:
    """Join a cluster in the place of this process, or print how.

    Raises:
        UserError: nothing answers, the token is refused, or the versions cannot be one cluster.
    """
    tokens.refuse_open(node.insecure)
    if kind is None and count != 1:
        raise UserError(f"--count {count}: counts devices of a type; expected --type NAME with it")
    place = start_line.with_port(address)
    settled = _settled(node, place.rpartition(":")[0], is_head=False)
    line = start_line.join_line(settled, place, kind, count)
    if node.print_only:
        print(line.text())
        return
    if settled.token is not None:
        tokens.check_token(settled.token)
        # For `ray start`, which has this environment.
        tokens.use_token(settled.token)
    start_line.refuse_unlike(place)
    device = "cores only" if kind is None else f"{count} x type {kind}"
    say(f"joins   {place} as {device}, with {_offer(settled.capacity)}")
    line.run()


def _offer(offered: start_line.Capacity) -> str:
    gpus = f", {offered.num_gpus} GPU" if offered.num_gpus else ""
    return (
        f"{offered.num_cpus} cores{gpus}, {offered.memory_mib} MiB for workers, {offered.object_store_mib} MiB shared"
    )
