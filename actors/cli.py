"""The command line `relief-ray`. Nothing heavy is imported before a command has been chosen."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Annotated, Optional

import typer
from typer.core import TyperGroup

from actors.exits import EXIT_CODES, INTERRUPTED, report, say
from tune_configs.presets import PRESETS

EPILOG = "Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES) + "."
PRESET_HELP = "\n\n".join(["Presets:", *(f"* {name}: {make().title}" for name, make in PRESETS.items())])

Settings = Annotated[
    Optional[list[str]],  # noqa: UP007, UP045 - read at run time by typer
    typer.Option("--set", metavar="PATH=VALUE", help="Change one value, e.g. --set training.epochs=2. Repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]


class Main(TyperGroup):
    """Turns whatever a command raises into one block on stderr and a documented exit code."""

    def main(self, *args: object, **kwargs: object) -> None:
        """Runs a command and exits."""
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)  # type: ignore[arg-type]
        except typer.Abort:
            code = INTERRUPTED
        except Exception as error:
            code = usage(error) or report(error)
        sys.exit(code if isinstance(code, int) else 0)


def usage(error: Exception) -> int:
    """Reports a wrong option or argument; 0 where the error is of another kind.

    Typer has had several classes for these, with this shape in common.
    """
    message = getattr(error, "format_message", None)
    if message is None:
        return 0
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "relief-ray"
    say(f"error: {message()}\n       See {command} --help")
    return int(getattr(error, "exit_code", 2))


app = typer.Typer(
    cls=Main,
    name="relief-ray",
    help="Federated learning for fleets whose devices differ in compute, sensors and data at once.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback()
def prepare() -> None:
    """Keeps other libraries' chatter off the console."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    logging.addLevelName(logging.WARNING, "warning")


@app.command(epilog=PRESET_HELP)
def run(
    target: Annotated[str, typer.Argument(metavar="PRESET|FILE.yaml", help="What to run.")],
    settings: Settings = None,
    out: Annotated[Optional[Path], typer.Option(help="Folder for the run folders. [default: runs/PRESET]")] = None,  # noqa: UP045
    strategies: Annotated[Optional[str], typer.Option(metavar="A,B", help="Run these instead of the preset's.")] = None,  # noqa: UP045
    as_json: AsJson = False,
) -> None:
    """Train: one run per strategy, fold and seed, then a table, a figure and a verdict."""
    from actors.commands.run import run as carry_out

    carry_out(target, settings or [], strategies, out, as_json)


@app.command()
def resume(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder, or a folder of them.")], as_json: AsJson = False) -> None:
    """Go on where a run, or a whole preset, was stopped or killed: the same bits as without the break."""
    from actors.commands.run import resume as go_on

    go_on(folder, as_json)


def main() -> None:
    """The entry point."""
    app()


if __name__ == "__main__":
    main()
