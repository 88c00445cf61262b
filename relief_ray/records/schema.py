"""Frozen JSON models: a ``RunRecord`` per run, a ``RoundRecord`` per round; tables are functions of these two alone.

Costs and times in them are the messages' own dataclasses; how a round's record becomes a line of the ledger is
``records.ledger``'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, cast, get_args
from uuid import uuid4

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic_core import from_json, to_json

from relief_ray.core.groups import WHOLE, Kind, Part, Selection
from relief_ray.core.messages import MeasuredRound, Power, RoundCost, StageTimes
from relief_ray.plugins.parts import OwnParts
from relief_ray.support.errors import Cause, UserError
from relief_ray.support.files import page, read_whole, values_in
from relief_ray.support.frozen import FrozenConfig
from relief_ray.support.masking import mask_text, redact

SCHEMA_VERSION: Final = 4

# Fields that depend on real time or on the network: two records of the same computation may differ in these alone.
WALL_FIELDS = frozenset(
    "id created finished note num_resumes wall_s ended_unix_s measured_stages moved_bytes server_s runtime "
    "physical".split()
)

Origin = Literal["real", "SYNTHETIC"]


def _share(value: float) -> float:
    if value < 0.0 or value > 1.0 + 1e-9:
        raise ValueError(f"found {value:g}, expected a share, 0 to 1")
    return value


Text = Annotated[str, AfterValidator(mask_text)]
# F1 and other parts of a whole; NaN where it is undefined, a hair above 1 where floats were added up.
Share = Annotated[float, AfterValidator(_share)]
Facts = Annotated[dict[str, JsonValue], AfterValidator(redact)]


class Recorded(dict[str, JsonValue]):
    """A configuration out of a record: code that it names is somebody else's word (``config.experiment.parse``)."""


RecordedConfig = Annotated[dict[str, JsonValue], AfterValidator(lambda values: Recorded(redact(values)))]


class Record(FrozenConfig):
    """Base of all records; NaN and infinities are kept and written as strings."""

    model_config = ConfigDict(allow_inf_nan=True, ser_json_inf_nan="strings")


