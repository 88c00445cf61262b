"""The command line ``python -m tests.lab``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from relief_ray.support.errors import UserError
from relief_ray.support.text import table
from tests.lab import lab, network, running
from tests.lab.plan import GCS_PORT, HEAD, HOME, make_plan
from tests.lab.state import Link, Place

app = typer.Typer(
    name="python -m tests.lab",
    help="A small cluster on this machine, for tests: nodes with namespaces, links and CPU quotas of their own.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="A node's name.")]
NodeNames = Annotated[str, typer.Argument(metavar="NODE[,NODE]|all", help="Nodes; `all`: every one but the head.")]
LabName = Annotated[str, typer.Option("--lab", envvar="RELIEF_LAB_NAME", help="Which lab; several may be up.")]
Rate = Annotated[float | None, typer.Option(help="Mbit/s; without it as fast as the machine.", min=0.001)]
Supervised = Annotated[bool, typer.Option("--supervised", help="Start Ray anew whenever it ends, as systemd does.")]


@app.command()
def up(
    nodes: Annotated[
        list[str], typer.Argument(metavar="NODE[=TYPE][:COUNT]...", help="Beside the head; e.g. a:3 c:2.")
    ],
    name: LabName = "lab",
    cpus: Annotated[int, typer.Option(help="Cores that each node offers to Ray.", min=1)] = 1,
    store_mib: Annotated[int, typer.Option(help="Ray's object store on each node, MiB.", min=80)] = 150,
    disk_mib: Annotated[int, typer.Option(help="Limit of each node's own disk, in memory, MiB.", min=16)] = 2048,
    data: Annotated[Path | None, typer.Option(help="Folder with data sets that every node has.")] = None,
    hide: Annotated[list[Path] | None, typer.Option(help="Folder that no node sees. Repeatable.")] = None,
    store: Annotated[list[Path] | None, typer.Option(help="Folder that all nodes write to. Repeatable.")] = None,
) -> None:
    """Build the head and the nodes, without Ray."""
    for folder in (*(hide or ()), *(store or ()), *((data,) if data else ())):
        if not folder.is_dir():
            raise UserError(f"{folder}: expected a folder that is there")
    plan = make_plan(nodes, num_cpus=cpus, store_mib=store_mib)
    hidden, stores = ([path.resolve() for path in folders or ()] for folders in (hide, store))
    data = data.resolve() if data else None
    lab.up(Place(name), plan, disk_mib=disk_mib, data=data, hide=hidden, stores=stores)
    print(f"up: {', '.join(f'{n.name} {n.address}' for n in plan)}")


@app.command()
def head(name: LabName = "lab", supervised: Supervised = False) -> None:
    """Start Ray on the head, with dashboard and jobs on its port 8265, and wait until nodes can join."""
    place = Place(name)
    process = running.start_ray(place, HEAD, is_supervised=supervised)
    running.await_head(place)
    print(f"head: process {process.pid}, prints to {place.logs / 'head.log'}")


@app.command()
def node(names: NodeNames, name: LabName = "lab", supervised: Supervised = False) -> None:
    """Start Ray on nodes, which join the head."""
    place = Place(name)
    for each in (node.plan.name for node in lab.nodes_of(place.read(), names)):
        process = running.start_ray(place, each, is_supervised=supervised)
        print(f"{each}: process {process.pid}, prints to {place.logs / f'{each}.log'}")


@app.command("wait-ready")
def wait_ready(
    name: LabName = "lab",
    timeout_s: Annotated[float, typer.Option(help="Seconds until it gives up.", min=0.0)] = 90.0,
) -> None:
    """Wait until every node on which Ray was started is a member of the cluster; exit code 1 if one is not."""
    place = Place(name)
    state = place.read()
    expected = [node.plan.address for node in state.nodes.values() if node.ray is not None]
    words = [sys.executable, "-m", "tests.lab.members", f"{state.nodes[HEAD].plan.address}:{GCS_PORT}"]
    raise SystemExit(running.execute(place, HEAD, [*words, *expected, f"--timeout-s={timeout_s}"]))


@app.command("exec")
def execute(
    node_name: NodeName,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run there.")],
    name: LabName = "lab",
    cwd: Annotated[str, typer.Option(help="Folder inside the node.")] = HOME,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable. Repeatable.")] = None,
) -> None:
    """Run a command in a node and end with its exit code."""
    raise SystemExit(running.execute(Place(name), node_name, command, cwd=cwd, variables=env or []))


@app.command()
def shape(
    names: NodeNames,
    name: LabName = "lab",
    down_mbit: Rate = None,
    up_mbit: Rate = None,
) -> None:
    """Set the rates of nodes' links, towards the node and away from it; without options as fast as the machine."""
    lab.shape(Place(name), names, Link(down_mbit=down_mbit, up_mbit=up_mbit))


@app.command()
def quota(
    names: NodeNames,
    percent: Annotated[str, typer.Argument(metavar="PERCENT|none", help="Of one core, for each node.")],
    name: LabName = "lab",
) -> None:
    """Limit the CPU time of nodes."""
    if percent != "none" and not (percent.isdigit() and int(percent)):
        raise UserError(f"quota {percent}: expected 1 or more percent of one core, or `none`")
    lab.quota(Place(name), names, None if percent == "none" else int(percent))


@app.command()
def cut(names: NodeNames, name: LabName = "lab") -> None:
    """Cut the links of nodes: packets are lost, connections stay."""
    lab.cut(Place(name), names)


@app.command()
def heal(names: NodeNames, name: LabName = "lab") -> None:
    """Heal links that were cut."""
    lab.cut(Place(name), names, is_cut=False)


@app.command()
def kill(names: NodeNames, name: LabName = "lab") -> None:
    """End all processes of nodes, as pulling the plug does; their disks stay, `node` starts Ray again."""
    place = Place(name)
    for each in (node.plan.name for node in lab.nodes_of(place.read(), names)):
        print(f"{each}: {lab.kill(place, each)} processes ended")


@app.command()
def down(name: LabName = "lab") -> None:
    """Remove a lab: processes, namespaces, links, mounts, control groups, folder; also after a crash."""
    if left := lab.down(Place(name)):
        raise UserError(f"lab {name!r}: could not end {', '.join(left)}")


@app.command()
def status(name: LabName = "lab", as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Show nodes, links, quotas, traffic since `up`, and where a node's files are seen from outside."""
    place = Place(name)
    state = place.read()
    moved = network.traffic_bytes(state.switch) if state.switch and state.switch.is_alive else {}
    rows = [
        {
            "node": key,
            "address": node.plan.address,
            "offers": " ".join(f"{k}:{v}" for k, v in node.plan.resources.items()),
            "alive": node.init is not None and node.init.is_alive,
            "ray": node.ray is not None and node.ray.is_alive,
            "cut": node.link.is_cut,
            "down_mbit": node.link.down_mbit,
            "up_mbit": node.link.up_mbit,
            "quota_percent": node.quota_percent,
            "down_bytes": moved.get(key, (None, None))[0],
            "up_bytes": moved.get(key, (None, None))[1],
            "files": f"/proc/{node.init.pid}/root{HOME}" if node.init else None,
        }
        for key, node in state.nodes.items()
    ]
    shown = [[_shown(value) for value in row.values()] for row in rows]
    print(json.dumps(rows, indent=1) if as_json else table(list(rows[0]), shown, left=3))


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def main() -> None:
    """The entry point: a user's error is one line and exit code 2."""
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
