"""What server and clients say to each other. ``S_n``: the groups client ``n`` trains; ``Delta = local - global``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from relief_ray.groups import GroupId, ParamGroup, Params, Selection

ClientId = int
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
ClientState = Mapping[str, Tensor]
NO_STATE: ClientState = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientInfo:
    """A client as the server knows it: ``modalities`` is ``M_n``, ``device`` its type's name."""

    id: ClientId
    name: str
    device: str
    modalities: tuple[str, ...]
    num_windows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """All clients in id order and all ``M`` modalities in canonical order (rare ones last)."""

    clients: tuple[ClientInfo, ...]
    modalities: tuple[str, ...]

    def __getitem__(self, client: ClientId) -> ClientInfo:
        """The client of that id."""
        return self.clients[client]

    def __len__(self) -> int:
        """``N``."""
        return len(self.clients)

    def cohort(self, modality: str) -> tuple[ClientId, ...]:
        """``C_m``: the clients that own ``modality`` (Section III-B)."""
        return tuple(c.id for c in self.clients if modality in c.modalities)

    def rare(self) -> tuple[str, ...]:
        """Modalities of the smallest cohort(s); none where all cohorts are equal."""
        sizes = {m: len(self.cohort(m)) for m in self.modalities}
        return tuple(m for m, size in sizes.items() if size == min(sizes.values()) < max(sizes.values()))


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerState:
    """What the server carries on: ``models`` ("global", "cluster.2"), ``tensors`` (e.g. ``d_bar``), JSON ``facts``."""

    models: Mapping[str, Params]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """What one client does in one round.

    ``view`` names the model it starts from; ``down``, ``train`` (``S_n``), ``up``: which groups travel, learn, return;
    ``lr_scale``: times the common rate; ``keep``: in the client's own state, never sent. Behind ``output`` (the last)
    and ``taps`` nothing runs. ``step_flops``: a step's beside stages and optimizer; ``lora_scale``: times LoRA's s.
    ``omit_absent``: what belongs to sensors that the client lacks is not on it: their features are 0, always.
    """

    client: ClientId
    down: Selection
    train: Selection
    up: Selection
    epochs: int
    keep: Selection = field(default_factory=dict)
    view: str = "global"
    phase: str = "train"
    taps: frozenset[str] = frozenset()
    output: str | None = None
    lr_scale: Mapping[GroupId, float] = field(default_factory=dict)
    args: Mapping[str, float] = field(default_factory=dict)
    step_flops: float = 0.0
    lora_scale: float = 1.0
    omit_absent: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTimes:
    """Seconds a device spends in each stage of a round; waiting is what remains of the round."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    up_s: float = 0.0
    down_s: float = 0.0

    @property
    def compute_s(self) -> float:
        """Forward, backward and optimizer."""
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def link_s(self) -> float:
        """Download and upload."""
        return self.up_s + self.down_s

    @property
    def busy_s(self) -> float:
        """Everything but waiting."""
        return self.compute_s + self.link_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What a client really did: the input of every time model; ``extra_flops``: beside stages and optimizer."""

    num_windows: int
    epochs: int
    num_steps: int
    engine: str
    loss: float
    measured: StageTimes
    extra_flops: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """The bookkeeping half of an update: encoded lengths, the client's ``stats``, ``probes`` beside (task, windows)."""

    assignment: Assignment
    work: Work
    bytes_down: int
    bytes_up: int
    stats: Mapping[str, Tensor] = field(default_factory=dict)
    sq_norm: Mapping[GroupId, float] = field(default_factory=dict)
    probes: tuple[tuple[Assignment, int], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """A client's answer: ``delta[j]`` holds the values of ``up`` only, local minus global."""

    receipt: Receipt
    delta: Params
    state: ClientState = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightedSum:
    """Aggregation by weighted sums per bucket: updates may be reduced where and when they arise."""

    weight: Callable[[ParamGroup, ClientInfo, Assignment], float]
    bucket: Callable[[Assignment], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Collect:
    """Aggregation that needs every single update."""


Reduction = WeightedSum | Collect


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSum:
    """One group's float64 sums over the clients that uploaded it, ``members`` in client order.

    ``weighted = sum_n w_n Delta_n``, ``plain = sum_n Delta_n`` (the same at weights 1), ``sq_norm = sum |Delta_n|^2``.
    """

    weight: float
    weighted: Tensor
    plain: Tensor
    sq_norm: float
    members: tuple[ClientId, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduced:
    """What aggregation sees, in client order: sums per bucket and group, or all updates (``Collect``), and receipts."""

    sums: Mapping[str, Mapping[GroupId, GroupSum]]
    receipts: tuple[Receipt, ...]
    updates: tuple[Update, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What an executor brings back; ``rejected``: why, by client; ``refused``: their receipts where they did answer."""

    reduced: Reduced
    states: Mapping[ClientId, ClientState]
    rejected: Mapping[ClientId, str] = field(default_factory=dict)
    refused: tuple[Receipt, ...] = ()
    pairwise: tuple[Update, ...] = ()
    moved_bytes: int = 0

    @property
    def worked(self) -> tuple[Receipt, ...]:
        """Receipts of all that cost time, energy and bytes."""
        return tuple(sorted((*self.reduced.receipts, *self.refused), key=lambda r: r.assignment.client))


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalTarget:
    """A tested model: ``view`` under ``keep`` of ``client`` (None: the states' mean, weights ``mean_of``).

    It is seen through ``modalities`` (None: all; ``omit_absent``: as a task), read at ``output`` (None: the logits).
    """

    label: str
    view: str = "global"
    client: ClientId | None = None
    keep: Selection = field(default_factory=dict)
    modalities: tuple[str, ...] | None = None
    output: str | None = None
    mean_of: Mapping[ClientId, float] = field(default_factory=dict)
    omit_absent: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalPlan:
    """The strategy's canonical model (``f1``) and, for personalised ones, each client's own (``f1_fleet``)."""

    canonical: EvalTarget | None
    clients: tuple[EvalTarget, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientCost:
    """One client's simulated round."""

    client: ClientId
    times: StageTimes
    wait_s: float
    energy_j: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundCost:
    """A round under one time model: ``round_s`` is the slowest client's busy time, ``energy_j`` the fleet's sum."""

    clients: tuple[ClientCost, ...]
    round_s: float
    energy_j: float
