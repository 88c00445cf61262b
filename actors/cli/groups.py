"""The command groups that run no experiment here: `cluster`, `device`, `fleet`, `model`, `data`; and `submit`."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from actors.cli.options import runs
from actors.cluster import DASHBOARD_PORT, GCS_PORT
from actors.commands.options import (
    Dataset,
    NodeChoice,
    Set,
    SomeNumber,
    SomePath,
    SomeText,
    Target,
    Token,
)
from actors.runtime.tokens import use_token
from relief_ray.support.errors import UserError

cluster = typer.Typer(
    help="Use several machines: start a head, join it as a device, check whether a run fits.", no_args_is_help=True
)
fleet = typer.Typer(help="Devices, their sensors, and the cost of a round.", no_args_is_help=True)
model = typer.Typer(help="Describe, evaluate and export the backbone and its parameter groups.", no_args_is_help=True)
device = typer.Typer(help="Power and speed of this machine as a device of the fleet.", no_args_is_help=True)
data = typer.Typer(help="Fetch, check and describe datasets.", no_args_is_help=True)

# `relief-ray cluster head|join|check` and `relief-ray submit`.


@cluster.command("head")
@runs("cluster:head", json=False)
def cluster_head(
    node: NodeChoice,
    port: Annotated[int, Option(help="Port at which nodes join.")] = GCS_PORT,
    dashboard_host: Annotated[str, Option(help="Address of dashboard and jobs.")] = "127.0.0.1",
    dashboard_port: Annotated[int, Option(help="Port of dashboard and jobs.")] = DASHBOARD_PORT,
) -> None:
    """Start the head of a cluster: `ray start --head --block` with fixed ports, limits and a token. Ctrl-C ends it."""


@cluster.command("join")
@runs("cluster:join", json=False)
def cluster_join(
    address: Annotated[str, Argument(metavar="HOST[:PORT]", help="The head.")],
    node: NodeChoice,
    letter: Annotated[
        Literal["a", "b", "c"] | None,
        Option("--type", help="Device type; without it the node only offers its cores."),
    ] = None,
    count: Annotated[int, Option(min=1, help="Number of clients of that type at a time.")] = 1,
) -> None:
    """Join a cluster as a device, after comparing versions of Python and Ray. Ctrl-C ends it."""
    if not (node.insecure or node.print_only):
        # Ray reads the variables once, when it is imported.
        use_token(node.token)


@cluster.command("check")
@runs("cluster:check", own_code=True)
def cluster_check(
    target: Annotated[
        list[str] | None,
        Argument(metavar="[TARGET]", help="`demo` or FILE.yaml, placed by type; or a grid, `grid smoke`."),
    ] = None,
    settings: Set = None,
    address: Annotated[SomeText, Option(metavar="HOST:PORT", help="The head; default: RAY_ADDRESS.")] = None,
    token: Token = None,
) -> None:
    """List the nodes with their versions, devices and data; say what TARGET needs and how it would fit.

    Exit code 2 if it does not fit, or if a node does not answer or runs other sources.
    """
    # Ray reads the variables once, when it is imported.
    use_token(token)


@runs("cluster:submit", json=False)
def submit(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        Argument(metavar="-- COMMAND...", help="The words after `relief-ray`, e.g. `-- grid smoke`."),
    ] = None,
    address: Annotated[
        SomeText, Option(metavar="URL", help="The head's dashboard; default: RAY_API_SERVER_ADDRESS.")
    ] = None,
    token: Token = None,
    folder: Annotated[Path, Option("--working-dir", metavar="DIR", help="Folder to upload.")] = Path(),
    variables: Annotated[
        list[str] | None,
        Option("--env", metavar="NAME=VALUE", help="Variable of all the job's processes; repeatable."),
    ] = None,
    detach: Annotated[bool, Option("--detach", help="Do not wait for the end.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Only list the files that would be uploaded.")] = False,
    attach: Annotated[SomeText, Option(metavar="JOB", help="Follow a job that was submitted.")] = None,
    stop: Annotated[SomeText, Option(metavar="JOB", help="Ask a job to stop, as Ctrl-C does.")] = None,
) -> None:
    """Run a command as a job on a cluster's head: the folder's code is sent along, records stay on the head.

    Logs are followed; the exit code is the command's. Ctrl-C leaves the job running.
    """
    if sum(map(bool, (arguments, attach, stop))) != 1:
        raise UserError("submit: expected one of `-- COMMAND`, --attach JOB and --stop JOB, e.g. submit -- grid smoke")
    if not dry_run:
        use_token(token)


# `relief-ray doctor` and `relief-ray device monitor|profile`.

Sysfs = Annotated[
    SomePath,
    Option("--sysfs", metavar="ROOT", help="Read sys/, etc/, proc/ and var/ below this folder instead of /."),
]


@runs("device:doctor")
def doctor(
    out: Annotated[Path, Option(metavar="DIR", help="The folder for runs.")] = Path("runs"),
    uri: Annotated[SomeText, Option(help="The MLflow store; by default the file beside the runs.")] = None,
    address: Annotated[
        SomeText, Option(metavar="HOST[:PORT]", help="The head of a cluster; default: RAY_ADDRESS, else none.")
    ] = None,
    token: Token = None,
    sysfs: Sysfs = None,
) -> None:
    """Check this machine for runs: torch, data, folders, locks, clock, MLflow; a cluster's nodes; a board's parts.

    Exit code 2 if there is a problem; each line that is not ok has its fix. Nothing is started or kept.
    """


@device.command("monitor")
@runs("device:monitor")
def device_monitor(
    command: Annotated[
        list[str] | None,
        Argument(metavar="[-- COMMAND...]", help="Measure while this command runs, instead of --seconds."),
    ] = None,
    seconds: Annotated[float, Option(min=0.1, help="Length of the measurement; Ctrl-C ends it.")] = 10.0,
    idle: Annotated[float, Option(min=0.0, help="Seconds before the measurement, for the idle power.")] = 3.0,
    sysfs: Sysfs = None,
) -> None:
    """Measure this board's power by rail every 100 ms: watts, joules, joules above idle, heat; n/a if not readable.

    The exit code is that of the command.
    """


@device.command("profile")
@runs("device:profile")
def device_profile(
    backbone: Annotated[SomeText, Option(metavar="cnn|moment_lora", help="The backbone; default cnn.")] = None,
    settings: Set = None,
    types: Annotated[str, Option(metavar="A,B,C", help="Device types that get the measured speed.")] = "A,B,C",
    turns: Annotated[int, Option(min=1, help="Number of repetitions.")] = 5,
    out: Annotated[SomePath, Option(metavar="FILE", help="Default: profile-BACKBONE.json.")] = None,
) -> None:
    """Measure this machine's time for every stage of a backbone, for the `measured` clock (costs.profile).

    On its CPU, or on its GPU with --set training.device=cuda; with the board's power where it can be read.
    """


@fleet.command("show")
@runs("fleet:show", own_code=True)
def fleet_show(target: Target = "demo", settings: Set = None) -> None:
    """Show device types, clients, their sensors, RELIEF's deadline and predicted seconds under each clock."""


