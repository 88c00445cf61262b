"""Base of all records: the frozen model, its field types, the schema version and the comparison of two records."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, ConfigDict, JsonValue

from relief_ray.support.errors import UserError
from relief_ray.support.frozen import FrozenConfig
from relief_ray.support.masking import mask_text, redact

SCHEMA_VERSION: Final = 3

# Fields that depend on real time or on the network: two records of the same computation may differ in these alone.
WALL_FIELDS = frozenset(
    "created finished note num_resumes wall_s ended_unix_s measured_stages moved_bytes server_s runtime "
    "physical".split()
)

Origin = Literal["real", "SYNTHETIC"]
Text = Annotated[str, AfterValidator(mask_text)]
Facts = Annotated[dict[str, JsonValue], AfterValidator(redact)]


class Record(FrozenConfig):
    """Base of all records; NaN and infinities are kept and written as strings."""

    model_config = ConfigDict(allow_inf_nan=True, ser_json_inf_nan="strings")


def comparable(record: Record) -> JsonValue:
    """Return a record as JSON without ``WALL_FIELDS``: equal for two computations of the same round."""
    return _plain(record)


def _plain(value: object) -> JsonValue:
    if isinstance(value, Record):
        return {k: _plain(v) for k, v in value if k not in WALL_FIELDS}
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    assert value is None or isinstance(value, (bool, int, float, str))
    return value


def refuse_other_schema(version: JsonValue, where: Path) -> None:
    """Refuse a record of another schema version, before any of its fields are read.

    Raises:
        UserError: no version, or another one.
    """
    if version == SCHEMA_VERSION:
        return
    newer = isinstance(version, int) and version > SCHEMA_VERSION
    fix = "upgrade relief-ray" if newer else "read it with the release that wrote it, or run the cell again elsewhere"
    raise UserError(f"{where}: schema_version is {version!r}, expected {SCHEMA_VERSION}; {fix}")
