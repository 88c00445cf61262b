"""Shared base of all methods: their frozen configuration, the facts a class states, FedAvg's pieces, warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from pydantic import ValidationError, model_validator
from torch import Tensor

from relief_ray.core.federated import PlannedRun, RoundContext, ServerTools, Strategy
from relief_ray.core.groups import GroupId, Selection
from relief_ray.core.messages import (
    Assignment,
    ClientInfo,
    EvalTarget,
    Fleet,
    Reduced,
    ServerState,
    StageTimes,
    WeightedSum,
)
from relief_ray.plugins.blame import text_of
from relief_ray.plugins.load import is_own
from relief_ray.server.aggregation import (
    apply_step,
    by_samples,
    mean_step,
    model_of,
    one_bucket,
    over_participants,
    uniform,
)
from relief_ray.support.errors import UserError, listed
from relief_ray.support.frozen import ReadWith, SwitchedConfig

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
Weighting = Literal["uniform", "samples"]
Allocate = Callable[[ServerState, RoundContext], tuple[Assignment, ...]]
# Name of a try -> its settings, by key of the method's configuration.
Search = Mapping[str, Mapping[str, object]]
# Facts that are a class's own: tables would otherwise show a user's method as the one that it derives from.
_OWN_FACTS = ("title", "kind", "about", "citation", "search")
# Keeps a client whose own time is the deadline from missing it by rounding.
SLACK = 1e-9
# How many rounds are tried until a share of them leaves one over.
_MOST_ROUNDS = 10_000


class StrategyConfig(SwitchedConfig):
    """Base of every strategy's configuration: frozen, no unknown keys. A subclass has at least ``build``.

    Everything else that the program has to know of a method before it is built stands in class variables of its
    configuration, which all have defaults (a property where it depends on a field), and in ``rounds_needed``. Commands,
    tables, cost accounting and searches read them here and know no method by its name.
    """

    title: ClassVar[str] = ""
    """The method's own name. Tables and figures show a user's method by it (empty: by its import path), and a built-in
    one by its preset's name, which is what users type; a reconstruction always by its title."""
    kind: ClassVar[str] = "own"
    """``baseline``, ``bound``, ``ablation``, ...; in tables, those that begin with ``ablation`` stand below the paper's
    methods, and those that are ``bound`` last; ``..., FITTED``: costs agree with the paper's by design."""
    about: ClassVar[str] = ""
    """One line on what the method does, for `relief-ray strategies`."""
    citation: ClassVar[str | None] = None
    """Key of its entry in ``citations.bib``, or a BibTeX entry; None without a paper."""
    reconstructed: ClassVar[bool] = False
    """Its paper could not be read in full; the title then says so."""
    paper_accounting: ClassVar[Literal["method", "fedavg"]] = "method"
    """What a round costs in the paper's Tables I and II, with ``costs.accounting=table``: ``method``: what was really
    done; ``fedavg``: FedAvg's round, plus the bytes of added adapters and routers."""
    search: ClassVar[Search] = {}
    """Three values of the method's own hyperparameter for a search with equal budgets; empty: it has none."""
    search_trades_speed: ClassVar[str] = ""
    """What is searched also decides how long a round takes, so that a tuned F1 is read beside its speed; one line on
    how, for footnotes; empty: it does not."""
    dense_stand_in: ClassVar[str] = ""
    """What stands for the method's LoRA mechanism on a backbone without LoRA, one line for footnotes; empty: the method
    needs no LoRA."""
    pooled: ClassVar[bool] = False
    """One client holds the data of all (the ``central`` bound)."""
    no_average: ClassVar[str] = ""
    """Why no mean of updates moves its models, so that it refuses ``server.optimizer``; empty: one does."""
    has_deadline: ClassVar[bool] = False
    """It has a round target ``T*`` (``Insight.deadline_s``)."""
    explains: ClassVar[bool] = False
    """Its ``Insight`` has reasons for `relief-ray explain`."""
    only_whole: ClassVar[str] = "it trains every group on every client"
    """Why clients need the whole model, so that it refuses ``transfer.download=reachable``; empty: it asks
    ``RoundContext.download`` for what comes down."""
    one_of: ClassVar[tuple[str, ...]] = ()
    """Keys that say the same thing in different ways, so that at most one of them may be given."""
    _section = "strategy"
    read_with: ClassVar[ReadWith] = ()
    """Keys that one value of a switch reads; with another value they must keep their defaults."""

    weighting: Weighting = "uniform"
    """A client's weight in the mean: ``uniform``, or ``samples``: its number of windows."""

    def full_epochs(self, epochs: int) -> int:
        """The most epochs that a client of this method runs, where ``training.epochs`` is ``epochs``."""
        return epochs

    def __new__(cls, *others: object, **values: object) -> Self:
        """Make an instance of a user's class, whose wrong fields are refused in this project's words.

        One with an ``__init__`` of its own is refused where the class is loaded.

        Raises:
            UserError: a field does not fit.
        """
        if values and is_own(cls) and cls.__init__ is StrategyConfig.__init__:
            try:
                cls.model_validate(values)
            except ValidationError as error:
                raise UserError(f"{cls.__name__}: {text_of(error)}") from None
        return super().__new__(cls)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        """Give a user's class the default of each fact of ``_OWN_FACTS`` that it does not state; a bound stays one."""
        for fact in _OWN_FACTS if is_own(cls) else ():
            if fact not in vars(cls) and (fact, cls.kind) != ("kind", "bound"):
                setattr(cls, fact, vars(StrategyConfig)[fact])

    @model_validator(mode="after")
    def _at_most_one_of(self) -> StrategyConfig:
        chosen = [f"{key} = {value}" for key in self.one_of if (value := getattr(self, key)) is not None]
        if len(chosen) > 1:
            raise ValueError(f"{' and '.join(chosen)}, expected one of them; set the other to null")
        return self

    def build(self) -> Strategy:
        """Build the strategy that this configuration describes.

        Raises:
            UserError: the class has no ``build`` of its own.
        """
        raise UserError(f"class {type(self).__name__} has no build(); define one that returns a Strategy")

    def rounds_needed(self, participation: float) -> int | None:
        """Fewest rounds with which a run is sure to reach the method's last phase; 1 where there is but one phase.

        ``participation``: share of the clients in each round. None: no number of rounds is enough.
        """
        return 1

    def reduction(self) -> WeightedSum:
        """Reduction to one global model, with clients weighted as configured."""
        return WeightedSum(weight=by_samples if self.weighting == "samples" else uniform, bucket=one_bucket)

    def shares(self, fleet: Fleet) -> list[float]:
        """Weight of each client, ``n_k`` or 1, for methods that keep models apart."""
        return [float(c.num_windows) if self.weighting == "samples" else 1.0 for c in fleet.clients]


