"""Options that several commands share, and records of many options: each with its help and default, stated once."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from actors.cluster import FIRST_PORT
from actors.runtime.tokens import use_token
from relief_ray.support.errors import UserError


def option(help: str, metavar: str | None = None, *names: str, **more: Any) -> Any:
    """An option: its help, what stands for its value there, and its names where they are not its parameter's."""
    return Option(*names, metavar=metavar, help=help, **more)


def switch(help: str, name: str) -> Any:
    """An option without a value."""
    return Option(name, metavar="", help=help)


def argument(help: str, metavar: str | None = None) -> Any:
    """An argument: its help, and its name there."""
    return Argument(metavar=metavar, help=help)


SomePath = Path | None
SomeText = str | None
SomeNumber = float | None
SomeInt = int | None

Set = Annotated[
    list[str] | None,
    option(
        "Change a value, e.g. --set training.epochs=2. Repeatable; `relief-ray config` lists all keys.",
        "PATH=VALUE",
        "--set",
    ),
]
AsJson = Annotated[bool, switch("JSON instead of text.", "--json")]
Target = Annotated[str, argument("A preset, a configuration or a run folder.", "[PRESET|FILE|RUN]")]
Dataset = Annotated[str, argument("A dataset; see `relief-ray data list`.", "NAME")]
FetchTo = Annotated[SomePath, option("Folder for the copy of a URI; default: runs/NAME.", "DIR", "--out")]
OwnCode = Annotated[bool, switch("Run code that the record names; it gets all your rights.", "--own-code")]
Jobs = Annotated[int, option("Runs at a time, each in a process; 1: one after the other.", "N", min=1)]
Token = Annotated[SomePath, option("The cluster's token; default: RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token.", "FILE")]


