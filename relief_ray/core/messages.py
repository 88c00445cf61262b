"""Messages between server and clients, and the values that a round is made of.

Legend: ``S_n`` the groups that client ``n`` trains, ``Delta = local - global`` its update, ``N`` the number of clients,
``M`` of modalities, ``K`` of classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn, TypeAlias

import torch
from torch import Tensor

from relief_ray.core.groups import GroupId, ParamGroup, Params, Selection
from relief_ray.support.errors import LeftOut

# A client's round as it was measured on its device. No two clocks are compared: every duration is of one machine.


@dataclass(frozen=True, kw_only=True, slots=True)
class OnDevice:
    """Measurements that a device made of one client's round; None where it does not tell.

    Attributes:
        host: its host name.
        device: ``cpu``, or ``cuda: `` and the GPU's name.
        down_s: seconds from the request for the model until it is in this process.
        call_s: seconds of the whole call: download, training, packing of the answer.
        energy_j: joules of the whole board during the call.
        energy_of: the rails that were read, e.g. ``VDD_IN``.
        energy_by_rail: joules of each rail; one may feed others.
        energy_dropped: share of the power samples that are missing.
        power_mode: name of the board's power mode.
        temperature_c: hottest zone at the end, degrees Celsius.
        throttled: whether the board slowed itself down.
    """

    host: str
    device: str
    down_s: float | None = None
    call_s: float | None = None
    energy_j: float | None = None
    energy_of: str | None = None
    energy_by_rail: Mapping[str, float] = field(default_factory=dict)
    energy_dropped: float | None = None
    power_mode: str | None = None
    temperature_c: float | None = None
    throttled: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRound:
    """One client's measured round.

    Attributes:
        on_device: measurements of its device.
        up_s: seconds from the moment at which the server heard that the answer is ready until it was there.
        wait_s: seconds from then until the round's training was over.
        bytes_down: bytes of the model and the task, as sent.
        bytes_up: bytes of the answer, as sent.
    """

    on_device: OnDevice
    up_s: float | None
    wait_s: float
    bytes_down: int
    bytes_up: int


ClientId = int
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
ClientState = Mapping[str, Tensor]
NO_STATE: ClientState = {}
Models = Mapping[str, Params]
States = Mapping[ClientId, ClientState]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientInfo:
    """A client as the server knows it.

    Attributes:
        id: position in the fleet, 0 .. N - 1.
        name: name for people.
        device: name of its device type, e.g. ``A``.
        modalities: sensors that it has, ``M_n``, in canonical order.
        num_windows: number of its training windows, ``n_k``.
    """

    id: ClientId
    name: str
    device: str
    modalities: tuple[str, ...]
    num_windows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """All clients of a run.

    Attributes:
        clients: clients in id order.
        modalities: all ``M`` modalities in canonical order, rare ones last.
        types: names of the device types in order of capability, most first; empty: in the order of the alphabet.
    """

    clients: tuple[ClientInfo, ...]
    modalities: tuple[str, ...]
    types: tuple[str, ...] = ()

    def __getitem__(self, client: ClientId) -> ClientInfo:
        """Return the client with that id."""
        return self.clients[client]

    def __len__(self) -> int:
        """Return the number of clients, ``N``."""
        return len(self.clients)

    @property
    def order(self) -> tuple[str, ...]:
        """Names of the device types in order of capability."""
        return self.types or tuple(sorted({c.device for c in self.clients}))

    def cohort(self, modality: str) -> tuple[ClientId, ...]:
        """Return ``C_m``, the clients that have ``modality`` (Section III-B)."""
        return tuple(c.id for c in self.clients if modality in c.modalities)

    def rare(self) -> tuple[str, ...]:
        """Modalities of the smallest cohort(s); none where all cohorts are equal."""
        sizes = {m: len(self.cohort(m)) for m in self.modalities}
        return tuple(m for m, size in sizes.items() if size == min(sizes.values()) < max(sizes.values()))


def apportion(number: int, shares: Sequence[float]) -> list[int]:
    """Split ``number`` into whole numbers in proportion to ``shares``, which need not sum to 1.

    What rounding down leaves goes to the largest remainders, ties to the first: 100 by 3/3/2 is 38/37/25.
    """
    total = sum(shares)
    counts = [int(number * share // total) for share in shares]
    order = sorted(range(len(shares)), key=lambda i: -(number * shares[i] % total))
    for i in order[: number - sum(counts)]:
        counts[i] += 1
    return counts


# Local epochs of a round: more would run for days.
MAX_EPOCHS: Final = 100_000
# Types of tensors that a checkpoint can hold, in the order of the safetensors format: strictest alignment first.
STORED_TYPES: Final = (
    *(torch.int64, torch.float64, torch.float32, torch.int32, torch.bfloat16),
    *(torch.float16, torch.int16, torch.int8, torch.uint8, torch.bool),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerState:
    """State of the server between two rounds.

    Attributes:
        models: models by name ("global", "cluster.2"): each a float32 vector per group.
        tensors: further tensors of the strategy, e.g. ``d_bar``.
        facts: further values of the strategy that JSON can hold.
    """

    models: Mapping[str, Params]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, Json] = field(default_factory=dict)


# Phase of a round in which all participants train everything, before groups can be ranked.
BOOTSTRAP: Final = "bootstrap"


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """Task of one client in one round.

    Attributes:
        client: id of the client.
        down: parts of groups that it receives.
        train: parts of groups that it trains, ``S_n``.
        up: parts of groups that it sends back; within ``train``.
        epochs: local epochs, at least 1.
        keep: parts of groups that are stored in its personal state and never sent.
        weight: weight of its update in a mean, at least 0; read by reductions that weigh tasks (``by_task``).
        view: name of the server's model that it starts from.
        phase: label of the method's phase, for records.
        taps: stages whose outputs the objective reads.
        output: stage that yields the logits; None: the backbone's. Stages behind it and behind ``taps`` do not run.
        lr_scale: learning-rate multiplier by group; 1 where none is given.
        args: numbers for the client's program, e.g. FedProx's ``mu``.
        step_flops: FLOPs of an optimizer step beside stages and optimizer, for the time models.
        lora_scale: multiplier on LoRA's ``s = alpha / r``.
        omit_absent: whether networks of sensors that it lacks are not on the client: their features are then 0.
        charged_up: groups that the upload is charged for, where a table of costs says more than ``up``; None: ``up``.
    """

    client: ClientId
    down: Selection
    train: Selection
    up: Selection
    epochs: int
    keep: Selection = field(default_factory=dict)
    weight: float = 1.0
    view: str = "global"
    phase: str = "train"
    taps: frozenset[str] = frozenset()
    output: str | None = None
    lr_scale: Mapping[GroupId, float] = field(default_factory=dict)
    args: Mapping[str, float] = field(default_factory=dict)
    step_flops: float = 0.0
    lora_scale: float = 1.0
    omit_absent: bool = False
    charged_up: Selection | None = None

    def holds(self, group: GroupId) -> bool:
        """Whether the client has values of the group: received now, or its own from before."""
        return group in self.down or group in self.train or group in self.keep


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTimes:
    """Seconds of a device in a round; what remains of the round is waiting.

    Attributes:
        forward_s: forward passes.
        backward_s: backward passes.
        optimizer_s: optimizer steps.
        up_s: upload.
        down_s: download.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    up_s: float = 0.0
    down_s: float = 0.0

    @property
    def compute_s(self) -> float:
        """Seconds of forward, backward and optimizer."""
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def link_s(self) -> float:
        """Seconds of download and upload."""
        return self.up_s + self.down_s

    @property
    def busy_s(self) -> float:
        """Seconds of all stages: everything but waiting."""
        return self.compute_s + self.link_s


