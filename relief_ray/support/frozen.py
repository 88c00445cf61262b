"""The base of every frozen pydantic class: configurations, records and tables of constants."""

from pydantic import BaseModel, ConfigDict


class FrozenConfig(BaseModel):
    """Immutable values; unknown keys, NaN and infinities are refused. The string under a field is its description."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