@fleet.command("whatif")
@runs("fleet:whatif", own_code=True)
def fleet_whatif(
    folders: Annotated[list[Path], Argument(metavar="RUN...", help="Finished run folders, or folders of them.")],
    other: Annotated[
        Path | None,
        Option("--fleet", metavar="FILE.yaml", help="The keys of `fleet` that differ; or fleet and costs."),
    ] = None,
    windows: Annotated[int | None, Option(min=1, help="Training windows per client; the paper has 1900.")] = None,
    epochs: Annotated[int | None, Option(min=1, help="Local epochs; the paper has 5.")] = None,
) -> None:
    """Recompute time, energy and speedup of finished runs on other hardware; the allocation stays as recorded."""


@model.command("describe")
@runs("model:describe", own_code=True)
def model_describe(target: Target = "demo", settings: Set = None) -> None:
    """Show the parameter groups: role, shape, values, MiB, FLOPs per window, clients that can train them."""


@model.command("evaluate")
@runs("model:evaluate", own_code=True)
def model_evaluate(
    folders: Annotated[list[Path], Argument(metavar="RUN...", help="Run folders, or folders of them.")],
    sensors: Annotated[
        list[str] | None, Option("--sensors", metavar="A+B", help="Also test with these sensors; repeatable.")
    ] = None,
    part: Annotated[Literal["test", "validation"], Option(help="Part of the windows.")] = "test",
) -> None:
    """Test the last model of runs again: with all sensors, those of every client, each alone, and any others."""


