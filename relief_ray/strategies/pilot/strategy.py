"""Pilot: a connector of adapters between features and fusion; each client's model is mixed with its nearest ones'.

Stage 1, ``stage1_share`` of all rounds: ``z = h + psi_t(h) + psi_s(h)``, ``t`` the client's task; loss CE + l0 L_d,
``L_d`` the mean of the squared entries of ``X_t^T X_s`` (rows of ``X``: normalised adapter outputs). Stage 2:
``z = h + psi_s(h) + P_t psi_t(h) + sum_{i != t} P_i (psi_i(h) + psi^c_i(h))``, ``P = softmax(G h)``, with ``psi_s`` and
``psi_i`` frozen; loss CE + l1 L_b + l2 L_z, ``L_b = T sum_i f_i p_i`` and ``L_z = mean(logsumexp(G h)^2)``. Server:
``psi_t`` is its clients' mean; ``Theta_k <- beta_k Theta_k + (1 - beta_k) sum_{i in N_k} w_ki Theta_i``, ``w_ki``
proportional to ``1 / |Theta_k - Theta_i|``. ``psi_s``, ``psi^c`` and ``G`` stay with the client.

Xiong et al., "Pilot: Building the Federated Multimodal Instruction Tuning Framework", AAAI 2025. A task is a set of
sensors here, ``Theta`` the whole backbone, the connector residual and zero at first (our adaptation).
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from relief_ray.core.client import ClientProgram, LocalStep, task_loss
from relief_ray.core.extra_modules import Connector
from relief_ray.core.federated import PlannedRun, RoundContext, ServerTools, Strategy
from relief_ray.core.groups import WHOLE, GroupId, GroupLayout, Params
from relief_ray.core.messages import Assignment, Collect, EvalPlan, EvalTarget, Fleet, Reduced, ServerState
from relief_ray.core.streams import Streams
from relief_ray.server.aggregation import model_of, richest
from relief_ray.strategies.common import (
    Preset,
    Search,
    StrategyConfig,
    Weighting,
    batch_sizes,
    first_phase_only,
    first_phase_rounds,
    rounds_beyond,
    search_over,
)
from relief_ray.strategies.pilot.losses import balance_loss, difference_loss, stage_flops, z_loss
from relief_ray.strategies.pilot.mixing import (
    LocalModels,
    canonical,
    hand_out,
    mix_with_nearest,
    mixing_parts,
    next_adapters,
    tasks_of,
)

ID, STAGE1 = "connector", "stage1"


class Pilot(StrategyConfig):
    """Configuration of Pilot.

    Attributes:
        weighting: a client's weight in means over clients.
        stage1_share: share of the rounds that make up stage 1, at least one round; 0: none.
        bottleneck: width of an adapter; FITTED to the table's bytes.
        neighbours: number of nearest models that a model is mixed with.
        lambda_d: weight ``l0`` of the loss ``L_d``.
        lambda_b: weight ``l1`` of the loss ``L_b``.
        lambda_z: weight ``l2`` of the loss ``L_z``.
        own_in_mix: whether the client's own adapter counts in stage 2 too.
    """

    title: ClassVar[str] = "Pilot"
    kind: ClassVar[str] = "baseline"
    about: ClassVar[str] = "adapters per set of sensors between features and fusion; models mixed with the nearest"
    citation: ClassVar[str | None] = "xiong2025pilot"
    dense_stand_in: ClassVar[str] = "the whole dense backbone is mixed in place of the text model's LoRA"
    paper_accounting: ClassVar[Literal["method", "fedavg"]] = "fedavg"
    search: ClassVar[Search] = search_over("neighbours", (1, 3, 5))
    name: Literal["pilot"] = "pilot"
    weighting: Weighting = "samples"
    stage1_share: float = Field(default=0.05, ge=0.0, le=1.0)
    bottleneck: int = Field(default=24, ge=1)
    neighbours: int = Field(default=3, ge=1)
    lambda_d: float = Field(default=0.1, ge=0.0)
    lambda_b: float = Field(default=0.1, ge=0.0)
    lambda_z: float = Field(default=0.01, ge=0.0)
    own_in_mix: bool = True

    def build(self) -> Strategy:
        """Build the strategy."""
        return Strategy(
            name=self.name,
            adapt=partial(add_connector, self),
            init=partial(one_view_each, self),
            allocate=partial(allocate, self),
            reduction=Collect(),
            client=ClientProgram(objective=partial(objective, self)),
            aggregate=partial(aggregate, self),
            evaluate=partial(own_models, self),
            no_average="each client's model is mixed with its nearest ones, there is no common mean",
            warnings=partial(warn_without_mixing, self),
        )

    def connector(self, fleet: Fleet) -> Connector:
        """Connector for this fleet: its names and sizes."""
        tasks = max(tasks_of(fleet)) + 1
        return Connector(id=ID, num_tasks=tasks, bottleneck=self.bottleneck, own_in_mix=self.own_in_mix)

    def is_first(self, context: RoundContext) -> bool:
        """Whether the round is of stage 1."""
        return self.stage1_share > 0.0 and context.round <= first_phase_rounds(self.stage1_share, context.num_rounds)

    def rounds_needed(self, participation: float) -> int | None:
        """Fewest rounds that stage 1 does not fill."""
        return rounds_beyond(self.stage1_share) if self.stage1_share > 0.0 else 1


PRESETS = {"pilot": Preset(Pilot())}


def warn_without_mixing(config: Pilot, run: PlannedRun) -> tuple[str, ...]:
    """Warn where every round is of stage 1."""
    return first_phase_only(config, run, "stage1_share", "no adapter of another task is ever mixed in")


def add_connector(config: Pilot, layout: GroupLayout, fleet: Fleet) -> tuple[Connector, ...]:
    """Add one adapter per task, and the parts that a client keeps."""
    return (config.connector(fleet),)


def one_view_each(config: Pilot, layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    """Initial state: the start model for every client, each with its own task's adapter first."""
    connector, tasks = config.connector(fleet), tasks_of(fleet)
    adapters = [start[connector.task(t + 1)] for t in range(connector.num_tasks)]
    views = hand_out({model_of(n): start for n in range(len(fleet))}, adapters, connector, tasks)
    return ServerState(models={"global": start, **views}, facts={"path": "first"})


