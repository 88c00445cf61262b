"""Reads YAML that a user wrote, within limits: whatever it holds, the answer is plain values or a ``UserError``.

Plain scalars are read by the core schema of YAML 1.2 (section 10.3.2): ``010`` is 10, ``1e-3`` is a number, ``yes``,
``off``, ``1:30``, ``1_000`` and ``2026-01-02`` are texts. Beyond YAML's own rules a key may stand only once in a
mapping, and nesting, size and the values that aliases stand for are bounded: a file of 400 bytes can otherwise describe
10^9 values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Final

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

from relief_ray.support.errors import UserError
from relief_ray.support.files import opened

MAX_BYTES: Final = 256 * 1024
_MAX_DEPTH: Final = 50
_MAX_VALUES: Final = 100_000
_MAX_DIGITS: Final = 100
# Tags of plain scalars in the core schema of YAML 1.2, their patterns, and their first characters ("" of an empty one).
_CORE: Final = (
    ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    ("merge", r"<<", "<"),
)
# What is raised for scalars such as `!!int x` and `!!bool x`, and for `!!binary` and others that JSON does not know.
_NO_VALUE: Final = (yaml.YAMLError, ValueError, KeyError, AttributeError, TypeError, OverflowError)


class _Limit(Exception):
    """Raised where a text goes beyond a limit; the message names what was found, what is expected and the fix."""


def _too_deep(line: int) -> _Limit:
    return _Limit(f"line {line}: nested more than {_MAX_DEPTH} deep, expected a few levels; flatten it")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with limits, without repeated keys, and with the scalars of YAML 1.2."""

    def __init__(self, text: str) -> None:
        """Begin to read a text."""
        super().__init__(text)
        self._depth = self._num_values = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """Compose a node; an alias counts as the values that it stands for.

        Raises:
            _Limit: too deep, or too many values.
        """
        is_alias, before, line = self.check_event(yaml.AliasEvent), self._num_values, self.line + 1
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _too_deep(line)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._sizes:
            raise _Limit(f"line {line}: an alias inside of what it stands for; write the value out")
        self._num_values += self._sizes[id(node)] if is_alias else 1
        if self._num_values > _MAX_VALUES:
            raise _Limit(
                f"line {line}: more than {_MAX_VALUES} values, aliases counted as what they stand for; expected a "
                "configuration; write fewer values"
            )
        if not is_alias:
            self._sizes[id(node)] = self._num_values - before
        return node

    def fetch_flow_collection_start(self, kind: type[yaml.Token]) -> None:
        """Scan a ``[`` or ``{``: a thousand open ones are scanned, slowly, before the first node is composed.

        Raises:
            _Limit: too deep.
        """
        if self.flow_level >= _MAX_DEPTH:
            raise _too_deep(self.line + 1)
        super().fetch_flow_collection_start(kind)

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Hashable, object]:
        """Construct a mapping whose keys differ.

        Raises:
            _Limit: a key stands twice.
        """
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, ScalarNode) and key.value != "<<":
                line = key.start_mark.line + 1
                if (key.tag, key.value) in lines:
                    first = lines[key.tag, key.value]
                    raise _Limit(f"line {line}: key {key.value!r} stands in line {first} already; keep one of them")
                lines[key.tag, key.value] = line
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: ScalarNode) -> int:
        """Construct a whole number: decimal, or octal after ``0o``, or hexadecimal after ``0x``.

        Raises:
            _Limit: it has more digits than anything can mean.
        """
        text = self._core("int", node)
        if len(text) > _MAX_DIGITS:
            raise _Limit(f"a whole number of {len(text)} characters, expected at most {_MAX_DIGITS}; shorten it")
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)

    def construct_yaml_float(self, node: ScalarNode) -> float:
        """Construct a number; Python writes infinity and NaN without the point."""
        return float(re.sub(r"\.(?=[iInN])", "", self._core("float", node)))

    def construct_yaml_bool(self, node: ScalarNode) -> bool:
        """Construct true or false."""
        return self._core("bool", node).lower() == "true"

    def _core(self, tag: str, node: ScalarNode) -> str:
        """The text of a scalar, also where the tag was written: ``!!int 1_0`` is no number either."""
        text = str(self.construct_scalar(node))
        if not any(re.fullmatch(pattern, text) for name, pattern, _ in _CORE if name == tag):
            raise ValueError(f"{text!r} is no {tag} of YAML 1.2")
        return text


