"""Settings that decide no result: where clients are computed, and where records are copied to."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import Field, PositiveFloat, ValidationInfo, field_validator, model_validator

from relief_ray.support.frozen import FrozenConfig
from relief_ray.support.masking import is_chain

# Choices of a physical run: every client on a device of its type, with the data that lie there.
_PHYSICAL: Mapping[str, str] = MappingProxyType({"mode": "actors", "placement": "typed", "data": "node"})


class RuntimeConfig(FrozenConfig):
    """Placement of clients on processes."""

    # First: the others are checked against it.
    physical: bool = False
    """Every client is computed on a device of its type and measured there (docs/jetson.md): ``auto`` becomes
    ``mode=actors``, ``placement=typed`` and ``data=node``, and each device decides ``training.device=auto``."""
    mode: Literal["auto", "inline", "packed", "actors"] = Field(default="auto", validate_default=True)
    """``inline``: one process, without Ray; ``packed``: several clients per Ray worker; ``actors``: one Ray actor per
    client; ``auto``: ``actors`` up to ten clients unless they share steps (``training.stack``), else ``packed``; in a
    grid ``inline`` on one node, and one ``packed`` worker per cell on several."""
    num_hosts: int | None = Field(default=None, ge=1, le=10_000)
    """Number of Ray workers in mode ``packed``; None: one per core."""
    placement: Literal["auto", "typed", "virtual"] = Field(default="auto", validate_default=True)
    """``typed`` puts a client on a node of its device type, ``virtual`` on any, ``auto`` takes types where the cluster
    has enough of each."""
    num_threads: int = Field(default=1, ge=1, le=1024)
    """Torch threads per worker."""
    cache_mib: int | None = Field(default=None, ge=16, le=10**9)
    """MiB of prepared windows that a worker keeps between rounds; None: 224, in a GPU's memory 8,192."""
    client_timeout_s: PositiveFloat | Literal["auto"] = "auto"
    """Seconds that a client may take for its round, retries included; ``auto``: ten times the slowest answer so far, at
    least 60 (600 before the first answer)."""
    on_timeout: Literal["retry", "drop"] = "retry"
    """``retry``: clients whose time was over are sent once more while the round's time lasts; ``drop``: they are left
    out at once."""
    lost_wait_s: float = Field(default=60.0, ge=0.0)
    """Seconds that a round waits for a lost worker, once per loss and never past ``client_timeout_s``."""
    quorum: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of a round's clients, above 0 up to 1, whose updates must be used; with fewer the round is void."""
    verify_own: bool = True
    """Whether start, last and (short) first round of a run with code of your own are computed once more at its end, in
    a fresh process and its clients in reverse order, and compared; never in a physical run."""
    address: str | None = None
    """Ray cluster to join, ``host:port``; None: a private local one."""
    data: Literal["auto", "node", "ship"] = Field(default="auto", validate_default=True)
    """Source of windows on other nodes than the driver's. ``auto``: the node's own data, or a client's rows that are
    sent where it lacks them; ``node``: its own data or refusal, tests run on the driver's node; ``ship``: rows are
    always sent."""
    mirror: str | None = None
    """URI to which records are copied while they are written, ``s3://bucket/folder``; None: no copy."""

    @field_validator("mirror")
    @classmethod
    def _stays(cls, uri: str | None) -> str | None:
        if uri is not None and (uri.partition(":")[0] == "memory" or is_chain(uri)):
            found = "several stores in a chain" if is_chain(uri) else "a store that ends with this process"
            raise ValueError(f"{found}; expected one that stays, file:///mnt/disk/copy")
        return uri

    @field_validator("mode", "placement", "data")
    @classmethod
    def _as_on_devices(cls, value: str, info: ValidationInfo) -> str:
        """Turn ``auto`` into what devices need in a physical run, and refuse anything else there."""
        needed = _PHYSICAL[str(info.field_name)]
        if not info.data.get("physical") or value == needed:
            return value
        if value == "auto":
            return needed
        raise ValueError(
            f"{value!r} with runtime.physical=true, where each client is computed on its own device; expected "
            f"{needed!r}: remove {info.field_name}, or set runtime.physical=false"
        )

    @model_validator(mode="after")
    def _hosts_and_types_fit(self) -> RuntimeConfig:
        if self.physical and self.num_hosts is not None:
            raise ValueError(
                f"num_hosts = {self.num_hosts} with runtime.physical=true, which has one process for each client; "
                "expected none: remove num_hosts, or set runtime.physical=false"
            )
        if self.placement == "typed" and self.mode in ("packed", "inline"):
            raise ValueError(
                f"placement = 'typed' with mode = {self.mode!r}, where any client runs on any node; expected an actor "
                "for each client: set runtime.mode=actors, or runtime.placement=virtual"
            )
        return self


class TrackingConfig(FrozenConfig):
    """Copy of the records in an MLflow store."""

    enabled: bool = True
    """Whether records are copied to MLflow; run folders are written in any case."""
    uri: str | None = None
    """Address of the store; None: ``mlflow.db`` beside the run folders."""
    experiment: str = "relief-ray"
    """Name of the MLflow experiment."""
    model: bool = False
    """Whether the last checkpoint of a run is copied too, as artifact ``model``."""
