"""The base of every frozen pydantic class: configurations, records and tables of constants."""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict

# A switch, the value or the values that it must have, and the keys that are read only then.
ReadWith = tuple[tuple[str, object, tuple[str, ...]], ...]
_Config = TypeVar("_Config", bound=BaseModel)


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
