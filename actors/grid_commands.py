"""The commands `relief-ray grid MODULE|FILE.py`, `grid resume`, `grid status` and `grid freeze`."""

from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import typer
from typer.core import TyperGroup

from actors.cli.options import (
    Address,
    AsJson,
    Dashboard,
    DryRun,
    FetchTo,
    Folds,
    Mirror,
    RerunStale,
    Rounds,
    Seeds,
    Settings,
    SomeInt,
    SomePath,
    SomeText,
    Strategies,
)


class _Starting(TyperGroup):
    """Takes the name of a grid where a verb could stand: `grid smoke` is `grid start smoke`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the verb before a grid's name."""
        is_verb = not args or args[0] in {*self.commands, *ctx.help_option_names}
        return super().parse_args(ctx, args if is_verb else ["start", *args])


grid = typer.Typer(
    cls=_Starting,
    help="""Run many cells through Ray Tune: a table or figure of the paper, a search, or a grid FILE.py of your own.

    `relief-ray grid smoke` starts the grid `smoke`; `relief-ray grid smoke --help` has its options. Grids: main_cnn,
    main_lora, ablation, sensitivity, diagnostics, testbed, coupling, dsa_study, frontier, frontier_mean,
    frontier_rates, frontier_sgd, frontier_test, search_lr, search_sgd, search_optimizer, smoke.
    """,
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The grid's folder, e.g. runs/grid-smoke.")]
Budget = Annotated[SomeText, typer.Option(metavar="8h", help="Time a round of every method, run what fits.")]
SkipFailed = Annotated[bool, typer.Option("--skip-failed", help="Do not try failed cells again.")]
AtATime = Annotated[SomeInt, typer.Option("--jobs", min=1, metavar="N", help="Most cells at a time.")]


SkipUnknown = Annotated[bool, typer.Option("--skip-unknown", help="Leave out methods not built yet.")]
Claims = Annotated[SomePath, typer.Option(metavar="FILE.yaml", help="Claims to judge, at most six.")]
Search = Annotated[
    Optional[Literal["optuna"]],  # noqa: UP045
    typer.Option(help="Let it suggest the tries of a search, instead of the grid's own list."),
]
Tries = Annotated[SomeInt, typer.Option(min=1, help="Tries of every method that are suggested.")]
SearchSeed = Annotated[int, typer.Option(min=0, help="Seed of what suggests tries.")]
Scheduler = Annotated[
    Optional[Literal["asha"]],  # noqa: UP045
    typer.Option(help="Stop a search's weak tries early, by validation F1."),
]
GraceRounds = Annotated[
    SomeInt,
    typer.Option(
        min=1,
        metavar="N",
        help="Rounds that ASHA gives every try; by default a ninth of them and a method's warm-up, up to the next "
        "round that is tested (evaluation.every).",
    ),
]
ReductionFactor = Annotated[
    SomeInt, typer.Option(min=2, metavar="N", help="Of so many tries ASHA lets about one go on; by default 3.")
]


@grid.command("start")
def grid_start(
    target: Annotated[str, typer.Argument(metavar="MODULE|FILE.py", help="A grid by name, or a file of your own.")],
    settings: Settings = None,
    out: Annotated[SomePath, typer.Option(metavar="DIR", help="For the cells; by default runs/grid-MODULE.")] = None,
    strategies: Strategies = None, seeds: Seeds = None, folds: Folds = None, rounds: Rounds = None,
    dry_run: DryRun = False,
    budget: Budget = None,
    jobs: AtATime = None,
    skip_unknown: SkipUnknown = False, skip_failed: SkipFailed = False, rerun_stale: RerunStale = False,
    address: Address = None,
    dashboard: Dashboard = False,
    claims: Claims = None,
    search: Search = None,
    tries: Tries = None,
    seed: SearchSeed = 0,
    scheduler: Scheduler = None,
    grace_rounds: GraceRounds = None,
    reduction_factor: ReductionFactor = None,
    mirror: Mirror = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Run a grid cell by cell; `grid start` may be left out: `relief-ray grid smoke`.

    `--set` scales it (`replicates=12`, `datasets=dsa`, `'methods=[fedavg, my_method:Mine]'`, `rounds=20`) and changes
    any value of a cell. Methods, data sets and backbones may be your own, by import path.
    """
    settings = [*_axes(settings or [], strategies, seeds, folds, rounds), *(settings or [])]
    _check_quickly(target, settings)
    _refuse_unread(search, "--search optuna", {"--tries": tries})
    numbers = {"--grace-rounds": grace_rounds, "--reduction-factor": reduction_factor}
    _refuse_unread(scheduler, "--scheduler asha", numbers)
    from actors.commands.fetching import with_mirror
    from actors.commands.grid import GridOptions, start_grid

    options = GridOptions(
        as_json=as_json, dry_run=dry_run, budget_s=_seconds(budget), jobs=jobs, rerun_stale=rerun_stale,
        skip_failed=skip_failed, skip_unknown=skip_unknown, dashboard=dashboard, claims=claims, search=search,
        tries=tries, seed=seed, scheduler=scheduler, grace_rounds=grace_rounds, reduction_factor=reduction_factor,
    )  # fmt: skip
    start_grid(target, with_mirror(_with_address(settings, address), mirror), out, options)


def _axes(
    settings: list[str], strategies: str | None, seeds: str | None, folds: str | None, rounds: int | None
) -> list[str]:
    """Options that `run` has too, as settings of a grid's axes.

    Raises:
        UserError: a list that is none, or an axis that `--set` chooses too.
    """
    if strategies is None and seeds is None and folds is None and rounds is None:
        return []
    from relief_ray.studies.axes import parse_axes
    from relief_ray.support.errors import UserError

    axes = parse_axes(strategies, seeds, folds, rounds)
    chosen = {"methods": axes.strategies, "seeds": axes.seeds, "folds": axes.folds}
    made = {key: f"[{', '.join(map(str, values))}]" for key, values in chosen.items() if values is not None}
    made |= {} if rounds is None else {"rounds": str(rounds)}
    for key, setting in ((key, s) for key in made for s in settings if s.partition("=")[0] == key):
        option = "strategies" if key == "methods" else key
        raise UserError(f"--{option} and --set {setting}: choose the same; leave one of them out")
    return [f"{key}={value}" for key, value in made.items()]


def _check_quickly(target: str, settings: list[str]) -> None:
    """Refuse values that no built-in method or backbone takes, before the library is loaded."""
    from relief_ray.config.keys import refuse_wrong_values

    if not target.endswith(".py") and not any(":" in setting for setting in settings):
        refuse_wrong_values(settings, own=())


def _refuse_unread(chosen: str | None, reader: str, numbers: dict[str, int | None]) -> None:
    """Refuse options that only ``reader`` reads where it was not ``chosen``.

    Raises:
        UserError: one was given.
    """
    from relief_ray.support.errors import UserError

    for option, number in numbers.items() if chosen is None else ():
        if number is not None:
            raise UserError(f"{option} {number}: is read by {reader} alone; name it too, or leave {option} out")


def _seconds(budget: str | None) -> float | None:
    """Seconds of a budget; None without one."""
    from actors.grids.estimate import parse_hours

    return None if budget is None else parse_hours(budget)


@grid.command("resume")
def grid_resume(
    target: Annotated[str, typer.Argument(metavar="DIR|URI", help="The grid's folder, or its mirror.")],
    settings: Settings = None,
    out: FetchTo = None,
    dry_run: DryRun = False,
    budget: Budget = None,
    jobs: AtATime = None,
    skip_failed: SkipFailed = False,
    rerun_stale: RerunStale = False,
    address: Address = None,
    dashboard: Dashboard = False,
    as_json: AsJson = False,
) -> None:
    """Run exactly what is missing of a grid; `--set` may change runtime.* and tracking.* only.

    From a URI, the copy that `--mirror` made is first brought to a folder.
    """
    from actors.commands.grid import GridOptions, resume_grid
    from actors.grids.estimate import parse_hours

    options = GridOptions(
        as_json=as_json, dry_run=dry_run, budget_s=None if budget is None else parse_hours(budget), jobs=jobs,
        rerun_stale=rerun_stale, skip_failed=skip_failed, dashboard=dashboard,
    )  # fmt: skip
    resume_grid(target, _with_address(settings, address), out, options)


@grid.command("status")
def grid_status(folder: Folder, as_json: AsJson = False) -> None:
    """List every cell with its status."""
    from actors.commands.grid import show_status

    show_status(folder, as_json)


@grid.command("freeze")
def grid_freeze(
    folder: Folder,
    out: Annotated[SomePath, typer.Option(metavar="FILE", help="Default: results/tuned.json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write every method's best try of a search, by validation F1, for `--set tuned=FILE`."""
    from actors.commands.grid import freeze_choices

    freeze_choices(folder, out, as_json)


def _with_address(settings: list[str] | None, address: str | None) -> list[str]:
    """The settings and the cluster."""
    return [*(settings or []), *([] if address is None else [f"runtime.address={address}"])]