@model.command("export")
@runs("model:export", own_code=True)
def model_export(
    run: Annotated[Path, Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path, Option(metavar="DIR", help="Folder for the export; empty or new.")],
    round_: Annotated[
        int | None,
        Option("--round", help="The model after this round; by default the last one saved."),
    ] = None,
    with_encoder: Annotated[
        bool, Option("--with-encoder", help="Copy the frozen encoder's files too (random ones always are).")
    ] = False,
) -> None:
    """Write a run's model for use elsewhere: PEFT adapters or plain tensors, with code that loads them."""


@data.command("list")
@runs("data:show_list")
def data_list() -> None:
    """List the datasets, and which of them are on this machine."""


@data.command("fetch")
@runs("data:bring")
def data_fetch(
    name: Dataset,
    source: Annotated[SomePath, Option("--from", metavar="FILE|DIR", help="Use this download of your own.")] = None,
    url: Annotated[SomeText, Option(help="Download from this address.")] = None,
) -> None:
    """Download a dataset (continuing a broken transfer), or use your own download; then verify it."""


@data.command("verify")
@runs("data:check")
def data_verify(name: Dataset) -> None:
    """Check digests and structure of a dataset's files."""


@data.command("accept")
@runs("data:accept")
def data_accept(
    name: Dataset,
    stride_s: Annotated[float, Option(help="Seconds from one window to the next.")] = 5.0,
    settings: Set = None,
    out: Annotated[Path, Option(metavar="DIR", help="Folder for the receipt.")] = Path(),
) -> None:
    """Verify, cache, describe, and train two rounds of every strategy; write a receipt to share."""


@data.command("synth")
@runs("data:make", json=False)
def data_synth(
    name: Dataset,
    out: Annotated[SomePath, Option(metavar="DIR", help="Folder; default: where datasets are looked for.")] = None,
    seed: Annotated[int, Option(help="Seed.")] = 0,
    scale: Annotated[float, Option(help="Length of every segment, above 0 to 1.")] = 1.0,
) -> None:
    """Write SYNTHETIC files in a dataset's original format, for use without the originals."""


@data.command("describe")
@runs("data:look", own_code=True)
def data_describe(
    name: Annotated[
        str,
        Argument(
            metavar="NAME|PRESET|FILE|RUN",
            help="A dataset (`relief-ray data list`); or a preset, a configuration or a run folder, whose data are "
            "meant.",
        ),
    ],
    stride_s: Annotated[
        SomeNumber,
        Option(help="Seconds from one window to the next; by default those of a run.", show_default=False),
    ] = None,
    settings: Set = None,
    html: Annotated[SomePath, Option(metavar="FILE", help="Also write a page with pictures.")] = None,
) -> None:
    """Show what is in a dataset: source, licence, ranges, activities, and the windows that a run cuts.

    For a dataset's name with default settings; for a preset, a configuration or a run with its settings.
    """


@data.command("shard")
@runs("data:shard")
def data_shard(
    name: Dataset,
    client: Annotated[int, Option(metavar="N", help="Id of the client.")],
    out: Annotated[Path, Option(metavar="DIR", help="A new folder.")],
    settings: Set = None,
) -> None:
    """Write one client's training windows, for a device that may hold only its own data; --set has a run's settings."""
