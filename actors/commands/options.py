"""Options that several commands share, and records of many options: each with its help and default, stated once."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from actors.cluster import FIRST_PORT
from actors.runtime.tokens import use_token
from relief_ray.support.errors import UserError

SomePath = Path | None
SomeText = str | None
SomeNumber = float | None
SomeInt = int | None

Set = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a value, e.g. --set training.epochs=2. Repeatable; `relief-ray config` lists all keys.",
    ),
]
AsJson = Annotated[bool, Option("--json", help="JSON instead of text.")]
Target = Annotated[str, Argument(metavar="[PRESET|FILE|RUN]", help="A preset, a configuration or a run folder.")]
Dataset = Annotated[str, Argument(metavar="NAME", help="A dataset; see `relief-ray data list`.")]
FetchTo = Annotated[SomePath, Option("--out", metavar="DIR", help="Folder for the copy of a URI; default: runs/NAME.")]
OwnCode = Annotated[bool, Option("--own-code", help="Run code that the record names; it gets all your rights.")]
Jobs = Annotated[int, Option(min=1, metavar="N", help="Runs at a time, each in a process; 1: one after the other.")]
Token = Annotated[
    SomePath,
    Option(metavar="FILE", help="The cluster's token; default: RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token."),
]


def _parse_hours(text: str) -> float:
    """Seconds of ``8h``, ``90m`` or ``600s``.

    Raises:
        UserError: anything else.
    """
    factor = {"h": 3600.0, "m": 60.0, "s": 1.0}.get(text[-1:], 0.0)
    try:
        seconds = factor * float(text[:-1])
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UserError(f"--budget {text}: expected a positive time such as 8h, 90m or 600s")
    return seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of `relief-ray run`, `resume` and `grid`; each command has some of these."""

    strategies: Annotated[
        SomeText, Option(metavar="A,B", help="Use these methods instead of the preset's or grid's.")
    ] = None
    seeds: Annotated[
        SomeText, Option(metavar="0,1,2|0-4|[0]", help="Use these seeds instead of seeds or replicates.")
    ] = None
    folds: Annotated[SomeText, Option(metavar="0,1|0-3|[0]", help="Use these folds of held-out subjects.")] = None
    rounds: Annotated[SomeInt, Option(min=1, help="Number of rounds of every run.")] = None
    address: Annotated[SomeText, Option(metavar="HOST:PORT", help="Join this Ray cluster instead of starting one.")] = (
        None
    )
    placement: Annotated[SomeText, Option(metavar="auto|typed|virtual", help="How clients are placed on nodes.")] = None
    mirror: Annotated[
        SomeText, Option(metavar="URI", help="Keep a copy of all records at this URI, e.g. s3://bucket/folder.")
    ] = None
    budget: Annotated[
        SomeText,
        Option(metavar="8h", help="Time limit: time a round of every method, then run the cells that fit."),
    ] = None
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only show the planned runs, with their time and disk space.")
    ] = False
    jobs: Annotated[SomeInt, Option(min=1, metavar="N", help="Most cells at a time.")] = None
    """None: as many as there are places."""
    skip_unknown: Annotated[bool, Option("--skip-unknown", help="Leave out methods that this version lacks.")] = False
    skip_failed: Annotated[bool, Option("--skip-failed", help="Do not try failed cells again.")] = False
    other_code: Annotated[
        bool,
        Option("--other-code", help="Go on although another version of the program began the run; the record says so."),
    ] = False
    rerun_stale: Annotated[
        bool,
        Option(
            "--rerun-stale",
            help="Compute runs of another program version or other weights again; the old ones are set aside.",
        ),
    ] = False
    dashboard: Annotated[bool, Option("--dashboard", help="Open Ray's dashboard with a local cluster.")] = False
    claims: Annotated[SomePath, Option(metavar="FILE.yaml", help="Claims to judge, at most six.")] = None
    """None: the preset's or grid's own."""
    search: Annotated[
        Literal["optuna"] | None,
        Option(help="Let Optuna suggest the tries of a search instead of the grid's own list."),
    ] = None
    tries: Annotated[SomeInt, Option(min=1, help="Number of suggested tries of every method.")] = None
    """None: as many as the grid lists."""
    seed: Annotated[int, Option(min=0, help="Seed of the suggestions.")] = 0
    scheduler: Annotated[Literal["asha"] | None, Option(help="Stop a search's weak tries early, by validation F1.")] = (
        None
    )
    grace_rounds: Annotated[
        SomeInt,
        Option(
            min=1,
            metavar="N",
            help="Rounds that ASHA gives every try; default: a ninth of them, at least a method's warm-up, rounded up "
            "to the next tested round (evaluation.every).",
        ),
    ] = None
    reduction_factor: Annotated[
        SomeInt, Option(min=2, metavar="N", help="Of so many tries ASHA lets about one go on; default: 3.")
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
        SomeText,
        Option(
            metavar="ADDRESS", help="Address of this machine for other nodes; default: that of the route to the head."
        ),
    ] = None
    ports: Annotated[
        int, Option(metavar="FIRST", help="First of the 200 ports of this node's services and workers.")
    ] = FIRST_PORT
    num_cpus: Annotated[SomeInt, Option(min=0, help="Cores to offer; default: all within the container's quota.")] = (
        None
    )
    num_gpus: Annotated[SomeInt, Option(min=0, help="GPUs to offer; default: those that torch sees.")] = None
    memory_mib: Annotated[SomeInt, Option(min=64, help="MiB for worker processes; default: 80 % of the machine's.")] = (
        None
    )
    object_store_mib: Annotated[
        SomeInt, Option(min=80, help="MiB of shared memory for models; default: 1/8, at most 1024.")
    ] = None
    token: Token = None
    insecure: Annotated[
        bool,
        Option("--insecure", help="Use no token: everybody who reaches this machine's ports may run programs on it."),
    ] = False
    temp_dir: Annotated[
        SomePath, Option(metavar="DIR", help="Ray's sockets and logs; one for each node of a machine.")
    ] = None
    print_only: Annotated[bool, Option("--print", help="Only print the command and its environment.")] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyQuestion:
    """Options of `relief-ray plan-study`; differences in points of F1."""

    first: Annotated[
        SomeText,
        Option(metavar="METHOD", help="First method of the pair whose scatter is used; default: a claim's."),
    ] = None
    second: Annotated[SomeText, Option(metavar="METHOD", help="Second method of the pair.")] = None
    figure: Annotated[str, Option(metavar="FIGURE", help="Compared figure: f1, f1_rare, f1_own_sensors, ..")] = "f1"
    sd: Annotated[
        SomeNumber, Option(metavar="POINTS", help="Standard deviation of paired differences, instead of DIR.")
    ] = None
    pairs: Annotated[int, Option(min=1, help="Planned paired runs: folds x replicates.")] = 48
    difference: Annotated[float, Option(help="The difference to be found, in points.")] = 2.0
    margin: Annotated[
        SomeNumber, Option(help="One-sided: not worse by this many points, where both are equal in truth.")
    ] = None
    setting: Annotated[SomeText, Option(metavar="TEXT", help="Part of the setting's name, of several.")] = None
    claims: Annotated[
        int | None,
        Option(min=1, max=6, help="Number of claims that Holm corrects for; default: those of DIR, else 6."),
    ] = None
    power: Annotated[float, Option(min=0.5, max=0.99, help="Wanted probability of finding it.")] = 0.8
