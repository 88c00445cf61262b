"""The commands `relief-ray cluster head|join|check` and `relief-ray submit`."""

from pathlib import Path
from typing import Annotated, Literal, Optional

import typer
from typer.core import TyperGroup

from actors.cli.options import AsJson, Settings, SomeInt, SomePath, SomeText
from actors.cluster import DASHBOARD_PORT, FIRST_PORT, GCS_PORT
from actors.runtime.tokens import token_path, use_token
from relief_ray.support.errors import UserError

cluster = typer.Typer(help="Several machines: start a head, join it as a device, see what fits.", no_args_is_help=True)

Bind = Annotated[
    SomeText,
    typer.Option(metavar="ADDRESS", help="Address of this machine that other nodes use; default: that of its route."),
]
Ports = Annotated[
    int, typer.Option("--ports", metavar="FIRST", help="First of the 200 ports of this node's services and workers.")
]
NumCpus = Annotated[SomeInt, typer.Option(min=0, help="Cores to lend; default: all within the container's quota.")]
NumGpus = Annotated[SomeInt, typer.Option(min=0, help="GPUs to lend; default: those that torch sees.")]
MemoryMib = Annotated[SomeInt, typer.Option(min=64, help="MiB for worker processes; default: 80 % of the machine's.")]
StoreMib = Annotated[SomeInt, typer.Option(min=80, help="MiB of shared memory for models; default: 1/8, at most 1024.")]
Token = Annotated[
    SomePath,
    typer.Option(metavar="FILE", help="The cluster's token; default: RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No token: whoever reaches this machine's ports may run programs on it.")
]
TempDir = Annotated[
    SomePath, typer.Option(metavar="DIR", help="Ray's sockets and logs; one for each node of a machine.")
]
Print = Annotated[bool, typer.Option("--print", help="Only print the line and its environment.")]


@cluster.command("head")
def cluster_head(
    bind: Bind = None,
    port: Annotated[int, typer.Option(help="Port that nodes join at.")] = GCS_PORT,
    dashboard_host: Annotated[str, typer.Option(help="Where dashboard and jobs are served.")] = "127.0.0.1",
    dashboard_port: Annotated[int, typer.Option(help="Port of dashboard and jobs.")] = DASHBOARD_PORT,
    ports: Ports = FIRST_PORT,
    num_cpus: NumCpus = None,
    num_gpus: NumGpus = None,
    memory_mib: MemoryMib = None,
    object_store_mib: StoreMib = None,
    token: Token = None,
    insecure: Insecure = False,
    temp_dir: TempDir = None,
    print_only: Print = False,
) -> None:
    """Start the head of a cluster and stay: `ray start --head --block` with fixed ports, bounds and a token."""
    from actors.commands.cluster import HeadOptions, NodeChoice, head

    node = NodeChoice(
        bind=bind, first_port=ports, num_cpus=num_cpus, num_gpus=num_gpus, memory_mib=memory_mib,
        object_store_mib=object_store_mib, token=token, insecure=insecure, temp_dir=temp_dir, print_only=print_only,
    )  # fmt: skip
    head(node, HeadOptions(port=port, dashboard_host=dashboard_host, dashboard_port=dashboard_port))


@cluster.command("join")
def cluster_join(
    address: Annotated[str, typer.Argument(metavar="HOST[:PORT]", help="The head.")],
    letter: Annotated[
        Optional[Literal["a", "b", "c"]],  # noqa: UP045
        typer.Option("--type", help="Device type; without it the node only lends its cores."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Clients of that type that it takes at a time.")] = 1,
    bind: Bind = None,
    ports: Ports = FIRST_PORT,
    num_cpus: NumCpus = None,
    num_gpus: NumGpus = None,
    memory_mib: MemoryMib = None,
    object_store_mib: StoreMib = None,
    token: Token = None,
    insecure: Insecure = False,
    temp_dir: TempDir = None,
    print_only: Print = False,
) -> None:
    """Join a cluster as a device and stay; Python's and Ray's versions are compared first."""
    from actors.commands.cluster import NodeChoice, join

    node = NodeChoice(
        bind=bind, first_port=ports, num_cpus=num_cpus, num_gpus=num_gpus, memory_mib=memory_mib,
        object_store_mib=object_store_mib, token=token, insecure=insecure, temp_dir=temp_dir, print_only=print_only,
    )  # fmt: skip
    join(address, letter, count, node)


@cluster.command("check")
def cluster_check(
    target: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="[TARGET]", help="`demo` or FILE.yaml, placed by type; or a grid, `grid smoke`."),
    ] = None,
    settings: Settings = None,
    address: Annotated[SomeText, typer.Option(metavar="HOST:PORT", help="The head; default: RAY_ADDRESS.")] = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List the nodes and their versions, devices and data; say what TARGET needs and what would make it fit.

    Exit code 2 where it does not fit, or where a node does not answer or runs other sources.
    """
    # Ray reads the variables once, when it is imported.
    use_token(token)
    from actors.commands.cluster_check import check

    check(target or [], settings or [], address, as_json)


def _jobs(context: typer.Context) -> list[str]:
    """Return the commands of this program that a job can run."""
    root = context.find_root()
    assert isinstance(root.command, TyperGroup)
    return sorted({*root.command.commands} - {"submit", "cluster"})


def submit(
    context: typer.Context,
    arguments: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="-- COMMAND...", help="What follows `relief-ray`, e.g. `-- grid smoke`."),
    ] = None,
    address: Annotated[
        SomeText, typer.Option(metavar="URL", help="The head's dashboard; default: RAY_API_SERVER_ADDRESS.")
    ] = None,
    token: Token = None,
    folder: Annotated[Path, typer.Option("--working-dir", metavar="DIR", help="Folder to upload.")] = Path(),
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the end.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the files that would be uploaded.")] = False,
    attach: Annotated[SomeText, typer.Option(metavar="JOB", help="Follow a job that was submitted.")] = None,
    stop: Annotated[SomeText, typer.Option(metavar="JOB", help="Ask a job to stop, as Ctrl-C does.")] = None,
) -> None:
    """Run a command as a job on a cluster's head: the folder's code travels, records stay on the head.

    Logs are followed; the exit code is the command's. Ctrl-C leaves the job running.
    """
    if sum(map(bool, (arguments, attach, stop))) != 1:
        raise UserError("submit: expected one of `-- COMMAND`, --attach JOB and --stop JOB, e.g. submit -- grid smoke")
    if not dry_run:
        use_token(token)
    from actors.commands.submit import SubmitOptions, attach_command, stop_command, submit_command

    if attach is not None:
        attach_command(attach, address)
    elif stop is not None:
        stop_command(stop, address)
    else:
        options = SubmitOptions(address=address, folder=folder, detach=detach, dry_run=dry_run, token=token_path(token))
        submit_command(arguments or [], options, _jobs(context))
