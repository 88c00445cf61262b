"""The base of every frozen pydantic class: configurations, records and tables of constants."""

import re
from inspect import cleandoc

from pydantic import BaseModel, ConfigDict

# A line "    name: text" or "    one, other: text" of a docstring's block, and the lines of its text that follow.
_EXPLAINED = re.compile(r"^    (\w[\w, ]*):[ \n](.*(?:\n {5,}.*)*)", re.MULTILINE)


class FrozenConfig(BaseModel):
    """Immutable values; unknown keys, NaN and infinities are refused.

    Each field's ``description`` is what the ``Attributes:`` of the class say about it, or those of the class that it is
    inherited from, unless a ``Field`` gives another one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        """Fill in the fields' descriptions."""
        for kind in cls.__mro__:
            if issubclass(kind, FrozenConfig):
                for name, text in explained(kind.__dict__.get("__doc__") or "").items():
                    if name in cls.model_fields and cls.model_fields[name].description is None:
                        cls.model_fields[name].description = text


def explained(docstring: str) -> dict[str, str]:
    """Return the text of a docstring's ``Attributes:`` by name, in one line each."""
    block = cleandoc(docstring).partition("Attributes:\n")[2].partition("\n\n")[0]
    return {
        name: " ".join(text.split()) for names, text in _EXPLAINED.findall(block) for name in re.split(r",\s*", names)
    }
