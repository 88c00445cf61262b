"""Keywords of ``run``: an unknown one is answered with what to write, and messages speak of keywords, not of options.

The checks below ``run`` serve the command line too and name its options; ``in_python`` says the same in Python.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, cast

import yaml
from pydantic import BaseModel

from relief_ray.config.experiment import ExperimentConfig, all_keys
from relief_ray.config.keys import nearest_keys
from relief_ray.support.errors import UserError, shown

Place = Literal["here", "ray"]
# Those of ``run`` itself; all others are sections or keys of the configuration.
KEYWORDS: Final = (
    "strategies", "seeds", "folds", "rounds", "name", "claims", "out", "set", "quiet", "other_code", "rerun_stale"
)  # fmt: skip
# Keys of an experiment that stand beside the configuration's.
_FURTHER: Final = ("replicates",)
_SYNONYMS: Final[Mapping[str, str]] = {"folder": "out", "directory": "out", "path": "out", "output": "out"}
_JOBS: Final = frozenset({"jobs", "num_jobs", "n_jobs", "workers", "num_workers", "processes"})
# How alike a keyword must be to be named before a key of the configuration, and at all.
_SURE, _ALIKE = 0.8, 0.6


def refuse_unknown_keywords(settings: Mapping[str, object], place: Place) -> None:
    """Check the further keywords of a call: each is a section or a key of the configuration.

    Raises:
        UserError: one is neither; the message says what to write instead.
    """
    known = [*ExperimentConfig.model_fields, *_FURTHER]
    for name, value in settings.items():
        if name in known:
            _check_section(name, value)
        elif name in _JOBS:
            raise UserError(f"{name}={shown(value)}: {_instead_of_jobs(value, place)}")
        else:
            raise UserError(f"run({name}={shown(value)}): unknown keyword; {_instead(name, value, known)}")


def _check_section(name: str, value: object) -> None:
    """Check that an object is of the section that it is given for.

    Raises:
        UserError: it is another section.
    """
    kind = type(ExperimentConfig.model_fields[name].default) if name in ExperimentConfig.model_fields else object
    if isinstance(value, BaseModel) and name not in ("strategy", "backbone") and not isinstance(value, kind):
        raise UserError(
            f"{name}: found a {type(value).__name__}, expected a {kind.__name__}, or a mapping of the keys to change: "
            f"{name}={{'..': ..}}"
        )


def _instead_of_jobs(number: object, place: Place) -> str:
    here = "relief_ray.run computes one run after the other in this process"
    there = "actors.run computes one run after the other, each on all cores"
    hosts = f"runtime={{'num_hosts': {shown(number)}}}"
    fix = f"actors.run(.., {hosts}), which trains the clients of a run on so many cores" if place == "here" else hosts
    return f"{here if place == 'here' else there}; expected {fix}, or `relief-ray run EXPERIMENT --jobs {number}`"


def _instead(name: str, value: object, known: Collection[str]) -> str:
    """Say what to write in place of a keyword that there is not."""
    if name.partition(".")[0] in known:
        return f"write {_as_keyword(name, value)}, or set={{{name!r}: {shown(value)}}}"
    names = [*KEYWORDS, *known]
    sure = [_SYNONYMS[name]] if name in _SYNONYMS else difflib.get_close_matches(name, names, 1, _SURE)
    keys = [] if sure else [key for key in nearest_keys(name, all_keys()) if key not in known]
    alike = sure or ([] if keys else difflib.get_close_matches(name, names, 1, _ALIKE))
    if alike:
        return f"did you mean {alike[0]}={shown(value)}?"
    if keys:
        return f"write {' or '.join(_as_keyword(key, value) for key in keys)}"
    return f"expected one of {', '.join(KEYWORDS)}, or a section of the configuration: {', '.join(known)}"


def _as_keyword(key: str, value: object) -> str:
    """A setting as a keyword: ``training={'lr': 0.1}``, or ``rounds=5``."""
    section, _, rest = key.partition(".")
    return f"{section}={{{rest!r}: {shown(value)}}}" if rest else f"{section}={shown(value)}"


def check_words(words: Mapping[str, object], settings: object) -> None:
    """Check the types of a call's words, and of ``set``, which would fail deep inside or be read as something else.

    Raises:
        UserError: one has another type, or ``set`` holds a keyword.
    """
    if not isinstance(settings, Mapping):
        raise UserError(f"set: found {settings!r}, expected a mapping by dotted key, e.g. set={{'training.lr': 0.01}}")
    for name, value in words.items():
        kinds = str if name == "name" else (str, Path)
        if value is not None and not isinstance(value, kinds):
            what = "a text" if name == "name" else "a path"
            raise UserError(f"{name}: found {shown(value)}, expected {what}, e.g. {name}='runs/first'")
    for key in settings:
        if key in KEYWORDS and key not in ExperimentConfig.model_fields:
            value = shown(settings[key])
            raise UserError(f"set={{{key!r}: {value}}}: no key of the configuration; write {key}={value} beside set")


@contextmanager
def in_python(keywords: Collection[str] = ()) -> Iterator[None]:
    """Let a user's error speak of keywords; ``keywords``: the sections that were given as such.

    Raises:
        UserError: as it was raised, in these words.
    """
    try:
        yield
    except UserError as error:
        error.args = (python_words(str(error), keywords),)
        raise


# An option with its value: quoted, a list or a mapping, or up to a blank.
_VALUE: Final = r"(?:'([^']*)'|([\w.*]+=[\[{].*?[\]}]|[^\s`';,)]+(?:,[^\s`';,)]+)*))"
_SETTING: Final = re.compile(rf"--set {_VALUE}")
_AXIS: Final = re.compile(r"--(?:(strategies) ([^\s`';)]+)|(seeds|folds) (\[[^\]]*\]|\d[\d,]*))")
_RESUME: Final = re.compile(r"relief-ray\sresume \S+ --(rerun-stale|other-code)")
_PLAIN: Final[Mapping[str, str]] = {
    "--out DIR": "out='DIR'", "--rerun-stale": "rerun_stale=True", "--other-code": "other_code=True",
    "; in Python strategies=": "; or without a file strategies=",
}  # fmt: skip
_OPTION: Final = re.compile(r"--(strategies|seeds|folds|rounds|out)\b")


def python_words(text: str, keywords: Collection[str] = ()) -> str:
    """A message for the command line in Python's words: ``--set seed=1`` as ``set={'seed': 1}``, ``--out`` as ``out``.

    ``keywords``: sections whose settings were keywords: ``training={'lr': 1}``.
    """

    def setting(match: re.Match[str]) -> str:
        written = match.group(1) or match.group(2)
        end = ":" if written.endswith(":") else ""
        key, sign, value = written.removesuffix(":").partition("=")
        plain = _plain(value) if sign and value != "..." else ".."
        if key.partition(".")[0] in keywords and plain != "..":
            return _as_keyword(key, yaml.safe_load(value)) + end
        return f"set={{{key!r}: {plain}}}{end}"

    def axis(match: re.Match[str]) -> str:
        methods, names, name, numbers = match.groups()
        if methods:
            return f"{methods}={names.split(',')}"
        return f"{name}={[int(number) for number in numbers.strip('[]').split(',')]}"

    text = _AXIS.sub(axis, _SETTING.sub(setting, text))
    text = _RESUME.sub(lambda match: f"{match.group(1).replace('-', '_')}=True", text)
    for option, word in _PLAIN.items():
        text = text.replace(option, word)
    return _OPTION.sub(lambda match: match.group(1), text)


def _plain(value: str) -> str:
    """The value of a setting as Python writes it."""
    try:
        return repr(cast(object, yaml.safe_load(value)))
    except yaml.YAMLError:
        return repr(value)
