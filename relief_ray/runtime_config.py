"""Settings that decide no result: where clients are computed, and where records are copied to."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, model_validator

from relief_ray.frozen import FrozenConfig


class RuntimeConfig(FrozenConfig):
    """Placement of clients on processes.

    Attributes:
        mode: ``inline``: one process, without Ray; ``packed``: several clients per Ray worker; ``actors``: one Ray
            actor per client; ``auto``: ``actors`` up to ten clients unless they share steps (``training.stack``), else
            ``packed``; in a grid ``inline`` on one node, and one ``packed`` worker per cell on several.
        num_hosts: number of Ray workers in mode ``packed``; None: one per core.
        placement: ``typed`` puts a client on a node of its device type, ``virtual`` on any, ``auto`` takes types where
            the cluster has enough of each.
        num_threads: torch threads per worker.
        cache_mib: MiB of prepared windows that a worker keeps between rounds; None: 224, in a GPU's memory 8,192.
        client_timeout_s: seconds that a client may take for its round, retries included; ``auto``: ten times the
            slowest answer so far, at least 60 (600 before the first answer).
        on_timeout: ``retry``: clients whose time was over are sent once more while the round's time lasts; ``drop``:
            they are left out at once.
        lost_wait_s: seconds that a round waits for a lost worker, once per loss and never past ``client_timeout_s``.
        quorum: share of a round's clients, above 0 up to 1, whose updates must be used; with fewer the round is void.
        address: Ray cluster to join, ``host:port``; None: a private local one.
        data: source of windows on other nodes than the driver's. ``auto``: the node's own data, or a client's rows that
            are sent where it lacks them; ``node``: its own data or refusal, tests run on the driver's node; ``ship``:
            rows are always sent.
        mirror: URI to which records are copied while they are written, ``s3://bucket/folder``; None: no copy.
    """

    mode: Literal["auto", "inline", "packed", "actors"] = "auto"
    num_hosts: int | None = Field(default=None, ge=1)
    placement: Literal["auto", "typed", "virtual"] = "auto"
    num_threads: int = Field(default=1, ge=1)
    cache_mib: int | None = Field(default=None, ge=16)
    client_timeout_s: PositiveFloat | Literal["auto"] = "auto"
    on_timeout: Literal["retry", "drop"] = "retry"
    lost_wait_s: float = Field(default=60.0, ge=0.0)
    quorum: float = Field(default=1.0, gt=0.0, le=1.0)
    address: str | None = None
    data: Literal["auto", "node", "ship"] = "auto"
    mirror: str | None = None

    @model_validator(mode="after")
    def _types_need_actors(self) -> RuntimeConfig:
        if self.placement == "typed" and self.mode in ("packed", "inline"):
            raise ValueError(
                f"placement = 'typed' with mode = {self.mode!r}, where any client runs on any node; expected an actor "
                "for each client: set runtime.mode=actors, or runtime.placement=virtual"
            )
        return self


class TrackingConfig(FrozenConfig):
    """Copy of the records in an MLflow store.

    Attributes:
        enabled: whether records are copied there; run folders are written in any case.
        uri: address of the store; None: ``mlflow.db`` beside the run folders.
        experiment: name of the MLflow experiment.
        model: whether the last checkpoint of a run is copied too, as artifact ``model``.
    """

    enabled: bool = True
    uri: str | None = None
    experiment: str = "relief-ray"
    model: bool = False
