"""The command groups that run no experiment here: `cluster`, `device`, `fleet`, `model`, `data`; and `submit`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from actors.cli.options import app, runs
from actors.cluster import DASHBOARD_PORT, GCS_PORT
from actors.commands.options import (
    Dataset,
    NodeChoice,
    Set,
    SomeInt,
    SomeNumber,
    SomePath,
    SomeText,
    Target,
    Token,
    argument,
    option,
    switch,
)
from actors.runtime.tokens import use_token
from relief_ray.support.errors import UserError


def _group(name: str, help: str) -> typer.Typer:
    return typer.Typer(name=name, help=help, no_args_is_help=True)


cluster = _group("cluster", "Use several machines: start a head, join it as a device, check whether a run fits.")
fleet = _group("fleet", "Devices, their sensors, and the cost of a round.")
model = _group("model", "Describe, evaluate and export the backbone and its parameter groups.")
device = _group("device", "Power and speed of this machine as a device of the fleet.")
data = _group("data", "Fetch, check and describe datasets.")

# `relief-ray doctor` and `relief-ray device monitor|profile`.

Sysfs = Annotated[
    SomePath, option("Read sys/, etc/, proc/ and var/ below this folder instead of /.", "ROOT", "--sysfs")
]


@runs(app, "doctor", "device:doctor")
def doctor(
    out: Annotated[Path, option("The folder for runs.", "DIR")] = Path("runs"),
    uri: Annotated[SomeText, option("The MLflow store; by default the file beside the runs.")] = None,
    address: Annotated[
        SomeText, option("The head of a cluster; default: RAY_ADDRESS, else none.", "HOST[:PORT]")
    ] = None,
    token: Token = None,
    sysfs: Sysfs = None,
) -> None:
    """Check this machine for runs: torch, data, folders, locks, clock, MLflow; a cluster's nodes; a board's parts.

    Exit code 2 if there is a problem; each line that is not ok has its fix. Nothing is started or kept.
    """


@runs(device, "monitor", "device:monitor")
def device_monitor(
    command: Annotated[
        list[str] | None, argument("Measure while this command runs, instead of --seconds.", "[-- COMMAND...]")
    ] = None,
    seconds: Annotated[float, option("Length of the measurement; Ctrl-C ends it.", min=0.1)] = 10.0,
    idle: Annotated[float, option("Seconds before the measurement, for the idle power.", min=0.0)] = 3.0,
    sysfs: Sysfs = None,
) -> None:
    """Measure this board's power by rail every 100 ms: watts, joules, joules above idle, heat; n/a if not readable.

    The exit code is that of the command.
    """


@runs(device, "profile", "device:profile")
def device_profile(
    backbone: Annotated[SomeText, option("The backbone; default cnn.", "cnn|moment_lora")] = None,
    settings: Set = None,
    types: Annotated[SomeText, option("Device types that get the measured speed; default: all.", "NAMES")] = None,
    turns: Annotated[int, option("Number of repetitions.", min=1)] = 5,
    out: Annotated[SomePath, option("Default: profile-BACKBONE.json.", "FILE")] = None,
) -> None:
    """Measure this machine's time for every stage of a backbone, for the `measured` clock (costs.profile).

    On its CPU, or on its GPU with --set training.device=cuda; with the board's power where it can be read.
    """


# `relief-ray cluster head|join|check` and `relief-ray submit`.


@runs(cluster, "head", "cluster:head", json=False)
def cluster_head(
    node: NodeChoice,
    port: Annotated[int, option("Port at which nodes join.")] = GCS_PORT,
    dashboard_host: Annotated[str, option("Address of dashboard and jobs.")] = "127.0.0.1",
    dashboard_port: Annotated[int, option("Port of dashboard and jobs.")] = DASHBOARD_PORT,
) -> None:
    """Start the head of a cluster: `ray start --head --block` with fixed ports, limits and a token. Ctrl-C ends it."""


@runs(cluster, "join", "cluster:join", json=False)
def cluster_join(
    address: Annotated[str, argument("The head.", "HOST[:PORT]")],
    node: NodeChoice,
    kind: Annotated[
        SomeText,
        option("Device type of the fleet, in any case; without it the node only offers its cores.", "NAME", "--type"),
    ] = None,
    count: Annotated[int, option("Number of clients of that type at a time.", min=1)] = 1,
) -> None:
    """Join a cluster as a device, after comparing versions of Python and Ray. Ctrl-C ends it."""
    if not (node.insecure or node.print_only):
        # Ray reads the variables once, when it is imported.
        use_token(node.token)


@runs(cluster, "check", "cluster:check", own_code=True)
def cluster_check(
    target: Annotated[
        list[str] | None, argument("`demo` or FILE.yaml, placed by type; or a grid, `grid smoke`.", "[TARGET]")
    ] = None,
    settings: Set = None,
    address: Annotated[SomeText, option("The head; default: RAY_ADDRESS.", "HOST:PORT")] = None,
    token: Token = None,
) -> None:
    """List the nodes with their versions, devices and data; say what TARGET needs and how it would fit.

    Exit code 2 if it does not fit, or if a node does not answer or runs other sources.
    """
    # Ray reads the variables once, when it is imported.
    use_token(token)


@runs(app, "submit", "cluster:submit", json=False)
def submit(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None, argument("The words after `relief-ray`, e.g. `-- grid smoke`.", "-- COMMAND...")
    ] = None,
    address: Annotated[SomeText, option("The head's dashboard; default: RAY_API_SERVER_ADDRESS.", "URL")] = None,
    token: Token = None,
    folder: Annotated[Path, option("Folder to upload.", "DIR", "--working-dir")] = Path(),
    variables: Annotated[
        list[str] | None, option("Variable of all the job's processes; repeatable.", "NAME=VALUE", "--env")
    ] = None,
    detach: Annotated[bool, switch("Do not wait for the end.", "--detach")] = False,
    dry_run: Annotated[bool, switch("Only list the files that would be uploaded.", "--dry-run")] = False,
    attach: Annotated[SomeText, option("Follow a job that was submitted.", "JOB")] = None,
    stop: Annotated[SomeText, option("Ask a job to stop, as Ctrl-C does.", "JOB")] = None,
) -> None:
    """Run a command as a job on a cluster's head: the folder's code is sent along, records stay on the head.

    Logs are followed; the exit code is the command's. Ctrl-C leaves the job running.
    """
    if sum(map(bool, (arguments, attach, stop))) != 1:
        raise UserError("submit: expected one of `-- COMMAND`, --attach JOB and --stop JOB, e.g. submit -- grid smoke")
    if not dry_run:
        use_token(token)


@runs(fleet, "show", "fleet:show", own_code=True)
def fleet_show(target: Target = "demo", settings: Set = None) -> None:
    """Show device types, clients, their sensors, RELIEF's deadline and predicted seconds under each clock."""


