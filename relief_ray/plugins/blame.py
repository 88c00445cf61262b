"""Attributes errors to users' code, and finds the file, line and function for the message."""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType
from typing import NoReturn, TypeVar

from relief_ray.support.errors import ClientFailed, UserCodeError, UserCodeFailed, UserError, listed, plain, shown

PROJECT = ("relief_ray", "actors", "tune_configs")
INSTALLED = frozenset({"site-packages", "dist-packages"})
# Top modules of the import paths of methods, backbones and data that this process works with.
_CONFIGURED: set[str] = set()
# Variables of the environment that users' code has changed here while it was loaded, as they were before.
_CHANGED: dict[str, str | None] = {}
# Last line of a file that is made of parts of another one, which it names.
COPY_OF = "# Copied from "
# Files that this process imports as copies, by path, and where the user has each: there it is to be mended.
_ORIGINALS: dict[str, str] = {}
_PYTHON = frozenset(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
# Characters of an error's message that are shown.
_LONGEST = 2000
_NOT_OURS = "That file is not relief-ray's: mend it there"
INTACT = "; what was recorded before it is intact"
# Beginning of pydantic's message on a field without an annotation: a new one, or one of a base class.
_UNTYPED = re.compile(r"(?:A non-annotated attribute was detected: `|Field '(?=.* by a non-annotated))(\w+)")
T = TypeVar("T")
AnyFunction = Callable[..., object]


class ContractViolated(UserCodeFailed):
    """Raised if a user's function returned an invalid value; ``rule`` is the rule of `relief-ray conformance`."""

    rule: str = ""


def take_as_users(modules: Iterable[str]) -> None:
    """Count the files of these modules' packages as a user's from now on, also where pip has installed them."""
    _CONFIGURED.update(module.partition(".")[0] for module in modules)


def has_users_code() -> bool:
    """Whether this process works with users' code, which may have changed anything of it."""
    return bool(_CONFIGURED)


@contextmanager
def loading() -> Iterator[None]:
    """Block in which users' code is loaded; its changes of environment and folder affect only this process.

    The folder is that of before the block, after it; variables stay, and ``unchanged`` leaves them out.
    """
    before, folder = dict(os.environ), os.getcwd()
    try:
        yield
    finally:
        os.chdir(folder)
        for name in before.keys() | os.environ.keys():
            if before.get(name) != os.environ.get(name):
                _CHANGED.setdefault(name, before.get(name))


@contextmanager
def staying() -> Iterator[None]:
    """Turn ``os._exit`` of others than this project into an error: it would end the command without a message."""
    ends, process = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        caller = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
        if os.getpid() != process or caller in PROJECT:  # a child that was forked
            ends(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = ends


@contextmanager
def unchanged() -> Iterator[None]:
    """Inside the block the environment is as if no user's code had been loaded: for processes that are started."""
    now = {name: os.environ.get(name) for name in _CHANGED}
    _set_variables(_CHANGED)
    try:
        yield
    finally:
        _set_variables(now)


def _set_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def take_as_copies(originals: Mapping[str, str]) -> None:
    """Name other files for these from now on: a copy's path, and the path of the user's own file."""
    _ORIGINALS.update(originals)


def original(file: str) -> str:
    """Path of the user's own file where ``file`` is a copy that this process imports, else itself.

    A part of a script says in its last line where it is from (``plugins.parts``).
    """
    last = linecache.getlines(file)[-1:] if Path(file).name.startswith("script_") else []
    part_of = last[0].removeprefix(COPY_OF).strip() if last and last[0].startswith(COPY_OF) else ""
    return part_of or _ORIGINALS.get(file, file)


def blamed(error: BaseException, where: str = "") -> UserCodeFailed | None:
    """The error as the user's, where a user's file raised it or called what raised it; None where none did.

    ``where`` begins the message. It says what was raised, then file, line and function.
    """
    if isinstance(error, UserCodeFailed):
        return error
    cause = error.__cause__ if isinstance(error, ClientFailed) and error.__cause__ is not None else error
    place = user_line(cause)
    if place is None:
        return None
    head = where or (text_of(error).partition(f"{type(cause).__name__}: ")[0] if cause is not error else "")
    return UserCodeFailed(
        f"{head}{type(cause).__name__}: {text_of(cause)} ({place})\n{_NOT_OURS}. "
        "What was recorded before it is intact; `relief-ray resume DIR --other-code` goes on with the mended file"
    )


@contextmanager
def naming_users_code() -> Iterator[None]:
    """Raise an error of a user's own file, on the server too, as ``UserCodeFailed``.

    Raises:
        UserCodeFailed: function, file and line of such an error.
    """
    from relief_ray.core.federated import RoundVoid  # loads torch, for which the command line's help does not wait

    try:
        yield
    except (UserError, RoundVoid, FloatingPointError):
        raise
    except Exception as error:
        theirs = blamed(error)
        if theirs is None or theirs is error:
            raise
        raise theirs from error


def reason(error: BaseException) -> str:
    """Say why something failed: bad input in its own words, a user's error by file and line, all else by its kind."""
    if isinstance(error, UserError):
        return str(error)
    users = blamed(error)
    return f"{type(error).__name__}: {text_of(error)}" if users is None else str(users)


def text_of(error: BaseException) -> str:
    """Message of an error, cut where it is long; a user's own class may fail to give one.

    Pydantic's on a class or its fields are said in our words, and what an object has where it lacks an attribute.
    """
    try:
        text = str(error).partition("\n\nFor further information visit")[0]  # pydantic's own link
        pydantic = sys.modules.get("pydantic")  # an error is of a library that is loaded already
        if pydantic is not None and isinstance(error, pydantic.ValidationError):
            said = ((".".join(map(str, f["loc"])), shown(f["input"]), f["msg"]) for f in error.errors())
            text = "; ".join(f"{k} = {v}: " * bool(k) + plain(m) for k, v, m in said)
        elif type(error).__name__ == "PydanticUserError" and (found := _UNTYPED.match(text)):
            text = f"field {found[1]} has no type, expected one: write it as in `beta: float = 0.9`"
        elif isinstance(error, AttributeError) and is_dataclass(error.obj):
            text += f"; it has {listed(each.name for each in fields(error.obj))}"
    except Exception as second:
        return f"no message, since its __str__ raised {type(second).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}.."


def call_users(function: Callable[..., T], *arguments: object) -> T:
    """Call a function of a user's file before a run begins; report its exceptions and ``sys.exit``.

    Raises:
        UserCodeError: it raised an error; file, line and function are named. Or it closed the terminal.
        UserError: as it raised it.
    """
    try:
        with loading():
            value = function(*arguments)
        if not (closed := closed_streams()):
            return value
        owner = getattr(getattr(function, "func", function), "__self__", function)
        raise UserCodeError(f"{type(owner).__module__}:{type(owner).__qualname__} {closed}\n{_NOT_OURS}")
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        users = blamed(error)
        if users is None:
            raise
        raise UserCodeError(str(users)) from error


def users_function(function: object) -> AnyFunction | None:
    """The function itself, or the first one that ``functools.partial`` binds to it, that is defined outside of here.

    None: it is all this project's.
    """
    if isinstance(function, partial):
        bound = (function.func, *function.args, *function.keywords.values())
        return next((inner for each in bound if callable(each) and (inner := users_function(each))), None)
    if isinstance(function, type) or not callable(function):
        return None
    module = getattr(function, "__module__", None) or type(function).__module__
    return None if module.partition(".")[0] in (*PROJECT, "builtins") else function


def with_line(function: AnyFunction, text: str) -> str:
    """``text``, then file, line and name of a user's function, and who has to mend it."""
    return f"{text} ({_line_of(users_function(function) or function)})\n{_NOT_OURS}"


def refuse_other_arguments(function: AnyFunction, step: str, *names: str) -> None:
    """Check that a user's function can be called with so many arguments; ``names``: what they are.

    Raises:
        UserCodeError: it takes others; file and line are named.
    """
    try:
        inspect.signature(function).bind(*names)
    except TypeError as error:
        text = f"{step} takes other arguments ({error}), expected {step}({', '.join(names)})"
        raise UserCodeError(with_line(function, text)) from error
    except ValueError:  # a compiled function tells nobody what it takes
        return


def called(function: Callable[..., T], step: str, *arguments: object) -> T:
    """Call a user's function in a run; one that ends or spoils the process is named by its ``step``.

    Raises:
        UserCodeFailed: it called ``sys.exit``, closed the terminal, or left torch with another default type.
    """
    torch = sys.modules.get("torch")  # without it there is nothing to leave
    before, spoiled = torch and torch.get_default_dtype(), ""
    try:
        value = function(*arguments)
    except SystemExit as error:
        how = error.code if str(error.code).startswith("os._exit(") else f"sys.exit({error.code!r})"
        spoiled = f"ended the process ({how}), expected that it returns"
    if torch and (left := torch.get_default_dtype()) != before:
        torch.set_default_dtype(before)
        spoiled = f"left torch's default type at {left}, expected that it stays {before}"
    if spoiled := closed_streams() or spoiled:
        raise UserCodeFailed(with_line(function, f"{step} {spoiled}") + INTACT)
    return value


def closed_streams() -> str:
    """In words, which stream of the terminal users' code has closed; the null device takes its place."""
    spoiled = ""
    for name in ("stdout", "stderr"):
        if getattr(getattr(sys, name), "closed", False):
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
            spoiled = f"closed sys.{name}, expected that it stays open"
    return spoiled


def settings_of_torch() -> dict[str, object]:
    """Settings of torch in this process and its functions, by what they are called; empty where it is not loaded."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    modules = {name: sys.modules[name] for name in ("torch", "torch.nn.functional") if name in sys.modules}
    functions = {
        # torch wraps one anew as it loads its compiler, for an optimizer's first step; what others wrap counts.
        f"{name}.{key}": inspect.unwrap(
            each, stop=lambda f: f.__globals__.get("__name__", "").partition(".")[0] != "torch"
        )
        for name, module in modules.items()
        for key, each in vars(module).items()
        if isinstance(each, FunctionType | BuiltinFunctionType)
    }
    return {
        "torch's default type": torch.get_default_dtype(),
        "torch's gradients (torch.is_grad_enabled())": torch.is_grad_enabled(),
        "torch's inference mode": torch.is_inference_mode_enabled(),
        "torch's number of threads": torch.get_num_threads(),
        "torch's deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch's use of oneDNN": torch.backends.mkldnn.enabled,
        "the smallest number (torch.set_flush_denormal)": float(torch.full((), 1e-40, dtype=torch.float32) * 1),
    } | functions


def require(
    function: AnyFunction,
    step: str,
    expected: str,
    check: Callable[..., str],
    *arguments: object,
    rule: str = "",
) -> None:
    """Raise as the user's the violation that ``check(*arguments)`` words, of ``rule``, in what a function returned.

    A value on which the check itself fails is the user's error too: it is not ``expected``.

    Raises:
        ContractViolated: there is a violation; function, file and line are named.
    """
    cause = None
    try:
        violation = check(*arguments)
    except Exception as error:
        cause = error
        violation = (
            f"returned a value that cannot be checked ({type(error).__name__}: {text_of(error)}), expected {expected}"
        )
    if violation:
        colon = "" if violation.startswith("returned") else ":"
        raised = ContractViolated(with_line(function, f"{step}{colon} {violation}") + INTACT)
        raised.rule = rule
        raise raised from cause


def user_line(error: BaseException) -> str | None:
    """Innermost line of a user's file that this project called: ``my.py, line 3, in f: x = 1 / 0``."""
    return _innermost((frame, line) for frame, line in traceback.walk_tb(error.__traceback__))


def line_running(frame: FrameType) -> str | None:
    """Innermost line of a user's file that this project called, in what a thread runs now; None: elsewhere."""
    return _innermost(reversed(list(traceback.walk_stack(frame))))


def _innermost(frames: Iterable[tuple[FrameType, int]]) -> str | None:
    """The place of the innermost of these frames, outer ones first, that is a user's and was called from here."""
    is_called, lines = False, []
    for frame, line in frames:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in PROJECT:
            is_called = True
        elif is_called and (package in _CONFIGURED or not _is_of_library(package, frame.f_code.co_filename)):
            lines.append((frame.f_code.co_filename, line, frame.f_code.co_name))
    if not lines:
        return None
    file, line, function = lines[-1]
    text = linecache.getline(file, line).strip()
    return f"{original(file)}, line {line}, in {function}" + (f": {text}" if text else "")


def _is_of_library(package: str, file: str) -> bool:
    """Whether a frame's file is a library's; a compiled module names its sources, which are on no disk here."""
    return is_library(file) or is_library(getattr(sys.modules.get(package), "__file__", None) or "")


def users_file(frame: FrameType | None, through: Iterable[str] = ()) -> str | None:
    """The user's file whose code does what a thread does in ``frame``, itself or through libraries; None: nobody's.

    What a library does while it is imported is its own, and what this project does is. ``through``: the only modules of
    libraries that count as the user's tools; empty: all.
    """
    while frame is not None:
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if package in PROJECT or file.startswith("<frozen importlib"):
            return None
        if package in _CONFIGURED or not _is_of_library(package, file):
            return original(file)
        if through and module not in through:
            return None
        frame = frame.f_back
    return None


@cache
def is_library(file: str) -> bool:
    """Whether a file is Python's own or an installed package's, or no file at all."""
    path = Path(file)
    return file.startswith("<") or bool(INSTALLED & set(path.parts)) or any(r in path.parents for r in _PYTHON)


def _line_of(function: AnyFunction) -> str:
    """File, line and name of a function, also of one that ``functools.partial`` has bound."""
    while isinstance(function, partial):
        function = function.func
    called = vars(type(function)).get("__call__")  # of an object that is called like a function
    code = getattr(function, "__code__", None) or getattr(called, "__code__", None)
    if code is None:
        return repr(function)
    return f"{original(code.co_filename)}, line {code.co_firstlineno}, in {code.co_name}"
