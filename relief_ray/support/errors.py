"""Errors for users, the hint that goes with a wrong name, and why a round goes on without a client."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, NamedTuple

_MANY = 4  # more numbers than these are named by their spans


def listed(values: Iterable[object]) -> str:
    """Join values in words: ``0, 1 and 2``."""
    texts = [str(v) for v in values]
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1]


def several(noun: str, values: Iterable[int]) -> str:
    """Name numbered things once each: ``fold 0``, ``folds 0, 1 and 2``, ``seeds 0-4 and 7``."""
    distinct = sorted(set(values))
    texts = spans(distinct).split(", ") if len(distinct) > _MANY and distinct[0] >= 0 else distinct
    return f"{noun}{'s' if len(distinct) > 1 else ''} {listed(texts)}"


def spans(numbers: Iterable[int]) -> str:
    """``4-6, 9`` for ascending 4, 5, 6, 9."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


_PLAIN = {"Input should be": "expected", "Value error, ": "", "Extra inputs are not permitted": "no such field"}


def plain(message: str) -> str:
    """Pydantic's message in our words."""
    return re.sub("|".join(_PLAIN), lambda found: _PLAIN[found[0]], message)


# Control characters but tab and line break, and marks that turn a text's direction.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The text without what changes how a terminal or page shows the rest: that is written as an escape."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def clipped(text: str) -> str:
    """The text as messages show it: cut where it is long, and what cannot be printed written as an escape."""
    short = text if len(text) <= 160 else f"{text[:158]}.."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in short)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, cut where it is long; the name of its class where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip()[:200]


def shown(value: object) -> str:
    """A value as messages show it: its ``repr``, cut where it is long."""
    return clipped(repr(value))


def kind_in_words(value: object) -> str:
    """What a value is that should be something else: ``None``, or ``a dict``."""
    return "None" if value is None else f"a {type(value).__name__}"


def counted(number: int, noun: str) -> str:
    """``1 run``, ``3 runs``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


# Sections and words that a call in Python named as keywords; None: messages are worded for the command line.
_KEYWORDS: ContextVar[Collection[str] | None] = ContextVar("keywords", default=None)


def keywords() -> Collection[str] | None:
    """Keywords of the call in Python that messages are worded for; None: for the command line."""
    return _KEYWORDS.get()


@contextmanager
def in_python(keywords: Collection[str] | None = ()) -> Iterator[None]:
    """Word the messages of this block for a call in Python; ``keywords``: those of the call; None: of none."""
    before = _KEYWORDS.set(keywords)
    try:
        yield
    finally:
        _KEYWORDS.reset(before)


class Setting(NamedTuple):
    """A key (dotted) that a user sets to a value; ``typed``: as it was typed, ``--seeds 0-2``.

    In a message it reads ``--set training.lr=0.1``; in Python ``training={'lr': 0.1}`` where the section is a keyword
    of the call, else ``set={'training.lr': 0.1}``. The value ``..`` (``Ellipsis``) stands for any.
    """

    path: str
    value: object
    typed: str = ""

    def __str__(self) -> str:
        """Return the setting as its user writes it."""
        keywords = _KEYWORDS.get()
        if keywords is None:
            return self.typed or f"--set {shlex.quote(clipped(f'{self.path}={value_text(self.value)}'))}"
        if self.path.partition(".")[0] in keywords:
            return as_keyword(self.path, self.value)
        return f"set={{{self.path!r}: {_in_python(self.value)}}}"


def as_keyword(path: str, value: object) -> str:
    """A setting as a keyword of a call: ``training={'lr': 0.1}``, or ``rounds=5``."""
    section, _, rest = path.partition(".")
    return f"{section}={{{rest!r}: {_in_python(value)}}}" if rest else f"{section}={_in_python(value)}"


def for_method(name: str, fields: Mapping[str, object]) -> str:
    """Fields of one method as its user writes them: ``{'name': 'relief', 'cover': True}`` in Python.

    Else ``--set strategy.cover=true``, which goes to every method of a command.
    """
    if _KEYWORDS.get() is None:
        return " ".join(str(Setting(f"strategy.{field}", value)) for field, value in fields.items())
    return "{" + ", ".join(f"{key!r}: {_in_python(value)}" for key, value in {"name": name, **fields}.items()) + "}"


def _in_python(value: object) -> str:
    if isinstance(value, range):
        return f"range({value.stop})"
    return ".." if value is ... else shown(list(value) if isinstance(value, tuple) else value)


def option(name: str, value: object = None) -> str:
    """An option of a command, or the keyword that it is in Python: ``--out DIR`` or ``out='DIR'``; True: a switch."""
    if _KEYWORDS.get() is not None:
        return name if value is None else f"{name}={value!r}"
    word = f"--{name.replace('_', '-')}"
    return word if value is None or value is True else f"{word} {value}"


# Texts that are something else in YAML 1.2, or end a plain text there.
_MISREAD = re.compile(
    r"(~|null|true|false)?|[-+]?(\.?\d+|\d+\.\d*)(e[-+]?\d+)?|0o[0-7]+|0x[\da-f]+|[-+]?\.inf|\.nan|<<|"
    r"""[-?:]|[-?:] .*|[&*!|>'"%@`#{}\[\],].*|.*(: |:$| #|[,\[\]{}?\n\t]).*""",
    re.IGNORECASE | re.DOTALL,
)


def value_text(value: object) -> str:
    """A value as YAML on a line: what `--set` and configuration files take."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, range):
        return f"0-{value.stop - 1}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{value_text(k)}: {value_text(v)}" for k, v in value.items()) + "}"
    if value is None or value is ...:
        return "null" if value is None else ".."
    if isinstance(value, str) and (value.strip() != value or _MISREAD.fullmatch(value)):
        return json.dumps(value, ensure_ascii=False)
    text = f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
    return re.sub(r"^(-?)(inf|nan)$", r"\1.\2", text) if isinstance(value, float) else text


class UserError(ValueError):
    """Bad input: the message names the place, the value, the expectation and the fix."""


class UserCodeError(UserError):
    """Error in a file of the user's own, met before a run begins: as it is loaded, or builds a model, or reads data."""


class ClientFailed(RuntimeError):
    """Error raised by code inside a client: a programming error, not a fault of the machine; the run stops."""


class UserCodeFailed(ClientFailed):
    """Error raised in a file of the user's own, by a method on the server too; the message names file and line."""


class CoordinatorLost(RuntimeError):
    """Raised where Ray or the process that runs the rounds does not come up, or dies or freezes again and again."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` with the nearest known name, or an empty text."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


Cause = Literal["timeout", "lost", "update"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Reason, in words too: no answer in time, a lost process or node, or an update that a check refused."""

    cause: Cause
    why: str
