"""Exit codes, messages for early ends, and the output of commands as text or JSON."""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from typing import NamedTuple

from relief_ray.support.errors import CoordinatorLost, UserCodeError, UserError, visible
from relief_ray.support.masking import mask_text
from relief_ray.support.text import WIDTH, wrapped

_OK = 0
INTERNAL = 1
BAD_INPUT = 2
ROUND_VOID = 3
DISK = 4
CELLS_FAILED = 5
DIFFERENT = 6
_USER_CODE = 7
MIRROR_BEHIND = 8
RAY_LOST = 9
HUNG_UP = 129
INTERRUPTED = 130
_READER_GONE = 141
TERMINATED = 143

EXIT_CODES = (
    (_OK, "done"),
    (INTERNAL, "internal error: a fault of this program; the traceback is shown. Of `conformance`: a rule is broken"),
    (BAD_INPUT, "bad input: a wrong option, key, value, file or folder; the message names the fix"),
    (ROUND_VOID, "a round was void (no usable update, too few clients, a model that is not finite): nothing committed"),
    (DISK, "the disk is full, read-only or failed while writing; everything before is intact"),
    (
        CELLS_FAILED,
        "cells of a grid failed or are stale (`--rerun-stale` computes stale ones again), or runs failed; the others "
        "are done",
    ),
    (DIFFERENT, "a cell that was computed again gave other results (`relief-ray reproduce`)"),
    (
        _USER_CODE,
        "a file of your own (method, data set, backbone, clock) raised an error or returned something wrong; the "
        "message names its line",
    ),
    (MIRROR_BEHIND, "all runs are done, but their copy (`--mirror`) lacks something; `relief-ray resume DIR` sends it"),
    (
        RAY_LOST,
        "Ray's own processes do not start or answer, or the process of the rounds died three times in a row; go on "
        "with `relief-ray resume DIR`. Of `submit`: the head does not answer; the message has the command that follows "
        "the job again",
    ),
    (HUNG_UP, "stopped because the terminal was closed (SIGHUP); go on with `relief-ray resume DIR`"),
    (INTERRUPTED, "stopped by Ctrl-C (SIGINT); go on with `relief-ray resume DIR`"),
    (_READER_GONE, "the reader of the output has gone (a closed pipe)"),
    (TERMINATED, "stopped by SIGTERM; go on with `relief-ray resume DIR`"),
)
_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})


class Stopped(Exception):
    """A run ended between two rounds because a signal asked for it; ``code`` is the exit code."""

    def __init__(self, code: int, message: str) -> None:
        """``message`` says how to go on."""
        super().__init__(message)
        self.code = code


def exit_code(error: BaseException) -> int:
    """The code of an error that reached the command line."""
    if isinstance(error, Stopped):
        return error.code
    if isinstance(error, BrokenPipeError):
        return _READER_GONE
    if isinstance(error, OSError | UserError) and _is_disk(error):
        return DISK
    if isinstance(error, UserError):
        return _USER_CODE if isinstance(error, UserCodeError) else BAD_INPUT
    if _is_long_name(error):
        return BAD_INPUT
    if _is_void(error):
        return ROUND_VOID
    if isinstance(error, CoordinatorLost):
        return RAY_LOST
    return INTERNAL if _theirs(error) is None else _USER_CODE


def _theirs(error: BaseException) -> BaseException | None:
    """The error as one of a user's own file; None where it is ours."""
    from relief_ray.plugins.blame import blamed

    return blamed(error)


def _is_disk(error: BaseException) -> bool:
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _DISK_ERRNOS


def _is_long_name(error: BaseException) -> bool:
    # Any command may be given such a path, and whoever looks at it first meets this error.
    return isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG


def _text(error: BaseException, code: int) -> str:
    """Return what is said of an error that is no fault of this program."""
    if isinstance(error, OSError) and _is_long_name(error):
        name = str(error.filename)
        length = f"a name of {len(name)} characters, longer than a file's may be"
        return f"{name[:40]}..: {length}; expected a path or a name; shorten it"
    return str((code == _USER_CODE and _theirs(error)) or error)


def _is_void(error: BaseException) -> bool:
    # Looked up only where rounds were run at all: importing it here would load torch for every `--help`.
    federated = sys.modules.get("relief_ray.core.federated")
    return isinstance(error, FloatingPointError) or (federated is not None and isinstance(error, federated.RoundVoid))


def report(error: BaseException) -> int:
    """Write the error to stderr as one block and return the exit code."""
    code = exit_code(error)
    if code == _READER_GONE:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
    elif isinstance(error, Stopped):
        say(str(error))
    elif code == INTERNAL:
        say("".join(traceback.format_exception(error)).rstrip())
        say(
            f"error: internal error: {type(error).__name__}: {error}\n"
            "       This is a fault of relief-ray, not of your input; what was recorded before it is intact."
        )
    else:
        say(block("error: ", _text(error, code)))
    return code


def block(head: str, text: str) -> str:
    """The text behind its head, wrapped, further lines indented."""
    indent = " " * len(head)
    lines = [
        # Indented lines are commands to be typed: they stay whole.
        [line] if line.startswith("  ") else wrapped(line, width=WIDTH - len(head))
        for line in text.split("\n")
    ]
    return head + ("\n" + indent).join(part for line in lines for part in line or [""])


def say(text: str) -> None:
    """A line on stderr, without credentials and control characters; a closed pipe must not hide the exit code."""
    try:
        print(visible(mask_text(text)), file=sys.stderr, flush=True)
    except BrokenPipeError:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")


def figure(value: float | None, decimals: int, lacking: str = "-") -> str:
    """The value as text, or the mark for an unknown one; an unmeasured value is never shown as 0."""
    return lacking if value is None else f"{value:.{decimals}f}"


class Result(NamedTuple):
    """What a command gives, or one of several things that it gives one after the other."""

    text: object
    """For people; a list is of lines, or of blocks of them."""
    facts: object = None
    """For programs; None: nothing."""

    def show(self, *, as_json: bool) -> None:
        """Print it: as JSON an event on a line of its own, anything else indented."""
        if not as_json:
            text = "\n".join(self.text) if isinstance(self.text, list) else str(self.text)
            print(visible(text), flush=True)
        elif self.facts is not None:
            is_event = isinstance(self.facts, dict) and "event" in self.facts
            # NaN and the infinities, which Python writes and JSON has not, as null.
            facts = json.loads(json.dumps(self.facts), parse_constant=lambda _: None)
            print(json.dumps(facts, indent=None if is_event else 1), flush=True)