@runs(fleet, "whatif", "fleet:whatif", own_code=True)
def fleet_whatif(
    folders: Annotated[list[Path], argument("Finished run folders, or folders of them.", "RUN...")],
    other: Annotated[
        SomePath, option("The keys of `fleet` that differ; or fleet and costs.", "FILE.yaml", "--fleet")
    ] = None,
    windows: Annotated[SomeInt, option("Training windows per client; the paper has 1900.", min=1)] = None,
    epochs: Annotated[SomeInt, option("Local epochs; the paper has 5.", min=1)] = None,
) -> None:
    """Recompute time, energy and speedup of finished runs on other hardware; the allocation stays as recorded."""


@runs(model, "describe", "model:describe", own_code=True)
def model_describe(target: Target = "demo", settings: Set = None) -> None:
    """Show the parameter groups: role, shape, values, MiB, FLOPs per window, clients that can train them."""


@runs(model, "evaluate", "model:evaluate", own_code=True)
def model_evaluate(
    folders: Annotated[list[Path], argument("Run folders, or folders of them.", "RUN...")],
    sensors: Annotated[
        list[str] | None, option("Also test with these sensors; repeatable.", "A+B", "--sensors")
    ] = None,
    part: Annotated[Literal["test", "validation"], option("Part of the windows.")] = "test",
) -> None:
    """Test the last model of runs again: with all sensors, those of every client, each alone, and any others."""


@runs(model, "export", "model:export", own_code=True)
def model_export(
    run: Annotated[Path, argument("A run folder.", "RUN")],
    out: Annotated[Path, option("Folder for the export; empty or new.", "DIR")],
    round_: Annotated[
        SomeInt, option("The model after this round; by default the last one saved.", None, "--round")
    ] = None,
    with_encoder: Annotated[
        bool, switch("Copy the frozen encoder's files too (random ones always are).", "--with-encoder")
    ] = False,
) -> None:
    """Write a run's model for use elsewhere: PEFT adapters or plain tensors, with code that loads them."""


@runs(data, "list", "data:show_list")
def data_list() -> None:
    """List the datasets, and which of them are on this machine."""


@runs(data, "fetch", "data:bring")
def data_fetch(
    name: Dataset,
    source: Annotated[SomePath, option("Use this download of your own.", "FILE|DIR", "--from")] = None,
    url: Annotated[SomeText, option("Download from this address.")] = None,
) -> None:
    """Download a dataset (continuing a broken transfer), or use your own download; then verify it."""


@runs(data, "verify", "data:check")
def data_verify(name: Dataset) -> None:
    """Check digests and structure of a dataset's files."""


@runs(data, "accept", "data:accept")
def data_accept(
    name: Dataset,
    stride_s: Annotated[float, option("Seconds from one window to the next.")] = 5.0,
    settings: Set = None,
    out: Annotated[Path, option("Folder for the receipt.", "DIR")] = Path(),
) -> None:
    """Verify, cache, describe, and train two rounds of every strategy; write a receipt to share."""


@runs(data, "synth", "data:make", json=False)
def data_synth(
    name: Dataset,
    out: Annotated[SomePath, option("Folder; default: where datasets are looked for.", "DIR")] = None,
    seed: Annotated[int, option("Seed.")] = 0,
    scale: Annotated[float, option("Length of every segment, above 0 to 1.")] = 1.0,
) -> None:
    """Write SYNTHETIC files in a dataset's original format, for use without the originals."""


@runs(data, "describe", "data:look", own_code=True)
def data_describe(
    name: Annotated[
        str,
        argument(
            "A dataset (`relief-ray data list`); or a preset, a configuration or a run folder, whose data are meant.",
            "NAME|PRESET|FILE|RUN",
        ),
    ],
    stride_s: Annotated[
        SomeNumber, option("Seconds from one window to the next; by default those of a run.", show_default=False)
    ] = None,
    settings: Set = None,
    html: Annotated[SomePath, option("Also write a page with pictures.", "FILE")] = None,
) -> None:
    """Show what is in a dataset: source, licence, ranges, activities, and the windows that a run cuts.

    For a dataset's name with default settings; for a preset, a configuration or a run with its settings.
    """


@runs(data, "shard", "data:shard")
def data_shard(
    name: Dataset,
    client: Annotated[int, option("Id of the client.", "N")],
    out: Annotated[Path, option("A new folder.", "DIR")],
    settings: Set = None,
) -> None:
    """Write one client's training windows, for a device that may hold only its own data; --set has a run's settings."""
