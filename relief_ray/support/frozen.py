"""The base of every frozen pydantic class: configurations, records and tables of constants."""

import json
from collections.abc import Callable
from typing import ClassVar, Final, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic_core import to_jsonable_python

ReadWith = tuple[tuple[str, object, tuple[str, ...]], ...]
_TOO_DEEP: Final = "nested too deep, expected a few levels; flatten it"
_NO_UNICODE: Final = "a text is no Unicode, expected one that UTF-8 can hold; type it anew"
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


class SwitchedConfig(FrozenConfig):
    """A section with keys that only some values of another key, their switch, read: elsewhere they have their defaults.

    Attributes:
        read_with: switches, the value or the values that each must have, and the keys that are read only then.
    """

    _section: ClassVar[str]
    read_with: ClassVar[ReadWith] = ()

    @model_validator(mode="after")
    def _all_is_read(self) -> "SwitchedConfig":
        for switch, needed, keys in self.read_with:
            value, values = getattr(self, switch), needed if isinstance(needed, tuple) else (needed,)
            for key in keys:
                given, field = getattr(self, key), type(self).model_fields[key]
                if value not in values and given != field.get_default(call_default_factory=True):
                    fits = " or ".join(map(str, values))
                    raise ValueError(
                        f"{self._section}.{key} = {given} with {switch} = {value!r}, which does not read it; expected "
                        f"one of the two: set {self._section}.{switch}={fits} or remove {key}"
                    )
        return self
