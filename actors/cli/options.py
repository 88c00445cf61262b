"""What every command has: output that is safe to print, options from records, errors as exit codes."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from io import TextIOWrapper
from itertools import pairwise
from typing import Any, Final, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from actors.commands.options import AsJson, OwnCode
from actors.terminal.exit_codes import EXIT_CODES, INTERRUPTED, Result, report, say
from actors.terminal.signals import interrupted, leave_at_once
from relief_ray.support.errors import clipped
from relief_ray.support.masking import mask_logs

# Makes output safe to print: characters that a terminal has, streams that are open.


def prepare_streams() -> None:
    """Let every text be printed: with ``?`` for what an encoding lacks, and nowhere where a stream was closed."""
    _open_closed()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape", "backslashreplace"):
            stream.reconfigure(errors="replace")


def _open_closed() -> None:
    """Open the null device where one of the three standard streams is closed.

    Otherwise the next file that is opened takes its number, and what libraries print is written into that file.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets this number: it is the lowest that is free


def _read_settings(words: Sequence[str]) -> object:
    experiment = import_module("relief_ray.config.experiment")
    settings = experiment.read_settings(words)
    if text := experiment.read_as(settings):
        say(f"NOTE: read as {clipped(text)}")
    return settings


def runs(
    group: typer.Typer,
    name: str,
    target: str,
    *names: str,
    without: Collection[str] = (),
    json: bool = True,
    own_code: bool = False,
    epilog: str | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a group, called ``name``, that carries out ``target``.

    The target is ``module:function`` of ``actors.commands``, imported when the command is called. What the command
    itself does comes first. The function gets the command's values by name, but for `--json`:
    settings read, an empty list where none was given. What it returns or yields (``Result``) is printed. A record among
    the command's parameters is a dataclass, of which the named fields, by default all that are ``Annotated`` but those
    ``without``, are options; the function gets one with what was chosen.

    ``json``: it has `--json`; ``own_code``: it has `--own-code`, without which no code that a record names is run.
    """
    module, _, function = target.partition(":")

    def running(command: Callable[..., None]) -> Callable[..., None]:
        kinds: dict[str, Any] = get_type_hints(command, include_extras=True)
        records: dict[str, Any] = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}
        parameters = [p for p in inspect.signature(command).parameters.values() if p.name not in records]
        if own_code:
            parameters.append(_option("own_code", OwnCode))
        chosen: dict[str, list[str]] = {}
        for place, record in records.items():
            declared = get_type_hints(record, include_extras=True)
            wanted = [
                f
                for f in fields(record)
                if f.name not in without
                and (not names or f.name in names)
                and hasattr(declared[f.name], "__metadata__")
            ]
            chosen[place] = [f.name for f in wanted]
            parameters += [_option(f.name, declared[f.name], f.default) for f in wanted]
        if json and not any("as_json" in options for options in chosen.values()):
            parameters.append(_option("as_json", AsJson))

        def called(**values: Any) -> None:
            as_json = values.get("as_json", False)
            values |= {name: values[name] or () for name in lists}
            if values.get("settings"):  # for none the library is not loaded
                values["settings"] = _read_settings(values["settings"])
            for place, options in chosen.items():
                values[place] = records[place](**{name: values.pop(name) for name in options})
            values.pop("as_json", None)
            may_run = values.pop("own_code", None)
            command(**values)
            if may_run is not None:
                import_module("relief_ray.plugins.load").OWN_CODE.set(may_run)
            with import_module("relief_ray.plugins.blame").staying():
                made = getattr(import_module(f"actors.commands.{module}"), function)(**values)
                for result in [made] if isinstance(made, Result) else made or ():
                    result.show(as_json=as_json)

        called.__doc__ = command.__doc__
        called.__annotations__ = kinds | {parameter.name: parameter.annotation for parameter in parameters}
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        taken = get_type_hints(called)
        accepted = {p.name: get_args(taken[p.name]) or (taken[p.name],) for p in parameters}
        lists = [name for name, some in accepted.items() if any(get_origin(kind) is list for kind in some)]
        numbers = {name: _NUMBERS[kind] for name, some in accepted.items() for kind in _NUMBERS if kind in some}
        return group.command(name, cls=_strict(numbers), epilog=epilog)(called)

    return running


# Numbers as `--set` reads them: Python's own reading takes ``1_0``, blanks around and digits of any script.
_NUMBERS: Final = {
    int: (re.compile(r"[-+]?[0-9]+"), "expected a whole number"),
    float: (re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?", re.IGNORECASE), "expected a number"),
}


def _strict(numbers: Mapping[str, tuple[re.Pattern[str], str]]) -> type[TyperCommand]:
    """The class of a command that takes only plain numbers for these parameters."""

    class Strict(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            """Look at the words before they are read."""
            words = args[: args.index("--")] if "--" in args else args
            split = [word.partition("=")[::2] for word in words if word.startswith("--") and "=" in word]
            for parameter in self.params:
                for option, value in [*pairwise(words), *split] if parameter.name in numbers else ():
                    form, expected = numbers[parameter.name]
                    if option in parameter.opts and not form.fullmatch(value):
                        raise typer.BadParameter(expected, ctx=ctx, param_hint=f"'{option}'")
            return super().parse_args(ctx, args)

    return Strict


def _option(name: str, annotation: object, default: object = False) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


# Errors as exit codes.


class Main(TyperGroup):
    """Turns whatever a command raises into one block on stderr and a documented exit code."""

    def invoke(self, ctx: Any) -> object:
        """Typer ends with code 1 where the reader of a pipe has gone; that is no internal error."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise typer.Exit(report(error)) from None

    def main(self, *args: object, **kwargs: Any) -> None:
        """Run a command and exit."""
        kwargs["standalone_mode"] = False
        prepare_streams()
        mask_logs()
        try:
            code = super().main(*args, **kwargs)  # type: ignore[arg-type]
            if code == INTERRUPTED:  # Typer's own word for it
                code = interrupted()
        except typer.Abort:
            code = interrupted()
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and "_RELIEF_RAY_COMPLETE" in os.environ:
                raise  # Click's own end of a completion
            code = _usage(error, list(kwargs.get("args") or sys.argv[1:])) or report(error)
        leave_at_once(code)
        sys.exit(code if isinstance(code, int) else 0)


def _usage(error: BaseException, words: list[str]) -> int:
    """Report a wrong option or argument of the command line ``words``; 0 where the error is of another kind.

    Typer has had several classes for these, with this shape in common.
    """
    message = getattr(error, "format_message", None)
    if message is None:
        return 0
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "relief-ray"
    if text := message():
        say(f"error: {_in_words(text, words)}\n       See {command} --help")
    return int(getattr(error, "exit_code", 2))


# Names that other tools or the Python API have for a command, and the command.
_MEANT = {
    "baselines": "strategies",
    "datasets": "data",
    "methods": "strategies",
    "search": "grid search_lr",
    "settings": "config",
    "study": "run",
    "train": "run",
    "tune": "grid search_lr",
}


def _misplaced(word: str, words: list[str]) -> str:
    """Message on a word behind an option and its value, as in ``--strategies fedavg relief``; empty elsewhere."""
    for option, value, last in zip(words, words[1:], words[2:], strict=False):
        if last == word and option.startswith("--") and "=" not in option:
            sign = "," if option != "--set" else "=" if "=" not in value else "" if value.endswith("=") else " "
            meant = shlex.quote(f"{value}{sign}{word}")
            return f"{option} {value} {word}: found a blank, expected one word; write {option} {meant}"
    return ""


def _in_words(text: str, words: list[str]) -> str:
    """A library's message with the command that is meant, or the value that was found: ``--rounds 0: expected ..``."""
    unknown = re.match(r"No such command '(\w+)'", text)
    if unknown is not None and (meant := _MEANT.get(unknown[1])):
        return f"No such command '{unknown[1]}'. Did you mean '{meant}'?"
    extra = re.match(r"Got unexpected extra arguments?(?:\(s\))? \((\S+?)[\s)]", text)
    if extra is not None:
        return _misplaced(extra[1], words) or text
    match = re.fullmatch(r"Invalid value for '(-[\w-]+)[^']*': (.*)", text, flags=re.DOTALL)
    if match is None:
        return text
    option, why = match[1], match[2].replace("Value error, ", "").replace("Input should be", "expected a value")
    behind = [b for a, b in pairwise(words) if a == option] + [w.partition("=")[2] for w in words if f"{option}=" in w]
    return f"{option} {clipped(behind[-1])}: {why}" if behind else f"{option}: {why}"


_EPILOG = "**Exit codes**\n\n" + "\n".join(f"* {code}: {meaning}" for code, meaning in EXIT_CODES)
app = typer.Typer(
    cls=Main,
    name="relief-ray",
    help="Federated learning for fleets whose devices differ in compute, sensors and data at once.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