def _parse_hours(text: str) -> float:
    """Seconds of ``8h``, ``90m`` or ``600s``.

    Raises:
        UserError: anything else.
    """
    found = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)([hms])", text)
    seconds = {"h": 3600.0, "m": 60.0, "s": 1.0}[found[2]] * float(found[1]) if found else 0.0
    if not 0 < seconds < math.inf:
        raise UserError(f"--budget {text}: expected a positive time such as 8h, 90m or 600s")
    return seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of `relief-ray run`, `resume` and `grid`; each command has some of these."""

    strategies: Annotated[SomeText, option("Use these methods instead of the preset's or grid's.", "A,B")] = None
    seeds: Annotated[SomeText, option("Use these seeds instead of seeds or replicates.", "0,1,2|0-4|[0]")] = None
    folds: Annotated[SomeText, option("Use these folds of held-out subjects.", "0,1|0-3|[0]")] = None
    rounds: Annotated[SomeInt, option("Number of rounds of every run.", min=1)] = None
    address: Annotated[SomeText, option("Join this Ray cluster instead of starting one.", "HOST:PORT")] = None
    placement: Annotated[SomeText, option("How clients are placed on nodes.", "auto|typed|virtual")] = None
    mirror: Annotated[SomeText, option("Keep a copy of all records at this URI, e.g. s3://bucket/folder.", "URI")] = (
        None
    )
    budget: Annotated[
        SomeText, option("Time limit: time a round of every method, then run the cells that fit.", "8h")
    ] = None
    dry_run: Annotated[bool, switch("Only show the planned runs, with their time and disk space.", "--dry-run")] = False
    jobs: Annotated[SomeInt, option("Most cells at a time.", "N", min=1)] = None
    """None: as many as there are places."""
    skip_unknown: Annotated[bool, switch("Leave out methods that this version lacks.", "--skip-unknown")] = False
    skip_failed: Annotated[bool, switch("Do not try failed cells again.", "--skip-failed")] = False
    other_code: Annotated[
        bool, switch("Go on although another version of the program began the run; the record says so.", "--other-code")
    ] = False
    rerun_stale: Annotated[
        bool,
        switch(
            "Compute runs of another program version or other weights again; the old ones are set aside.",
            "--rerun-stale",
        ),
    ] = False
    dashboard: Annotated[bool, switch("Open Ray's dashboard with a local cluster.", "--dashboard")] = False
    claims: Annotated[SomePath, option("Claims to judge, at most six (docs/metrics.md).", "FILE.yaml")] = None
    """None: the preset's or grid's own."""
    search: Annotated[
        Literal["optuna"] | None, option("Let Optuna suggest the tries of a search instead of the grid's own list.")
    ] = None
    tries: Annotated[SomeInt, option("Number of suggested tries of every method.", min=1)] = None
    """None: as many as the grid lists."""
    seed: Annotated[SomeInt, option("Seed of the suggestions; default: 0.", min=0)] = None
    scheduler: Annotated[Literal["asha"] | None, option("Stop a search's weak tries early, by validation F1.")] = None
    grace_rounds: Annotated[
        SomeInt,
        option(
            "Rounds that ASHA gives every try; default: a ninth of them, at least a method's warm-up, rounded up "
            "to the next tested round (evaluation.every).",
            "N",
            min=1,
        ),
    ] = None
    reduction_factor: Annotated[
        SomeInt, option("Of so many tries ASHA lets about one go on; default: 3.", "N", min=2)
    ] = None
    as_json: AsJson = False
    began_s: float = field(default_factory=time.monotonic)
    """Monotonic clock at the start of the command."""

    def __post_init__(self) -> None:
        """Before anything is begun, read the budget; before Ray is imported, let it show a cluster's token."""
        self.left_s()
        if self.address:
            use_token(None)

    @property
    def budget_s(self) -> float:
        """Wall time to stay within, counted from ``began_s``; infinite: no limit."""
        return math.inf if self.budget is None else _parse_hours(self.budget)

    def left_s(self) -> float:
        """Seconds of the budget that are left; infinite without one."""
        return self.budget_s - (time.monotonic() - self.began_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeChoice:
    """Options that head and joining nodes of a cluster share; None: the default of this machine."""

    bind: Annotated[
        SomeText, option("Address of this machine for other nodes; default: that of the route to the head.", "ADDRESS")
    ] = None
    ports: Annotated[int, option("First of the 200 ports of this node's services and workers.", "FIRST")] = FIRST_PORT
    num_cpus: Annotated[SomeInt, option("Cores to offer; default: all within the container's quota.", min=0)] = None
    num_gpus: Annotated[SomeInt, option("GPUs to offer; default: those that torch sees.", min=0)] = None
    memory_mib: Annotated[SomeInt, option("MiB for worker processes; default: 80 % of the machine's.", min=64)] = None
    object_store_mib: Annotated[
        SomeInt, option("MiB of shared memory for models; default: 1/8, at most 1024.", min=80)
    ] = None
    token: Token = None
    insecure: Annotated[
        bool, switch("Use no token: everybody who reaches this machine's ports may run programs on it.", "--insecure")
    ] = False
    temp_dir: Annotated[SomePath, option("Ray's sockets and logs; one for each node of a machine.", "DIR")] = None
    print_only: Annotated[bool, switch("Only print the command and its environment.", "--print")] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyQuestion:
    """Options of `relief-ray plan-study`; differences in points of F1."""

    first: Annotated[
        SomeText, option("First method of the pair whose scatter is used; default: a claim's.", "METHOD")
    ] = None
    second: Annotated[SomeText, option("Second method of the pair.", "METHOD")] = None
    figure: Annotated[str, option("Compared figure: f1, f1_rare, f1_own_sensors, ..", "FIGURE")] = "f1"
    sd: Annotated[SomeNumber, option("Standard deviation of paired differences, instead of DIR.", "POINTS")] = None
    pairs: Annotated[int, option("Planned paired runs: folds x replicates.", min=1)] = 48
    difference: Annotated[float, option("The difference to be found, in points.")] = 2.0
    margin: Annotated[
        SomeNumber, option("One-sided: not worse by this many points, where both are equal in truth.")
    ] = None
    setting: Annotated[SomeText, option("Part of the setting's name, of several.", "TEXT")] = None
    claims: Annotated[
        SomeInt, option("Number of claims that Holm corrects for; default: those of DIR, else 6.", min=1, max=6)
    ] = None
    power: Annotated[float, option("Wanted probability of finding it.", min=0.5, max=0.99)] = 0.8
