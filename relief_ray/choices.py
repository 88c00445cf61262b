"""Which of a run's values a search chose, or tries: a fact beside the values, which decides no result."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Choice(BaseModel):
    """``parameters``: the dotted keys of the values that the search varies; the values stand in their own places.

    ``kind``: ``tuned``, the frozen choice of a search, or ``try``, one of its tries. Of a choice: ``num_tries``, their
    best ``f1_validation`` (0 to 1), and ``at_edge``: those of ``parameters`` at the first or last value that was tried.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["tuned", "try"]
    parameters: tuple[str, ...] = Field(min_length=1)
    at_edge: tuple[str, ...] = ()
    num_tries: int | None = Field(default=None, ge=1)
    f1_validation: float | None = None