def built_in_name(config: StrategyConfig) -> str:
    """Name of the built-in method that this is or derives from, e.g. ``relief``; empty: of none."""
    field = type(config).model_fields.get("name")
    return "" if field is None else str(field.default)


@dataclass(frozen=True, slots=True)
class Preset:
    """A named configuration of a built-in method; facts that are left out are those of its class.

    Attributes:
        config: the configuration.
        title, kind, about, search: as in ``StrategyConfig``.
    """

    config: StrategyConfig
    title: str = ""
    kind: str = ""
    about: str = ""
    search: Search | None = None

    def __post_init__(self) -> None:
        """Fill in the class's facts."""
        for fact in ("title", "kind", "about", "search"):
            if getattr(self, fact) in ("", None):
                object.__setattr__(self, fact, getattr(self.config, fact))


def search_over(key: str, values: Sequence[float | int | None], short: str = "") -> Search:
    """Try of one hyperparameter, each named after its value: ``mu0.01``, ``deadlineauto`` for None."""
    return {f"{short or key}{'auto' if v is None else f'{v:g}'}": {key: v} for v in values}


def first_phase_rounds(share: float, num_rounds: int) -> int:
    """Rounds of a first phase that lasts a share of the run, at least one round."""
    return max(1, round(share * num_rounds))


def rounds_beyond(share: float) -> int | None:
    """Fewest rounds that a first phase of this ``share`` does not fill; None where no number is enough."""
    return next((n for n in range(1, _MOST_ROUNDS + 1) if first_phase_rounds(share, n) < n), None)


def first_phase_only(config: StrategyConfig, run: PlannedRun, key: str, consequence: str) -> tuple[str, ...]:
    """Warn where a method of two phases ends within its first; such a run looks like any other.

    ``key``: the setting that the first phase's length comes from; ``consequence``: what the run then is.
    """
    rounds, needed = run.context.num_rounds, config.rounds_needed(run.participation)
    if needed is not None and rounds >= needed:
        return ()
    fixes = [f"rounds={needed} or more"] * (needed is not None)
    fixes += [f"a smaller strategy.{key}"] * (rounds > 1 or needed is None)
    value = getattr(config, key)
    return (
        f"{built_in_name(config)}, {key} = {value:.4g}, rounds = {rounds}: {consequence}; set {' or '.join(fixes)}",
    )


