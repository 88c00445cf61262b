"""The command line `relief-ray`. Nothing heavy is imported before a command has been chosen."""

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from actors.cli.groups import cluster, data, device, fleet, model
from actors.cli.options import app, runs
from actors.commands.options import (
    FetchTo,
    Jobs,
    Options,
    Set,
    SomePath,
    SomeText,
    StudyQuestion,
    argument,
    option,
    switch,
)
from actors.runtime.tokens import use_token
from actors.terminal.signals import end_on_signals
from relief_ray.studies.presets import PRESETS

# The commands `relief-ray grid MODULE|FILE.py`, `grid resume`, `grid status` and `grid freeze`.


class _Starting(TyperGroup):
    """Takes the name of a grid where a verb could stand: `grid smoke` is `grid start smoke`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the verb before a grid's name."""
        is_verb = not args or args[0] in {*self.commands, *ctx.help_option_names}
        return super().parse_args(ctx, args if is_verb else ["start", *args])


grid = typer.Typer(
    name="grid",
    cls=_Starting,
    help="""Run many cells through Ray Tune: a table or figure of the paper, a search, or a grid FILE.py of your own.

    `relief-ray grid smoke` starts the grid `smoke`; `relief-ray grid smoke --help` has its options. Grids: main_cnn,
    main_lora, ablation, sensitivity, diagnostics, testbed, coupling, dsa_study, frontier, frontier_mean,
    frontier_rates, frontier_sgd, frontier_test, plus_pilot, plus, plus_parts, plus_elsewhere, search_lr, search_sgd,
    search_optimizer, smoke.
    """,
    no_args_is_help=True,
)

GridFolder = Annotated[Path, argument("The grid's folder, e.g. runs/grid-smoke.", "DIR")]


@runs(grid, "start", "run:start_grid", without=("placement", "other_code"))
def grid_start(
    target: Annotated[str, argument("A grid by name, or a file of your own.", "MODULE|FILE.py")],
    options: Options,
    settings: Set = None,
    out: Annotated[SomePath, option("Folder for the cells; default: runs/grid-MODULE.", "DIR")] = None,
) -> None:
    """Run a grid cell by cell; `grid start` may be left out: `relief-ray grid smoke`.

    `--set` scales it (`replicates=12`, `datasets=dsa`, `'methods=[fedavg, my_method:Mine]'`, `rounds=20`) and changes
    any value of a cell. Methods, data sets and backbones may be your own, by import path.
    """


@runs(
    grid,
    "resume",
    "run:resume_grid",
    "address",
    "budget",
    "dry_run",
    "jobs",
    "skip_failed",
    "rerun_stale",
    "dashboard",
    "as_json",
    own_code=True,
)
def grid_resume(
    target: Annotated[str, argument("The grid's folder, or its mirror.", "DIR|URI")],
    options: Options,
    settings: Set = None,
    out: FetchTo = None,
) -> None:
    """Run the missing cells of a grid; `--set` may change only runtime.* and tracking.*.

    For a URI, the copy made by `--mirror` is first fetched to a folder.
    """


@runs(grid, "status", "run:show_status", own_code=True)
def grid_status(folder: GridFolder) -> None:
    """List every cell with its status."""


@runs(grid, "freeze", "run:freeze_choices", own_code=True)
def grid_freeze(
    folder: GridFolder, out: Annotated[SomePath, option("Default: results/tuned.json.", "FILE")] = None
) -> None:
    """Write every method's best try of a search, by validation F1, for `--set tuned=FILE`."""


_PRESET_HELP = "**Presets**\n\n" + "\n".join(f"* {name}: {title}" for name, title in PRESETS.items())
Folders = Annotated[list[Path], argument("Run folders, or folders of them.", "DIR...")]

for group in (device, fleet, model, data, grid, cluster):
    app.add_typer(group)


def _show_version(is_wanted: bool) -> None:
    """Print the version and end."""
    if is_wanted:
        from relief_ray import __version__

        print(f"relief-ray {__version__}")
        raise typer.Exit