def backbone_of(theta: Params) -> list[GroupId]:
    """Groups of ``Theta``: all but the connector's."""
    return [j for j in theta if not j.startswith(f"{ID}.")]


def allocate(config: Pilot, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Train everything but frozen adapters; the backbone and the own task's adapter go up."""
    connector, first = config.connector(context.fleet), config.is_first(context)
    others, select, stage2 = range(2, connector.num_tasks + 1), context.layout.select, mixing_parts(connector)
    router = context.layout[connector.router]
    sent = [*backbone_of(state.models["global"]), connector.task(1)]
    return tuple(
        Assignment(
            client=c.id,
            view=model_of(c.id),
            down=select([*sent, *(connector.task(i) for i in others)]),
            train=select([*sent, connector.own] if first else [*sent, *stage2]),
            up=select(sent),
            keep=select([connector.own] if first else [connector.own, *stage2]),
            epochs=context.epochs,
            phase=STAGE1 if first else "train",
            step_flops=stage_flops(batch_sizes(context, c), connector.num_tasks, router.numel, first),
            taps=frozenset([connector.task(1), connector.own] if first else [connector.router]),
            output=connector.output("first" if first else "mixed"),
        )
        for c in context.participants
    )


def objective(config: Pilot, step: LocalStep) -> Tensor:
    """Cross-entropy plus the losses of the stage: stage 2 where the router was evaluated."""
    if (logits := step.taps.get(f"{ID}.router")) is not None:
        return task_loss(step) + config.lambda_b * balance_loss(logits) + config.lambda_z * z_loss(logits)
    return task_loss(step) + config.lambda_d * difference_loss(step.taps[f"{ID}.task.1"], step.taps[f"{ID}.own"])


def aggregate(config: Pilot, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """Mix each backbone with its nearest, average each task's adapter; absent clients keep their models."""
    connector, tasks, shares = config.connector(tools.fleet), tasks_of(tools.fleet), config.shares(tools.fleet)
    models, body = state.models, backbone_of(state.models["global"])
    present = [u.receipt.assignment.client for u in reduced.updates]
    local = LocalModels(starts=[models[model_of(n)] for n in present], deltas=[u.delta for u in reduced.updates])
    adapters = next_adapters(models, local, present, shares, connector, tasks)
    mixed = mix_with_nearest(local, [shares[n] for n in present], config.neighbours, body)
    views = {**models, **{model_of(n): {**models[model_of(n)], **near} for n, near in zip(present, mixed, strict=True)}}
    views = hand_out(views, adapters, connector, tasks)
    all_models = {"global": canonical(views, tools.fleet, shares, body), **views}
    path = "first" if all(r.assignment.phase == STAGE1 for r in reduced.receipts) else "mixed"
    return ServerState(models=all_models, facts={"path": path} if present else state.facts)


def own_models(config: Pilot, state: ServerState, fleet: Fleet) -> EvalPlan:
    """Evaluate each client's model with its own sensors; canonical: the mean of the richest clients' models."""
    connector, first, shares = config.connector(fleet), state.facts["path"] == "first", config.shares(fleet)
    personal = [connector.own, *([] if first else mixing_parts(connector))]
    keep, output = dict.fromkeys(personal, WHOLE), connector.output("first" if first else "mixed")
    mean = EvalTarget(label="global", keep=keep, mean_of={n: shares[n] for n in richest(fleet)}, output=output)
    clients = tuple(
        EvalTarget(
            label=model_of(c.id), view=model_of(c.id), client=c.id, keep=keep, modalities=c.modalities, output=output
        )
        for c in fleet.clients
    )
    return EvalPlan(canonical=mean, clients=clients)