_Loader.yaml_implicit_resolvers = {}  # without those of YAML 1.1
for _tag, _pattern, _first in _CORE:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
_Loader.add_constructor("tag:yaml.org,2002:bool", _Loader.construct_yaml_bool)


def read_setting(text: str, place: str) -> object:
    """The value of a setting: as YAML where it is some, else the text itself.

    Raises:
        UserError: it goes beyond a limit, or is no text in UTF-8.
    """
    try:
        return _values(text, place)
    except UserError:
        raise
    except _NO_VALUE:
        return text


def read_file(path: Path) -> object:
    """The values in a YAML or JSON file.

    Raises:
        UserError: it cannot be read, or as ``read_bytes``.
    """
    try:
        with opened(path) as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}: cannot be read ({why}), expected a file of YAML or JSON; name one") from error
    return read_bytes(data, str(path))


def read_bytes(data: bytes, place: str) -> object:
    """The values in the content of a YAML or JSON file; ``place`` names it in errors.

    Raises:
        UserError: no text in UTF-8, no YAML, or beyond a limit.
    """
    if len(data) > MAX_BYTES:
        raise UserError(
            f"{place}: more than {MAX_BYTES // 1024} KiB, expected a few keys and values; name another file"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{place}: byte {error.start} is 0x{data[error.start]:02x}, expected a text in UTF-8; save it as UTF-8"
        ) from error
    try:
        return _values(text, place)
    except UserError:
        raise
    except _NO_VALUE as error:
        raise UserError(f"{place}: {_fault(error)}") from error


def _fault(error: Exception) -> str:
    """Message on a text that is no YAML, ``line 4: its indentation fits no line above it, ..``."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if not isinstance(problem, str) or mark is None:
        why = " ".join(str(error).split()) or type(error).__name__
        return f"cannot be read as YAML ({why}), expected keys and values; mend it"
    if problem.startswith("expected <block end>, but found '<block mapping start>'"):
        return (
            f"line {mark.line + 1}: its indentation fits no line above it, expected that of its section; indent it so"
        )
    if problem.startswith(("expected ',' or", "did not find expected ',' or")):
        return f"line {mark.line + 1}: a bracket or a quote that is opened above is not closed; close it"
    return f"line {mark.line + 1}: cannot be read as YAML ({problem}), expected keys and values; mend that line"


def read_mapping(path: Path) -> dict[str, object]:
    """The values in a file that holds a mapping by text.

    Raises:
        UserError: as ``read_file``, or it holds something else.
    """
    values = read_file(path)
    if not isinstance(values, Mapping):
        raise UserError(
            f"{path}: holds {type(values).__name__}, expected a mapping of configuration keys, e.g. rounds: 20"
        )
    if wrong := [key for key in values if not isinstance(key, str)]:
        raise UserError(f"{path}: key {wrong[0]!r}, expected a text such as rounds; write the name of a key")
    return dict(values)


def _values(text: str, place: str) -> object:
    if len(text) > MAX_BYTES:
        raise UserError(f"{place[:60]}..: a value of {len(text)} characters, expected at most {MAX_BYTES}; shorten it")
    try:
        text.encode()
        values = yaml.load(text, _Loader)
        json.dumps(values, ensure_ascii=False).encode()  # raises for what JSON or UTF-8 cannot hold
        return values
    except UnicodeEncodeError as error:
        shown = place.encode("ascii", "backslashreplace").decode()
        raise UserError(f"{shown}: holds bytes that are no UTF-8, expected a text in UTF-8; type it anew") from error
    except _Limit as error:
        raise UserError(f"{place[:200]}: {error}") from error