@dataclass(frozen=True, slots=True)
class Power:
    """Watts of a device while it computes, communicates and waits."""

    active_w: float
    comm_w: float
    idle_w: float

    def energy_j(self, times: StageTimes, wait_s: float) -> float:
        """Joules: active power while computing, communication power on the link, idle power while waiting."""
        return self.active_w * times.compute_s + self.comm_w * times.link_s + self.idle_w * wait_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Computation that a client carried out: the input of every time model.

    Attributes:
        num_windows: training windows per epoch.
        epochs: local epochs.
        num_steps: optimizer steps of all epochs.
        engine: how steps were computed.
        loss: mean training loss over all epochs.
        measured: real seconds of each stage on this machine.
        extra_flops: FLOPs of all steps beside stages and optimizer.
    """

    num_windows: int
    epochs: int
    num_steps: int
    engine: str
    loss: float
    measured: StageTimes
    extra_flops: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """Bookkeeping of a client's round: an update without its values.

    Attributes:
        assignment: the task as the client refined it.
        work: the computation that it carried out.
        bytes_down: length of the encoded download; until the update is sent, the bytes beside it.
        bytes_up: length of the encoded upload, and likewise.
        stats: statistics that the client's program reports, by name.
        sq_norm: ``|Delta_j|^2`` by group.
        probes: trial steps beside the task, as (task, number of windows); they are charged.
        underflow: share of the update's nonzero values that its format made 0.
    """

    assignment: Assignment
    work: Work
    bytes_down: int = 0
    bytes_up: int = 0
    stats: Mapping[str, Tensor] = field(default_factory=dict)
    sq_norm: Mapping[GroupId, float] = field(default_factory=dict)
    probes: tuple[tuple[Assignment, int], ...] = ()
    underflow: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """Answer of a client.

    Attributes:
        receipt: its bookkeeping.
        delta: ``Delta_j`` by group, float32: values of ``up`` only, local minus global.
        state: the client's new personal state.
        kept: by group a bool for each value of ``delta``: the others are 0 and are not sent, a bitmap travels in their
            place; empty: all values are sent.
        refusal: why its format cannot hold it; empty: it can.
        payload: its encoded form, where that travels in place of ``delta``.
    """

    receipt: Receipt
    delta: Params
    state: ClientState = field(default_factory=dict)
    kept: Mapping[GroupId, Tensor] = field(default_factory=dict)
    refusal: str = ""
    payload: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightedSum:
    """Aggregation by weighted sums: updates may be added up on the workers as they arrive.

    Attributes:
        weight: weight ``w_n`` of a client's update of a group.
        bucket: name of the sum that a task's update belongs to, e.g. "global".
    """

    weight: Callable[[ParamGroup, ClientInfo, Assignment], float]
    bucket: Callable[[Assignment], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Collect:
    """Aggregation that needs single updates: the server receives every one."""


Reduction = WeightedSum | Collect


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSum:
    """Sums of one group over the clients that uploaded it.

    Attributes:
        weight: ``sum_n w_n``.
        weighted: ``sum_n w_n Delta_n``, float64.
        plain: ``sum_n Delta_n``, float64; the same tensor where all weights are 1.
        sq_norm: ``sum_n |Delta_n|^2``.
        members: ids of these clients, ascending.
    """

    weight: float
    weighted: Tensor
    plain: Tensor
    sq_norm: float
    members: tuple[ClientId, ...]


class NotCollected(LookupError):
    """Raised if an aggregation reads a part of ``Reduced`` that its reduction does not fill."""


class _NotKept:
    """Placeholder for the part of ``Reduced`` that a reduction leaves empty; reading it names the reduction to take."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __getattr__(self, name: str) -> NoReturn:  # .get, .items, .index, ..
        if name.startswith("__"):
            raise AttributeError(name)  # copies and pickles look for such names
        self._refuse()

    def _refuse(self, *_: object) -> NoReturn:
        raise NotCollected(self._message)

    __getitem__ = __len__ = __iter__ = __contains__ = __bool__ = _refuse