def section(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Settings of a section of a recorded configuration; empty where there is none."""
    settings = config.get(name)
    return dict(settings) if isinstance(settings, dict) else {}


def config_value(config: Mapping[str, JsonValue], path: str) -> JsonValue:
    """A value of a recorded configuration by its dotted path; None where there is none."""
    node: JsonValue = dict(config)
    for key in path.split("."):
        node = node.get(key) if isinstance(node, dict) else None
    return node


def has_folds(config: Mapping[str, JsonValue]) -> bool:
    """True where the split holds subjects out by the number of a fold: no other split has folds."""
    is_held_out = config_value(config, "data.split") in (None, "held_out_subject")
    return is_held_out and not config_value(config, "data.test_subjects")


def comparable(record: Record) -> JsonValue:
    """Return a record as JSON without ``WALL_FIELDS``: equal for two computations of the same round."""
    left_out: dict[str, Any] = dict.fromkeys(WALL_FIELDS, True) | {"clients": {"__all__": {"measured_stages"}}}
    value: JsonValue = from_json(to_json(record.model_dump(exclude=left_out, warnings=False), inf_nan_mode="strings"))
    return value


_Page = TypeVar("_Page", bound=BaseModel)


def read_page(path: Path, kind: type[_Page]) -> _Page:
    """Read a sealed JSON file.

    Raises:
        OSError: there is none, or it cannot be read.
        UserError: it is of another schema version.
        ValueError: it is no JSON, its bytes were changed, or a field is wrong: the first one is named.
    """
    try:
        content = values_in(read_whole(path))
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    # Before any of its fields are read.
    if "schema_version" in kind.model_fields and (version := content.get("schema_version")) != SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        fix = (
            "upgrade relief-ray" if newer else "read it with the release that wrote it, or run the cell again elsewhere"
        )
        raise UserError(f"{path}: schema_version is {version!r}, expected {SCHEMA_VERSION}; {fix}")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def page_of(record: BaseModel, *, exclude_defaults: bool = False) -> bytes:
    """Write a record as ``read_page`` reads it: sealed JSON, a field a line."""
    return page(record.model_dump_json(indent=1, exclude_defaults=exclude_defaults))


# Text form of a selection of parameter groups: ``fusion.B``, ``encoder.acc.0[lora_a;r4]``.

_TOKEN = re.compile(r"(?P<group>[^\[\]]+)(?:\[(?P<kinds>[a-z_,]*);(?P<rank>r\d+)?(?:;o(?P<rows>[\d.e-]+))?\])?")


def tokens(selection: Selection) -> tuple[str, ...]:
    """Write a selection as text: ``fusion.B`` is a whole group, ``encoder.acc.0[lora_a,lora_b;r4]`` a part of one.

    ``head.1[;;o0.75]``: three quarters of the output rows.
    """
    return tuple(j if part == WHOLE else f"{j}[{_written(part)}]" for j, part in selection.items())


def selection(texts: tuple[str, ...]) -> Selection:
    """Read a selection from text, the inverse of ``tokens``.

    Raises:
        ValueError: a text that ``tokens`` does not write.
    """
    return dict(_part(text) for text in texts)


def _written(part: Part) -> str:
    kinds = "" if part.kinds is None else ",".join(sorted(part.kinds)) or "none"
    text = f"{kinds};" if part.rank is None else f"{kinds};r{part.rank}"
    return text if part.rows is None else f"{text};o{part.rows!r}"


def _part(text: str) -> tuple[str, Part]:
    match = _TOKEN.fullmatch(text)
    names = (match["kinds"] or "").split(",") if match else []
    if match is None or not set(names) <= {*get_args(Kind), "", "none"}:
        raise ValueError(f"selection {text!r}, expected group or group[kinds;rank], e.g. encoder.acc.0[lora_a;r4]")
    kinds = frozenset(cast(Kind, n) for n in names if n != "none") if names != [""] else None
    rank, rows = (int(match["rank"][1:]) if match["rank"] else None), match["rows"]
    return match["group"], Part(kinds=kinds, rank=rank, rows=float(rows) if rows else None)


class Totals(Record):
    """Sums over all rounds so far, the bootstrap included."""

    time_s: float = 0.0
    energy_j: float = 0.0
    bytes_up: int = Field(default=0, ge=0)
    bytes_down: int = Field(default=0, ge=0)


class FedAvgRecord(Record):
    """Simulated FedAvg round of the same participants: the 1.00x of ``speedup``.

    Attributes:
        round_s: its length in seconds.
        energy_j: joules of the whole fleet.
        compute_s: longest compute time of a client.
        link_share: share of the slowest client's busy time that is link.
    """

    round_s: float
    energy_j: float
    compute_s: float
    link_share: float


# Stages of a client's training that a device measures.
_STAGES = ("forward_s", "backward_s", "optimizer_s")


class PhysicalRecord(Record):
    """One client's measured round (``runtime.physical``); None where its device does not tell.

    Attributes:
        host: name of the device's host.
        device: ``cpu``, or ``cuda: `` and the GPU's name.
        down_s: seconds from the request for the model until the device had it.
        forward_s: seconds of forward passes.
        backward_s: seconds of backward passes.
        optimizer_s: seconds of optimizer steps.
        up_s: seconds from the ready answer until the server had it.
        wait_s: seconds from then until the last client of the round was done.
        call_s: seconds of the device's whole call: download, training, packing.
        bytes_down: bytes that were sent to it.
        bytes_up: bytes that it sent.
        energy_j: joules of the whole board during the call.
        energy_of: rails that were read.
        energy_by_rail: joules of each rail that could be read; one may feed others.
        energy_dropped: share of the power samples that are missing.
        power_mode: name of the board's power mode.
        temperature_c: hottest zone at the end, degrees Celsius.
        throttled: whether the board slowed itself down.
    """

    host: str
    device: str
    down_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    optimizer_s: float | None = None
    up_s: float | None = None
    wait_s: float | None = None
    call_s: float | None = None
    bytes_down: int | None = None
    bytes_up: int | None = None
    energy_j: float | None = None
    energy_of: str | None = None
    energy_by_rail: dict[str, float] = Field(default_factory=dict)
    energy_dropped: float | None = None
    power_mode: str | None = None
    temperature_c: float | None = None
    throttled: bool | None = None

    @property
    def compute_s(self) -> float | None:
        """Seconds of forward, backward and optimizer; None where they were not measured."""
        stages = self.forward_s, self.backward_s, self.optimizer_s
        return None if None in stages else sum(s for s in stages if s is not None)


def physical_record(measured: MeasuredRound, stages: StageTimes | None) -> PhysicalRecord:
    """Convert a measurement; ``stages``: the client's measured stages, None where its receipt is missing."""
    times = {} if stages is None else {name: getattr(stages, name) for name in _STAGES}
    known = asdict(measured)
    return PhysicalRecord(**known.pop("on_device"), **known, **times)


# Status of a run as `run.json` keeps it, and of a cell as its folder shows it: the only words for either, everywhere.
RunStatus = Literal["running", "interrupted", "stopped", "failed", "done"]
Status = Literal["planned", RunStatus, "stale", "untested"]


class LeftOutFacts(Record):
    """Client that a round went on without; the reason in words is in ``RoundRecord.rejected``.

    Attributes:
        device: name of its device type.
        cause: ``timeout``: no answer in time; ``lost``: its process or node was lost; ``update``: a check refused what
            it sent.
        since: first round of the unbroken row of rounds that it was left out of for this cause.
    """

    device: str
    cause: Cause
    since: int


class LeftOutRecord(Record):
    """Client that rounds of a run went on without, or that a void round lacked.

    Attributes:
        client: id of the client.
        device: name of its device type.
        cause: as in ``LeftOutFacts``.
        rounds: numbers of these rounds, ascending; one that is not in the ledger was void.
        why: the reason in words, as of the last of them.
    """

    client: int
    device: str
    cause: Cause
    rounds: tuple[int, ...]
    why: Text


class Machine(Record):
    """The machine of a run: equal bits are promised for equal ``cpu`` and ``num_threads`` only.

    Attributes:
        cpu: name of the processor.
        architecture: e.g. ``x86_64``.
        system: operating system.
        num_cores: number of its cores that the process may use.
        num_threads: torch threads of the process that made the record.
        device: ``cpu``, or ``cuda: `` and the GPU's name.
        python: version of Python.
        torch: version of torch.
        numpy: version of NumPy.
    """

    cpu: str
    architecture: str
    system: str
    num_cores: int
    num_threads: int
    device: str = "cpu"
    python: str
    torch: str
    numpy: str


class MethodFacts(Record):
    """Facts that a method states about itself when a run begins; tables, figures and references go by them.

    Attributes:
        name, title: the method's name in tables and figures, and its own name in words.
        kind: as in ``StrategyConfig``: it decides the method's place in tables.
        citation: key of its entry in ``citations.bib``, or a BibTeX entry; None without a paper.
        reconstructed: its paper could not be read in full.
        pooled: one client holds the data of all, so a fleet's speedup and bytes have no meaning.
        paper_accounting: what its round costs with ``costs.accounting=table``.
        dense_stand_in, search_trades_speed: footnotes, as in ``StrategyConfig``; empty where there is nothing to say.
        varied: fields in which a user's own method differs from its class's defaults; None: not known.
    """

    name: str
    title: str
    kind: str
    citation: str | None = None
    reconstructed: bool = False
    pooled: bool = False
    paper_accounting: Literal["method", "fedavg"] = "method"
    dense_stand_in: str = ""
    search_trades_speed: str = ""
    varied: tuple[str, ...] | None = None

    @property
    def is_bound(self) -> bool:
        """Whether it bounds what methods can reach: tables set it apart and no method is ranked against it."""
        return self.kind == "bound"

    @property
    def is_fitted(self) -> bool:
        """Whether its settings were chosen so that its costs agree with the paper's."""
        return self.kind.endswith("FITTED")


VERIFIED = "verified"
# Where the first round would take long.
PARTLY = "its start and last round came out the same when repeated"


def _new_id() -> str:
    """Return the id of a run that begins: no other one has it."""
    return uuid4().hex


class RunFacts(Record):
    """What is known of a run wherever it is recorded: in its folder (``RunRecord``) and in committed results.

    Attributes:
        cell: id of the result: configuration and data.
        strategy: label of the method: a preset's name or an import path.
        method: facts of the method.
        config: all settings, credentials masked.
        config_hash: sha256 of the configuration's identity.
        data_digest: sha256 of the data.
        data_origin: real data, or SYNTHETIC.
        data_title: one line of the dataset about itself.
        code_version: version of this package.
        source_digest: sha256 of its sources.
        own_sources: sha256 of the code, by file, of the user's own method, backbone or dataset.
        own_parts: those of these files that are parts of a notebook or script, with their text.
        machine: the machine that began the run.
        engine: how training steps are computed.
        planning_model: name of the time model that allocation plans with.
    """

    cell: str
    strategy: str
    method: MethodFacts
    config: RecordedConfig
    config_hash: str
    data_digest: str
    data_origin: Origin
    data_title: Text = ""
    code_version: str
    source_digest: str
    own_sources: dict[str, str] = Field(default_factory=dict)
    own_parts: OwnParts = Field(default_factory=dict)
    machine: Machine
    engine: str
    planning_model: str


class RunRecord(RunFacts):
    """Facts of one run (``run.json``).

    Attributes:
        schema_version: version of these models.
        id: id of this run alone, hexadecimal; each line of its ledger bears it.
        name: name for people.
        created: UTC, ISO 8601.
        data_folder: where its raw files were found.
        status: how far the run is; ``interrupted`` until its driver starts, ``done`` after its last round.
        coverage: windows per client and class.
        fleet: ``modalities`` in canonical order, and ``clients`` with id, device and modalities; the ledger's lines
            give both by number.
        devices: power by device type, from which clients' joules follow.
        groups: names of the model's parameter groups, in the layout's order; the ledger's lines give them by number.
        budget: ``deadline_s`` (T*) and ``fedavg_reference``, FedAvg's round by time model.
        calibration: parameters of all time models.
        runtime: where clients ran.
        backbone: facts about the frozen weights in it.
        warnings: lines for the user.
        data_warnings: oddities of the data, as `data describe` shows them.
        parent: the grid that the run is a cell of.
        finished: UTC, ISO 8601.
        note: why the run failed or was stopped early, or why its last round was void; empty otherwise.
        num_resumes: how often the run was resumed.
        left_out: clients that rounds went on without, or that a void last round lacked, by cause; written when the run
            ends or stops.
        own_code: what came of computing parts of a run with a user's own code once more: ``verified`` (also ``, but
            reads ..``), ``PARTLY``, ``differs in ..``, ``not verified: ..``; empty where nobody has done it.
        own_code_s: seconds that this took.
    """

    schema_version: Literal[4] = SCHEMA_VERSION
    id: str = Field(default_factory=_new_id, pattern="^[0-9a-f]+$")
    name: str
    created: str
    data_folder: Text = ""
    status: RunStatus = "interrupted"
    coverage: dict[str, JsonValue] = Field(default_factory=dict)
    fleet: Facts = Field(default_factory=dict)
    groups: tuple[str, ...] = ()
    devices: dict[str, Power] = Field(default_factory=dict)
    budget: Facts = Field(default_factory=dict)
    calibration: Facts = Field(default_factory=dict)
    runtime: Facts = Field(default_factory=dict)
    backbone: dict[str, JsonValue] = Field(default_factory=dict)
    warnings: tuple[Text, ...] = ()
    data_warnings: tuple[Text, ...] = ()
    parent: str | None = None
    finished: str | None = None
    note: Text = ""
    num_resumes: int = 0
    left_out: tuple[LeftOutRecord, ...] = ()
    own_code: Text = ""
    own_code_s: float = 0.0

    @property
    def data_notes(self) -> tuple[str, ...]:
        """``data_warnings`` as lines that name the dataset."""
        name = config_value(self.config, "data.name") or ""
        return tuple(f"data {name}: {text}" for text in self.data_warnings)


class TensorStat(Record):
    """Statistic that a client reported.

    Attributes:
        shape: shape of the tensor.
        mean: mean of its values; 0 where it has none.
        sha256: of its bits.
        values: all values of a small tensor; empty for a large one.
    """

    shape: tuple[int, ...]
    mean: float
    sha256: str
    values: tuple[float, ...] = ()


class ProbeRecord(Record):
    """A trial beside a client's task: two passes and one optimizer step, which are charged.

    Attributes:
        trained: groups of the trial step.
        num_windows: windows of its two passes together.
        step_flops: FLOPs of the step beside stages and optimizer.
        taps: stages whose outputs its objective read.
        output: stage that yielded the logits; None: the backbone's last.
        omit_absent: whether networks of absent sensors were left out.
    """

    trained: tuple[str, ...]
    num_windows: int
    step_flops: float = 0.0
    taps: tuple[str, ...] = ()
    output: str | None = None
    omit_absent: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientRecord:
    """Work of one client in a round.

    Groups are written by ``tokens``: ``fusion.B`` or ``encoder.acc.0[lora_a;r4]``.

    Attributes:
        client: id of the client.
        view: name of the server's model that it started from.
        phase: label of the method's phase.
        epochs: local epochs.
        trained: groups that it trained.
        uploaded: groups that it sent back.
        bytes_down: download as charged (``costs.accounting``).
        bytes_up: upload as charged.
        num_windows: training windows per epoch.
        num_steps: optimizer steps.
        engine: how steps were computed.
        loss: mean training loss.
        measured_stages: real seconds of computing where it was trained; of its links ``RoundRecord.physical`` tells.
        args: numbers of the task for the client's program.
        sq_norm: ``|Delta_j|^2`` by group.
        stats: statistics that it reported.
        taps: stages whose outputs the objective read.
        output: stage that yielded the logits; None: the backbone's last.
        extra_flops: FLOPs beside stages and optimizer.
        omit_absent: whether it had no networks of sensors that it lacks.
        probes: trials beside the task.
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
    measured_stages: StageTimes = field(default_factory=StageTimes)
    args: dict[str, float] = field(default_factory=dict)
    sq_norm: dict[str, float] = field(default_factory=dict)
    stats: dict[str, TensorStat] = field(default_factory=dict)
    taps: tuple[str, ...] = ()
    output: str | None = None
    extra_flops: float = 0.0
    omit_absent: bool = False
    probes: tuple[ProbeRecord, ...] = ()


class Metrics(Record):
    """Evaluation of a state on one part of the data; F1 and accuracy are shares, 0 to 1 (docs/metrics.md).

    Attributes:
        f1: macro-F1 of the canonical model, all modalities present; None where there is none.
        f1_fleet: mean over clients of the macro-F1 of their own model through their own sensors.
        f1_rare: mean of ``f1_by_modality`` over the smallest cohorts' modalities.
        accuracy: of the canonical model.
        num_windows: number of windows of the part.
        f1_by_modality: macro-F1 of the canonical model with one modality present.
        f1_by_class: F1 of the canonical model by class (K,); None of one that neither occurs nor is predicted.
        f1_by_subject: ``f1`` by subject.
        f1_fleet_by_subject: ``f1_fleet`` by subject.
        f1_by_client: macro-F1 of what each client runs, through its own sensors: its own model, else the one model (up
            to the client's own output, where it has one).
        f1_own_sensors: mean over clients of the macro-F1 of the model that each uses, through its own sensors.
        f1_own_subjects: the same on the windows of the subjects that it trained on; None on held-out subjects.
        scores: registered metrics without a field of their own, by name (``records.metrics``).
        confusion: the canonical model's counts (subjects, K, K), rows true.
    """

    f1: Share | None
    f1_fleet: Share | None = None
    f1_rare: Share | None = None
    accuracy: Share | None = None
    num_windows: int = 0
    f1_by_modality: dict[str, Share] = Field(default_factory=dict)
    f1_by_class: tuple[Share | None, ...] = ()
    f1_by_subject: dict[str, Share] = Field(default_factory=dict)
    f1_fleet_by_subject: dict[str, Share] = Field(default_factory=dict)
    f1_by_client: dict[int, Share] = Field(default_factory=dict)
    f1_own_sensors: Share | None = None
    f1_own_subjects: Share | None = None
    scores: dict[str, float] = Field(default_factory=dict)
    confusion: tuple[tuple[tuple[int, ...], ...], ...] = ()

    @property
    def headline(self) -> float | None:
        """Return the F1 that tables lead with: ``f1_fleet`` where clients have models of their own, else ``f1``."""
        return self.f1 if self.f1_fleet is None else self.f1_fleet


class RoundRecord(Record):
    """One round; ``records.ledger`` writes it as a line of ``rounds.jsonl``.

    Attributes:
        round: its number, from 1 on.
        phase: label of the method's phase; ``idle`` where it gave no tasks.
        wall_s: real seconds of the round.
        ended_unix_s: when it ended, seconds since 1970.
        participants: ids of the clients that got a task.
        clients: work of the clients that answered.
        costs: simulated round by time model.
        totals: sums of all rounds so far by time model.
        model_sha256: hash of the server's whole state after the round.
        rejected: reason by client whose update is missing or was not used.
        left_out: device type and kind of the reason, by client of ``rejected``.
        metrics: evaluation on the test part; None where the round was not evaluated.
        validation: evaluation on the validation part.
        d_bar: moving average of ``divergence`` by group, Eq. (6).
        divergence: divergence of the updates by group, Eq. (5).
        pairwise: (client, client, cosine) of the updates by fusion block.
        diagnostics: what else the method's ``diagnose`` tells of the state, by table and row.
        deadline_s: ``T*`` where the method has one.
        speedup: seconds of FedAvg's round over this round's, by the planning time model.
        speedup_paper: the same for this allocation at the paper's protocol, 1,900 windows a client and 5 epochs.
        fedavg: FedAvg's round by time model; empty where all clients took part (then ``RunRecord.budget`` has it).
        trained_fraction: mean over clients of trained values over all values of the plain backbone.
        moved_bytes: bytes that the process which runs the rounds sent and received, those of the model once a node.
        server_s: real seconds of the aggregation.
        physical: measured rounds by client, where clients were computed on devices (``runtime.physical``).
        warnings: lines for the user about what happened by this round, e.g. groups that nobody trains.
    """

    round: int
    phase: str
    wall_s: float
    ended_unix_s: float
    participants: tuple[int, ...]
    clients: tuple[ClientRecord, ...]
    costs: dict[str, RoundCost]
    totals: dict[str, Totals]
    model_sha256: str
    rejected: dict[int, Text] = Field(default_factory=dict)
    left_out: dict[int, LeftOutFacts] = Field(default_factory=dict)
    metrics: Metrics | None = None
    validation: Metrics | None = None
    d_bar: dict[str, float] = Field(default_factory=dict)
    divergence: dict[str, float] = Field(default_factory=dict)
    pairwise: dict[str, tuple[tuple[int, int, float], ...]] = Field(default_factory=dict)
    diagnostics: dict[str, dict[str, float]] = Field(default_factory=dict)
    deadline_s: float | None = None
    speedup: float | None = None
    speedup_paper: float | None = None
    fedavg: dict[str, FedAvgRecord] = Field(default_factory=dict)
    trained_fraction: float | None = None
    moved_bytes: int = 0
    server_s: float = 0.0
    physical: dict[int, PhysicalRecord] = Field(default_factory=dict)
    warnings: tuple[Text, ...] = ()

    @property
    def diagnosed(self) -> dict[str, dict[str, float]]:
        """Tables that the method's ``diagnose`` returned, by the names that it gave them."""
        return ({"d_bar": self.d_bar} if self.d_bar else {}) | self.diagnostics

    @property
    def loss(self) -> float | None:
        """Mean training loss of the clients whose updates counted, weighted by windows; None without any."""
        counted = [c for c in self.clients if c.client not in self.rejected]
        windows = sum(c.num_windows for c in counted)
        return sum(c.loss * c.num_windows for c in counted) / windows if windows else None
