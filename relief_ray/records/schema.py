"""What a run leaves behind, as frozen JSON models: one ``RunRecord`` per run, one ``RoundRecord`` per round.

Tables and figures are functions of these two alone. Floats survive JSON exactly; NaN and infinities travel as strings.
"""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, JsonValue

from relief_ray.errors import UserError
from relief_ray.frozen import FrozenConfig
from relief_ray.records.redact import mask_text, redact

SCHEMA_VERSION: Final = 2

# Fields that a clock or a socket decides: two records of the same computation may differ in these alone.
WALL_FIELDS = frozenset(
    "created finished note num_resumes wall_s ended_unix_s measured_stages moved_bytes server_s runtime".split()
)

Status = Literal["created", "running", "finished", "interrupted", "failed"]

Origin = Literal["real", "SYNTHETIC"]

Text = Annotated[str, AfterValidator(mask_text)]

Facts = Annotated[dict[str, JsonValue], AfterValidator(redact)]


class Record(FrozenConfig):
    """Base of all records; NaN and infinities are kept and written as strings."""

    model_config = ConfigDict(allow_inf_nan=True, ser_json_inf_nan="strings")


class Machine(Record):
    """Where a run was computed: equal bits are promised for equal ``cpu`` and ``num_threads`` only."""

    cpu: str
    architecture: str
    system: str
    num_cores: int
    num_threads: int
    device: str = "cpu"
    python: str
    torch: str
    numpy: str


class RunRecord(Record):
    """One run's facts (``run.json``).

    ``coverage``: windows per client and class; ``budget``: ``deadline_s``; ``created``, ``finished``: UTC, ISO 8601;
    ``parent``: the grid it is a cell of; ``backbone``: what is frozen in it; ``own_sources``: sha256 by a user's file.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    cell: str
    name: str
    strategy: str
    created: str
    config: Facts
    config_hash: str
    data_digest: str
    data_origin: Origin
    code_version: str
    source_digest: str
    own_sources: dict[str, str] = Field(default_factory=dict)
    machine: Machine
    engine: str
    planning_model: str
    status: Status = "created"
    coverage: dict[str, JsonValue] = Field(default_factory=dict)
    budget: Facts = Field(default_factory=dict)
    calibration: Facts = Field(default_factory=dict)
    runtime: Facts = Field(default_factory=dict)
    backbone: dict[str, JsonValue] = Field(default_factory=dict)
    warnings: tuple[Text, ...] = ()
    parent: str | None = None
    finished: str | None = None
    note: Text = ""
    num_resumes: int = 0


class Stages(Record):
    """Seconds per stage of a client's round."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    up_s: float = 0.0
    down_s: float = 0.0


class TensorStat(Record):
    """A statistic that a client reported: all ``values`` of a small tensor, a summary of a large one."""

    shape: tuple[int, ...]
    mean: float
    sha256: str
    values: tuple[float, ...] = ()


class ClientRecord(Record):
    """What one client did; groups are named by ``selection_text.tokens``: ``fusion.B`` or ``encoder.acc.0[lora_a;r4]``.

    ``output`` and ``taps``: the stages that its task read, where not the last one alone; ``omit_absent``: without those
    of absent sensors. Bytes are those that were charged (``costs.accounting``), all else is what was done.
    """

    client: int
    view: str
    phase: str
    epochs: int
    trained: tuple[str, ...]
    uploaded: tuple[str, ...]
    bytes_down: int
    bytes_up: int
    num_windows: int
    num_steps: int
    engine: str
    loss: float
    measured_stages: Stages
    args: dict[str, float] = Field(default_factory=dict)
    sq_norm: dict[str, float] = Field(default_factory=dict)
    stats: dict[str, TensorStat] = Field(default_factory=dict)
    taps: tuple[str, ...] = ()
    output: str | None = None
    extra_flops: float = 0.0  # beside stages and optimizer
    omit_absent: bool = False


class ClientCostRecord(Record):
    """One client's simulated round; ``wait_s`` is idle time until the slowest client is done."""

    client: int
    times: Stages
    wait_s: float
    energy_j: float