_NO_UPDATES: Any = _NotKept(
    "reduced.updates is not kept: the reduction of this method is a WeightedSum, which adds updates up where they "
    "arise; read reduced.sums, or build Strategy(.., reduction=Collect()) to get single updates"
)
_NO_SUMS: Any = _NotKept(
    "reduced.sums is not made: the reduction of this method is Collect(), which brings single updates; read "
    "reduced.updates, or build Strategy(.., reduction=self.reduction()) to get weighted sums"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduced:
    """Input of the aggregation.

    Attributes:
        sums: sums by bucket and group (``WeightedSum``).
        receipts: receipts of all usable updates, in client order.
        updates: single updates in client order (``Collect``).
    """

    sums: Mapping[str, Mapping[GroupId, GroupSum]]
    receipts: tuple[Receipt, ...]
    updates: Sequence[Update] = ()

    def under(self, reduction: Reduction) -> Reduced:
        """Return a copy for this reduction; reading the part that it leaves empty raises ``NotCollected``.

        A method that loops over an empty part would leave its model as it is without a word.
        """
        return replace(self, sums=_NO_SUMS) if isinstance(reduction, Collect) else replace(self, updates=_NO_UPDATES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """Outcome of a round's local training.

    Attributes:
        reduced: input of the aggregation.
        states: new personal state by client.
        rejected: reason by client that was left out: its update is missing or not used.
        refused: receipts of rejected clients that did answer.
        pairwise: updates of the fusion blocks that are compared in pairs.
        moved_bytes: bytes that the process which runs the rounds sent and received, those of the model once a node.
        measured: measured rounds by client that answered, in a physical run.
    """

    reduced: Reduced
    states: States
    rejected: Mapping[ClientId, LeftOut] = field(default_factory=dict)
    refused: tuple[Receipt, ...] = ()
    pairwise: tuple[Update, ...] = ()
    moved_bytes: int = 0
    measured: Mapping[ClientId, MeasuredRound] = field(default_factory=dict)

    @property
    def worked(self) -> tuple[Receipt, ...]:
        """Receipts of all clients that cost time, energy and bytes, in client order."""
        return tuple(sorted((*self.reduced.receipts, *self.refused), key=lambda r: r.assignment.client))


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalTarget:
    """Model to evaluate.

    Attributes:
        label: name of its confusion matrices.
        view: name of the server's model that it is made of.
        client: client whose personal state replaces ``keep``; None: the mean of all clients' states.
        keep: parts of groups that are taken from personal state.
        modalities: sensors that it is given; None: all.
        output: stage that yields the logits; None: the backbone's last.
        mean_of: weight by client in that mean.
        omit_absent: whether features of sensors that it is not given are 0, as in ``Assignment``.
    """

    label: str
    view: str = "global"
    client: ClientId | None = None
    keep: Selection = field(default_factory=dict)
    modalities: tuple[str, ...] | None = None
    output: str | None = None
    mean_of: Mapping[ClientId, float] = field(default_factory=dict)
    omit_absent: bool = False


def masked_label(label: str, sensors: Sequence[str], modalities: Sequence[str]) -> str:
    """Name of the confusion matrices of a model given some sensors: ``global|acc+gyro``, with all ``global``."""
    return label if len(sensors) == len(modalities) else f"{label}|{'+'.join(sensors)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientView:
    """View of a client on the test: the ``modalities`` that it owns, and its subjects' rows in confusion matrices."""

    client: ClientId
    modalities: tuple[str, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalPlan:
    """Models that a strategy wants evaluated.

    Attributes:
        canonical: the strategy's one model (``f1``); None where it has none.
        clients: what each client runs: a model of its own (``f1_fleet``), or the canonical one up to an exit.
        personal: whether ``clients`` are models of their own, which then lead in tables.
    """

    canonical: EvalTarget | None
    clients: tuple[EvalTarget, ...] = ()
    personal: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientCost:
    """Simulated round of one client.

    Attributes:
        client: id of the client.
        times: seconds of each stage.
        wait_s: seconds of waiting for the slowest client.
        energy_j: joules of the whole round.
    """

    client: ClientId
    times: StageTimes
    wait_s: float
    energy_j: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundCost:
    """Simulated round under one time model.

    Attributes:
        clients: costs of all clients, in client order.
        round_s: seconds until the slowest client is done.
        energy_j: joules of the whole fleet.
    """

    clients: tuple[ClientCost, ...]
    round_s: float
    energy_j: float

    @property
    def compute_s(self) -> float:
        """Longest compute time of a client: the round's length if links took no time."""
        return max((c.times.compute_s for c in self.clients), default=0.0)

    @property
    def link_share(self) -> float:
        """Share of its busy time that the slowest client spends on the link; 0 where nobody works."""
        slowest = max((c.times for c in self.clients), key=lambda t: t.busy_s, default=StageTimes())
        return slowest.link_s / slowest.busy_s if slowest.busy_s else 0.0
