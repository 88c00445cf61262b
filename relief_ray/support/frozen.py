"""Frozen values: the dataclass of values in memory, and the base of configurations, records and tables of constants."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform as _is_dataclass
else:  # a note for type checkers, which Python 3.10 lacks

    def _is_dataclass(**_note):
        return lambda decorator: decorator


# A switch, the value or the values that it must have, and the keys that are read only then.
ReadWith = tuple[tuple[str, object, tuple[str, ...]], ...]
_Config = TypeVar("_Config", bound=BaseModel)
_Class = TypeVar("_Class")


@_is_dataclass(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[_Class]) -> type[_Class]:
    """Make a class a dataclass whose fields are given by name, never change, and are all that a value has (slots)."""
    return dataclass(frozen=True, kw_only=True, slots=True)(cls)


class FrozenConfig(BaseModel):
    """Immutable values; unknown keys, NaN and infinities are refused. The string under a field is its description."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


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
