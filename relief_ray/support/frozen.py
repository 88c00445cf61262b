"""The base of every frozen pydantic class: configurations, records and tables of constants."""

import json
from collections.abc import Callable
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

# A switch, the value or the values that it must have, and the keys that are read only then.
ReadWith = tuple[tuple[str, object, tuple[str, ...]], ...]
_TOO_DEEP: Final = "nested too deep, expected a few levels; flatten it"
_NO_UNICODE: Final = "a text is no Unicode, expected one that UTF-8 can hold; type it anew"
_Config = TypeVar("_Config", bound=BaseModel)
_T = TypeVar("_T")


class FrozenConfig(BaseModel):
    """Immutable values; unknown keys, NaN and infinities are refused. The string under a field is its description."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def numbers_or_text(value: object) -> object:
    """Python's own numbers for those of an array's library, numpy's among them; the text of any other object."""
    numbers = getattr(value, "tolist", None)
    return numbers() if callable(numbers) else str(value)


def _json_value(value: object) -> object:
    """The JSON form of a value of Python: a number of numpy, a path, a member of an Enum, a set.

    Raises:
        ValueError: it has none.
    """
    return numbers_or_text(value) if hasattr(value, "tolist") else to_jsonable_python(value)


def strictly(kind: type[_T] | TypeAdapter[_T], values: object, default: Callable[[object], object] = _json_value) -> _T:
    """A configuration or dataclass of plain values as YAML and JSON have them; lists are read as tuples.

    Each value has to be of its key's type: ``"3"``, ``3.0`` and ``true`` are no whole numbers, ``1`` is no truth
    value; a whole number is read where any number is expected. ``default`` converts a value that JSON lacks.

    Raises:
        ValidationError: a value does not fit.
        ValueError: a value or a key has no form in JSON, or they are nested too deep.
    """
    adapter = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
    try:
        text = json.dumps(values, default=default)
    except TypeError as error:
        raise ValueError(f"{error}, expected numbers, texts, lists and mappings by text") from error
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    try:
        return adapter.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise ValueError(_TOO_DEEP if "recursion" in first["msg"] else _NO_UNICODE) from error
        raise


def all_read(config: _Config, section: str, read_with: ReadWith) -> _Config:
    """The configuration, in which each key that its switch does not read has its default.

    Raises:
        ValueError: one has another value.
    """
    for switch, needed, keys in read_with:
        value, values = getattr(config, switch), needed if isinstance(needed, tuple) else (needed,)
        for key in keys:
            given, field = getattr(config, key), type(config).model_fields[key]
            if value not in values and given != field.get_default(call_default_factory=True):
                fits = " or ".join(map(str, values))
                raise ValueError(
                    f"{section}.{key} = {given} with {switch} = {value!r}, which does not read it; expected one of the "
                    f"two: set {section}.{switch}={fits} or remove {key}"
                )
    return config