class CostRecord(Record):
    """A round under one time model."""

    round_s: float
    energy_j: float
    clients: tuple[ClientCostRecord, ...]


class Totals(Record):
    """Sums over all rounds so far, the bootstrap included."""

    time_s: float = 0.0
    energy_j: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0


class FedAvgRecord(Record):
    """What a FedAvg round of the same participants would have taken: the 1.00x of ``speedup``."""

    round_s: float
    energy_j: float


class Metrics(Record):
    """An evaluation (docs: metrics); ``confusion`` is the canonical model's (subjects, classes, classes), rows true."""

    f1: float | None
    f1_fleet: float | None = None
    f1_rare: float | None = None
    accuracy: float | None = None
    num_windows: int = 0
    f1_by_modality: dict[str, float] = Field(default_factory=dict)
    f1_by_class: tuple[float, ...] = ()
    f1_by_subject: dict[str, float] = Field(default_factory=dict)
    f1_rare_by_subject: dict[str, float] = Field(default_factory=dict)
    f1_fleet_by_subject: dict[str, float] = Field(default_factory=dict)
    f1_by_client: dict[int, float] = Field(default_factory=dict)
    scores: dict[str, float] = Field(default_factory=dict)
    confusion: tuple[tuple[tuple[int, ...], ...], ...] = ()

    @property
    def headline(self) -> float | None:
        """The F1 that tables lead with: of clients' own models where they have such, else of the canonical model."""
        return self.f1 if self.f1_fleet is None else self.f1_fleet


class RoundRecord(Record):
    """One round (a line of ``rounds.jsonl``); ``costs`` and ``totals`` by time model, ``rejected`` gives reasons.

    ``divergence`` is Eq. (5) of this round, ``d_bar`` its moving average, Eq. (6); ``pairwise`` holds (client, client,
    cosine) of a group's updates; ``silhouettes`` by number of clusters, where one was chosen (the largest); ``metrics``
    are of the test part, ``validation`` of the validation part; ``fedavg`` is by time model and empty where everyone
    took part (then it is the run's ``fedavg_reference``); ``server_s``: real seconds of aggregation, learning included.
    """

    round: int
    phase: str
    wall_s: float
    ended_unix_s: float
    participants: tuple[int, ...]
    clients: tuple[ClientRecord, ...]
    costs: dict[str, CostRecord]
    totals: dict[str, Totals]
    model_sha256: str
    rejected: dict[int, Text] = Field(default_factory=dict)
    metrics: Metrics | None = None
    validation: Metrics | None = None
    d_bar: dict[str, float] = Field(default_factory=dict)
    divergence: dict[str, float] = Field(default_factory=dict)
    pairwise: dict[str, tuple[tuple[int, int, float], ...]] = Field(default_factory=dict)
    silhouettes: dict[str, float] = Field(default_factory=dict)
    deadline_s: float | None = None
    speedup: float | None = None
    fedavg: dict[str, FedAvgRecord] = Field(default_factory=dict)
    trained_fraction: float | None = None
    moved_bytes: int = 0
    server_s: float = 0.0

    @property
    def loss(self) -> float | None:
        """Mean training loss over the clients that counted, weighted by their windows; none where nobody trained."""
        counted = [c for c in self.clients if c.client not in self.rejected]
        windows = sum(c.num_windows for c in counted)
        return sum(c.loss * c.num_windows for c in counted) / windows if windows else None


def comparable(record: Record) -> JsonValue:
    """A record as JSON without ``WALL_FIELDS``: equal for two computations of the same thing."""
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


def refuse_other_schema(found: JsonValue, where: Path) -> None:
    """Refuses what another version of the schema wrote, before any of its fields are read.

    Raises:
        UserError: no version, an older or a newer one.
    """
    if found == SCHEMA_VERSION:
        return
    newer = isinstance(found, int) and found > SCHEMA_VERSION
    fix = "upgrade relief-ray" if newer else "read it with the release that wrote it, or run the cell again elsewhere"
    raise UserError(f"{where}: schema_version is {found!r}, expected {SCHEMA_VERSION}; {fix}")