def fact_table(state: ServerState, name: str, kind: type[T]) -> dict[str, T]:
    """Values of one kind in a table among the server's facts; {} where there is no such table yet."""
    table = state.facts.get(name)
    return {key: value for key, value in table.items() if isinstance(value, kind)} if isinstance(table, dict) else {}


def cluster_sizes(views: Iterable[str]) -> Mapping[str, Mapping[str, float]]:
    """Table ``clusters`` of a round's record: number of clients by cluster; no table where there is no cluster yet."""
    sizes = {view: float(number) for view, number in sorted(Counter(views).items())}
    return {"clusters": sizes} if sizes else {}


def batch_sizes(context: RoundContext, client: ClientInfo) -> list[int]:
    """Number of windows in each mini-batch of a local epoch; the last one holds the rest."""
    num_full, rest = divmod(client.num_windows, context.batch_size)
    return [context.batch_size] * num_full + [rest] * (rest > 0)


def train_parts(context: RoundContext, client: ClientInfo, parts: Selection, down: Selection) -> Assignment:
    """Assignment to train and send these ``parts`` of groups, for all epochs, after ``down`` came down."""
    return Assignment(client=client.id, down=down, train=parts, up=parts, epochs=context.epochs)


def train_everything(context: RoundContext, client: ClientInfo) -> Assignment:
    """Assignment of the whole model down, trained and up, absent modalities included, as in FedAvg."""
    everything = context.layout.select()
    return train_parts(context, client, everything, everything)


def most_epochs(task: Assignment, context: RoundContext, limit_s: float) -> Assignment:
    """``task`` with the most epochs, up to its own, that end within ``limit_s``, sending included; at least one.

    Partial work of Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
    """
    fewer = (replace(task, epochs=epochs) for epochs in range(task.epochs, 1, -1))
    fitting = (t for t in fewer if context.planner.times(task.client, t).busy_s <= limit_s * (1.0 + SLACK))
    return next(fitting, replace(task, epochs=1))


def late(deadline: str, limit_s: float, tasks: Iterable[Assignment], context: RoundContext) -> tuple[str, ...]:
    """Warn of clients for whom not even one epoch ends in time (``most_epochs``); ``deadline``: what it is called."""
    spent = {t.client: context.planner.times(t.client, replace(t, epochs=1)).busy_s for t in tasks}
    over = [
        f"client {n} ({s:.4g} s, {s - limit_s:.4g} s more)" for n, s in spent.items() if s > limit_s * (1.0 + SLACK)
    ]
    if not over:
        return ()
    short = f"{deadline} = {limit_s:.4g} s is too short for one epoch of {listed(over)}"
    return (f"{short}; such a client runs one all the same",)


def own_target(client: ClientInfo) -> EvalTarget:
    """Evaluate what a client has with its own sensors: the global model, unless the method says what is its own."""
    return EvalTarget(label=model_of(client.id), client=client.id, modalities=client.modalities)


def check_types(key: str, names: Iterable[str], fleet: Fleet) -> None:
    """Refuse a setting by device type that names one which the fleet does not have.

    Raises:
        UserError: it does; the fleet's types are named.
    """
    if unknown := [name for name in names if name not in fleet.order]:
        raise UserError(f"strategy.{key} names the device types {unknown}, expected some of {list(fleet.order)}")


def seconds_per_window(times: Mapping[ClientInfo, StageTimes]) -> dict[str, float]:
    """Computing time per window of each device type: that of its slowest client."""
    speeds: dict[str, float] = {}
    for client, spent in times.items():
        speeds[client.device] = max(speeds.get(client.device, 0.0), spent.compute_s / client.num_windows)
    return speeds


def of_fastest_type(times: Mapping[ClientInfo, StageTimes]) -> list[StageTimes]:
    """Times of all clients of the fastest device type: the one whose slowest client needs least per window."""
    speeds = seconds_per_window(times)
    fastest = min(speeds, key=speeds.__getitem__)
    return [spent for client, spent in times.items() if client.device == fastest]


def allocate_everything(state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Let every participant train everything."""
    return tuple(train_everything(context, client) for client in context.participants)


def mean_change(reduction: WeightedSum, reduced: Reduced, tools: ServerTools) -> dict[GroupId, Tensor]:
    """``sum_n w_n Delta_n / sum_n w_n`` of each group that was sent, over all participants, in float64."""
    total = over_participants(reduction, reduced, tools.fleet)
    return mean_step(reduced.sums.get("global", {}), total, tools.layout)


def average(reduction: WeightedSum, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """``Theta + sum_n w_n Delta_n / sum_n w_n`` over all participants (McMahan et al. 2017, Algorithm 1)."""
    step = mean_change(reduction, reduced, tools)
    return replace(state, models={"global": apply_step(state.models["global"], step)})