@app.callback()
def prepare(
    version: Annotated[
        bool, option("Show the version.", None, "--version", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Keep other libraries' chatter off the console."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    logging.addLevelName(logging.WARNING, "warning")
    logging.addLevelName(logging.ERROR, "error")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)


@runs(
    app,
    "run",
    "run:run_command",
    "strategies",
    "seeds",
    "folds",
    "rounds",
    "address",
    "placement",
    "mirror",
    "dry_run",
    "rerun_stale",
    "dashboard",
    "claims",
    "as_json",
    epilog=_PRESET_HELP,
)
def run(
    target: Annotated[str, argument("A preset, or a configuration file.", "PRESET|FILE.yaml")],
    options: Options,
    settings: Set = None,
    out: Annotated[SomePath, option("Folder for the runs; default: runs/PRESET, or runs/PRESET-2, ..", "DIR")] = None,
    jobs: Jobs = 1,
) -> None:
    """Train: one run per strategy, fold and replicate or seed, then a table, a figure and a verdict."""


@runs(app, "resume", "run:resume_command", "other_code", "rerun_stale", "dashboard", "as_json", own_code=True)
def resume(
    target: Annotated[str, argument("A run folder, a folder of them, or a mirror.", "DIR|URI")],
    options: Options,
    settings: Set = None,
    out: FetchTo = None,
    jobs: Jobs = 1,
) -> None:
    """Continue runs that were stopped or killed, with the same bits as without the break.

    For a URI, the copy made by `--mirror` is first fetched to a folder. `--set` may change only runtime.* and
    tracking.*.
    """


@runs(app, "compare", "results:compare_command")
def compare(
    folders: Folders,
    out: Annotated[SomePath, option("Write table and figures there.", "DIR")] = None,
    bibtex: Annotated[bool, switch("Print references of the methods instead.", "--bibtex")] = False,
    wide: Annotated[bool, switch("Show all columns.", "--wide")] = False,
    legend: Annotated[bool, switch("Also say what the headings mean.", "--legend")] = False,
    setting: Annotated[SomeText, option("Part of a setting's name, if committed results hold several.", "TEXT")] = None,
) -> None:
    """Put runs side by side: F1, time, energy, bytes, differences with intervals, verdicts on claims named before."""


@runs(app, "report", "results:report_command")
def report(
    folders: Annotated[list[Path], argument("Folders of runs or grids.", "DIR...")],
    out: Annotated[
        SomePath,
        option("Folder for the report. Default: DIR/report; of several ./report-A-B; of committed ./report.", "DIR"),
    ] = None,
    commit: Annotated[
        SomePath, option("Also write DIR/cells.json: results small enough for a repository.", "DIR")
    ] = None,
    title: Annotated[SomeText, option("Title of the committed results. Default: the grids' titles.", "TEXT")] = None,
) -> None:
    """Write a report of finished runs: tables and figures as one HTML page, Markdown, LaTeX, CSV, PDF, PNG.

    Cells that failed, are missing or were computed by another program are shown as such.
    """


@runs(app, "ls", "results:list_command")
def list_results(folder: Annotated[Path, argument("A folder of results.", "[DIR]")] = Path("runs")) -> None:
    """List the folders of runs below DIR, newest first: their progress, each method's F1, differing settings."""


@runs(app, "plan-study", "study:plan_study_command")
def plan_study(
    question: StudyQuestion,
    folders: Annotated[list[Path] | None, argument("Finished runs whose scatter is used.", "[DIR]...")] = None,
) -> None:
    """Say how many paired runs are needed to find a difference, and what a planned number can find."""


@runs(app, "reproduce", "model:reproduce_command", own_code=True)
def reproduce(
    target: Annotated[str, argument("A committed file or folder, and a cell of it.", "RESULTS#CELL")],
    out: Annotated[SomePath, option("Keep the rerun there.", "DIR")] = None,
    tolerance: Annotated[float, option("Points of F1 that may differ in an evaluated round.")] = 1.0,
) -> None:
    """Compute a committed cell again and compare: equal bits, within tolerance, or different (exit code 6)."""


@runs(app, "explain", "config:explain_command", own_code=True)
def explain(
    run: Annotated[Path, argument("A run folder.", "RUN")],
    round_: Annotated[int, option("The round.", None, "--round")],
    client: Annotated[int, option("The client's number.")],
) -> None:
    """Explain why a client trained its groups: deadline, budget, ranking, cut-off."""


@runs(app, "strategies", "conformance:strategies_command")
def strategies(bibtex: Annotated[bool, switch("Print references instead.", "--bibtex")] = False) -> None:
    """List the methods that can be compared."""


@runs(app, "config", "config:config_command", own_code=True)
def config(
    target: Annotated[
        SomeText, argument("Show the values of this; else the defaults.", "[PRESET|FILE|RUN|MODULE:NAME]")
    ] = None,
    key: Annotated[SomeText, argument("A key, a section or a method.", "[KEY]")] = None,
) -> None:
    """List every configuration key with its type, default, value and meaning: `config`, `config demo training`."""


@runs(app, "conformance", "conformance:conformance_command")
def conformance(
    target: Annotated[SomeText, argument("A name, my.module:MyMethod, :MyNet or :MY_DATA.", "[TARGET]")] = None,
    settings: Set = None,
    address: Annotated[SomeText, option("Instead of TARGET: judge the nodes of this cluster.", "HOST:PORT")] = None,
    ray: Annotated[bool, switch("Also compare with a run on Ray.", "--ray/--no-ray")] = True,
    equals: Annotated[str, option("Only check that its rounds equal METHOD's.", "METHOD")] = "",
    within: Annotated[float, option("With --equals: largest allowed difference of a value.")] = 0.0,
) -> None:
    """Check the rules that every method, backbone or dataset must keep, and name broken ones.

    With --address: check that every node of a cluster reproduces reference numbers, to the bit on equal processors.
    """
    if address:
        # Ray reads the variables once, when it is imported.
        use_token(None)


@runs(app, "new", "config:new_command")
def new(
    kind: Annotated[Literal["method", "dataset", "backbone", "grid"], argument("What to write.")],
    name: Annotated[str, argument("Name of the file, e.g. my_method.", "NAME")],
    out: Annotated[Path, option("Folder for the file and its tests.", "DIR")] = Path(),
) -> None:
    """Write a short working file with tests, to start a method, data set, backbone or grid of your own."""


@runs(app, "sync", "results:sync_command")
def sync(
    folders: Folders, uri: Annotated[SomeText, option("An MLflow store; by default the run's own.")] = None
) -> None:
    """Send these runs' missing points to an MLflow store; each point arrives once."""


def main() -> None:
    """The entry point."""
    # Ray prints last words of its nodes on stdout, between the lines of `--json`, unless this is set before its import.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    end_on_signals()
    app(prog_name="relief-ray")


if __name__ == "__main__":
    main()
