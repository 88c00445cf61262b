"""Harmony: unimodal networks first, then fusion averaged inside clusters of clients whose encoders drifted alike.

Rounds up to ``unimodal_share`` of all: per modality ``m`` its owners train encoder ``f_m`` and a classifier on
it alone; both become the mean over ``C_m``. Later, clients with several sensors start from those encoders ``f_m^0``,
which from now on never leave them, and train fusion and head ``g``; with ``d_n(m) = 1 - cos(f_n,m, f_m^0)``, columns
over their maximum, k-means gives clusters, anew in every round, and ``g_c <- g_c + mean_{n in c} Delta g_n``. A client
that fuses for the first time later starts from the largest cluster of clients with its sensors.

Ouyang et al., "Harmony: Heterogeneous Multi-Modal Federated Learning through Disentangled Model Training", MobiSys'23.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn import functional

from relief_ray.core.client import ClientContext, ClientProgram, LocalStep, task_loss
from relief_ray.core.extra_modules import Classifier
from relief_ray.core.federated import (
    Averaging,
    Diagnostics,
    Insight,
    PlannedRun,
    RoundContext,
    ServerTools,
    Strategy,
)
from relief_ray.core.groups import WHOLE, GroupLayout, Params, Selection
from relief_ray.core.messages import (
    Assignment,
    ClientInfo,
    Collect,
    EvalPlan,
    EvalTarget,
    Fleet,
    Json,
    Receipt,
    Reduced,
    ServerState,
    Update,
)
from relief_ray.core.streams import Streams
from relief_ray.server.aggregation import apply_step, mean_models, mean_of
from relief_ray.strategies.common import (
    Preset,
    StrategyConfig,
    cluster_sizes,
    fact_table,
    first_phase_only,
    first_phase_rounds,
    own_target,
    rounds_beyond,
    search_over,
    train_parts,
)

# Clusters of alike clients: k-means over their reports, and rules for the number of clusters.


MAX_STEPS = 100
ENERGY = 0.9
# Number of clusters: by the number of clients, or by the reports' singular values.
Rule = Literal["size", "dominant"]


def clusters_of(state: ServerState) -> dict[str, str]:
    """Name of each client's cluster, of those that have one."""
    return fact_table(state, "clusters", str)


def scale_columns(d_NM: Tensor) -> Tensor:
    """Divide every column by its maximum; columns of zeros stay."""
    largest_M = d_NM.amax(0)
    return d_NM / torch.where(largest_M > 0, largest_M, 1.0)


def num_by_size(number: int) -> int:
    """``K = floor((n - 1) / 5) + 1``: one cluster for up to five clients, two for up to ten, and so on."""
    return (number - 1) // 5 + 1


def num_dominant(d_NM: Tensor) -> int:
    """``K``: number of leading singular values that hold 90 % of the sum of squares; 1 for a zero matrix."""
    squares = torch.linalg.svdvals(d_NM).square()
    return max(1, int((squares.cumsum(0) < ENERGY * squares.sum()).sum()) + bool(squares.sum() > 0))


def k_means(points_ND: Tensor, number: int) -> list[int]:
    """Cluster of every point, numbered by first members: ``number`` clusters, fewer where points coincide.

    Deterministic: the first point is the first centre, the point farthest from all centres the next one (of equal ones
    the first), then Lloyd's steps until nothing moves.
    """
    centres = [points_ND[0]]
    while len(centres) < number:
        nearest_N = _distances(points_ND, torch.stack(centres)).amin(1)
        if not nearest_N.max() > 0:
            break
        centres.append(points_ND[int(nearest_N.argmax())])
    labels_N = _distances(points_ND, torch.stack(centres)).argmin(1)
    for _ in range(MAX_STEPS):
        means_KD = torch.stack([points_ND[labels_N == k].mean(0) for k in sorted(set(labels_N.tolist()))])
        again_N = _distances(points_ND, means_KD).argmin(1)
        if torch.equal(again_N, labels_N):
            break
        labels_N = again_N
    return _renumbered(labels_N.tolist())


def alike(d_NM: Tensor, teams: Sequence[Hashable], rule: Rule | int) -> list[int]:
    """Cluster of every row: k-means within each team on scaled columns; rows of two teams never share a cluster."""
    scaled_NM = scale_columns(d_NM)
    labels: list[tuple[Hashable, int]] = [(team, 0) for team in teams]
    for team in dict.fromkeys(teams):
        rows = [i for i, t in enumerate(teams) if t == team]
        points = scaled_NM[rows]
        number = num_by_size(len(rows)) if rule == "size" else num_dominant(points) if rule == "dominant" else rule
        for i, k in zip(rows, k_means(points, min(number, len(rows))), strict=True):
            labels[i] = (team, k)
    return _renumbered(labels)


def _distances(a_ND: Tensor, b_KD: Tensor) -> Tensor:
    """Euclidean distances, from differences, so that coinciding points are exactly 0 apart."""
    return (a_ND.unsqueeze(1) - b_KD.unsqueeze(0)).square().sum(2).sqrt()


def _renumbered(labels: Sequence[Hashable]) -> list[int]:
    order = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    return [order[label] for label in labels]


def last_reports(
    known_NM: Tensor | None, receipts: Iterable[Receipt], name: str, fleet: Fleet
) -> tuple[Tensor, tuple[ClientInfo, ...]]:
    """Last report of every client, one value per modality (N, M), and the clients that ever sent one.

    ``known_NM``: reports of earlier rounds; ``receipts`` carry this round's as ``stats[name]``, in order of the
    client's modalities. NaN: no report.
    """
    unknown_NM = torch.full((len(fleet), len(fleet.modalities)), float("nan"), dtype=torch.float64)
    reports_NM = unknown_NM if known_NM is None else known_NM.clone()
    for receipt in receipts:
        client = fleet[receipt.assignment.client]
        columns = [fleet.modalities.index(m) for m in client.modalities]
        reports_NM[client.id, columns] = receipt.stats[name].to(torch.float64)
    return reports_NM, tuple(c for c in fleet.clients if not reports_NM[c.id].isnan().all())


# Phases of a task, and the name of the reported drift of encoders.
UNIMODAL, FUSION, DRIFT = "unimodal", "fusion", "drift"
FUSED = ("fusion_a", "fusion_b", "head")


def unimodal_heads(layout: GroupLayout, fleet: Fleet) -> tuple[Classifier, ...]:
    """Add one classifier per modality on its encoder's last layer."""
    last = {g.modality: g.id for g in layout if g.role == "encoder"}
    return tuple(
        Classifier(id=head_of(m), after=(last[m],), role="unimodal_head", modality=m) for m in fleet.modalities
    )


def head_of(modality: str) -> str:
    """Name of a modality's classifier, as a group and as a stage."""
    return f"unimodal.{modality}"


def reached(layout: GroupLayout, client: ClientInfo, *roles: str) -> Selection:
    """Groups of these roles that the client's sensors reach."""
    return layout.select(g for g in layout.accessible(client.modalities) if g.role in roles)


def train_unimodal(context: RoundContext, client: ClientInfo) -> Assignment:
    """Assignment of the first phase: encoders and classifiers of the client's own sensors; nothing else runs."""
    networks = reached(context.layout, client, "encoder", "unimodal_head")
    heads = [head_of(m) for m in client.modalities]
    task = train_parts(context, client, networks, networks)
    return replace(task, phase=UNIMODAL, taps=frozenset(heads), output=heads[0])


def sum_of_losses(step: LocalStep) -> Tensor:
    """Sum of the unimodal losses where there are any (they share no parameter), else cross-entropy of the head."""
    losses = [step.cross_entropy(step.taps[tap], step.labels) for tap in sorted(step.taps)]
    return torch.stack(losses).sum() if losses else task_loss(step)


def report_drift(context: ClientContext, update: Update) -> Update:
    """Report ``1 - cos(f_n,m, f_m^0)`` of every encoder that stays with the client, four bytes each.

    ``f_m^0`` is the encoder that the server holds; where it is zero, so is the drift.
    """
    receipt, drift = update.receipt, []
    encoders = [g for g in context.layout if g.role == "encoder" and g.id in receipt.assignment.keep]
    for m in context.info.modalities if encoders else ():
        own = [g.id for g in encoders if g.modality == m]
        now, then = (torch.cat([p[j] for j in own]).double() for p in (update.state, context.start))
        drift.append(1.0 - functional.cosine_similarity(now, then, dim=0) if then.any() else then.new_zeros(()))
    if not drift:
        return update
    stats = {**receipt.stats, DRIFT: torch.stack(drift).clamp(0.0, 2.0).float()}
    return replace(update, receipt=replace(receipt, stats=stats, bytes_up=receipt.bytes_up + 4 * len(drift)))


class Harmony(StrategyConfig):
    """Configuration of Harmony."""

    title = "Harmony"
    kind = "baseline"
    about = "one network per sensor first, then fusion averaged in clusters of alike clients"
    citation = "ouyang2023harmony"
    paper_accounting = "fedavg"
    search = search_over("encoder_lr", (0.03, 0.1, 0.3), "encoder")
    only_whole = ""
    no_average = "fusion is averaged in clusters that are formed anew in every round: no model can keep moments"
    name: Literal["harmony"] = "harmony"
    unimodal_share: float = Field(default=2 / 3, gt=0.0, lt=1.0)
    """Share of the rounds that make up the unimodal phase, at least one round."""
    encoder_lr: float = Field(default=0.1, gt=0.0)
    """Factor on the learning rate of encoders in the fusion phase."""
    clusters: Rule | PositiveInt = "size"
    """Number of clusters per set of sensors, or the rule for it (``size``: one per five clients)."""
    by_sensors: bool = True
    """Whether clusters are made only among clients with equal sets of sensors."""
    fusion_federation: Literal["cluster", "none"] = "cluster"
    """``none``: fusion stays with its client and only the head is averaged."""

    def build(self) -> Strategy:
        """Build the strategy."""
        return Strategy(
            name=self.name,
            adapt=unimodal_heads,
            init=partial(init, self),
            allocate=partial(allocate, self),
            client=ClientProgram(objective=sum_of_losses, after=report_drift, is_mean=True),
            reduction=Collect(),
            aggregate=partial(aggregate, self),
            evaluate=own_networks,
            insight=Insight(warnings=partial(warn, self), diagnose=diagnose, rests=partial(is_unimodal, self)),
            averaging=Averaging(identities=members_of_clusters),
        )

    def rounds_needed(self, participation: float) -> int | None:
        """Fewest rounds that the unimodal phase does not fill."""
        return rounds_beyond(self.unimodal_share)

    @property
    def home(self) -> tuple[str, ...]:
        """Roles that stay with a client once fusion is trained."""
        return ("encoder", "fusion_a", "fusion_b") if self.fusion_federation == "none" else ("encoder",)


PRESETS = {"harmony": Preset(Harmony())}


def is_unimodal(config: Harmony, context: RoundContext) -> bool:
    """Whether the round is of the first phase, which lasts at least one round."""
    return context.round <= first_phase_rounds(config.unimodal_share, context.num_rounds)


def warn(config: Harmony, run: PlannedRun) -> tuple[str, ...]:
    """Warn where every round is unimodal, and where ``clusters="size"`` makes one cluster of every set of sensors."""
    consequence = "every sensor's network trains apart, and fusion and head are never trained"
    return first_phase_only(config, run, "unimodal_share", consequence) + warn_of_single_clusters(config, run)


def warn_of_single_clusters(config: Harmony, run: PlannedRun) -> tuple[str, ...]:
    """Warn where no set of sensors has enough clients for two clusters: k-means then decides nothing."""
    fusing = [c for c in run.context.fleet.clients if len(c.modalities) > 1]
    sizes = Counter(c.modalities if config.by_sensors else () for c in fusing)
    if config.clusters != "size" or not sizes or num_by_size(max(sizes.values())) > 1:
        return ()
    group = "set of sensors" if config.by_sensors else "fleet"
    return (
        f"{config.name}, clusters = 'size': one cluster per five clients, and the largest {group} has "
        f"{max(sizes.values())}, so each is a single cluster and k-means decides nothing; set "
        "strategy.clusters=dominant (the paper's rule) or a number of clusters",
    )


def init(config: Harmony, layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    """Initial state: one model; ``facts``: roles of groups that stay with clients, later each client's cluster."""
    home: dict[str, Json] = {g.id: g.role for g in layout if g.role in config.home}
    return ServerState(models={"global": start}, facts={"home": home, "clusters": {}})


def allocate(config: Harmony, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Unimodal networks of all clients first, then fusion at clients with several sensors; the others idle."""
    if is_unimodal(config, context):
        return tuple(train_unimodal(context, c) for c in context.participants)
    return tuple(train_fusion(config, state, context, c) for c in context.participants if len(c.modalities) > 1)


def start_of(client: ClientInfo, state: ServerState, fleet: Fleet) -> str:
    """Name of the model from which a client trains fusion: its cluster's, or ``global`` before there are clusters.

    A client that fuses for the first time later than others starts from the largest cluster of clients with its own
    set of sensors; where there is none, from the one whose members have most sensors in common with it, added up.
    The common model's fusion is that of the first day, and would drag the newcomer's cluster back to it.
    """
    views = clusters_of(state)
    if str(client.id) in views or not views:
        return views.get(str(client.id), "global")

    def rank(label: str) -> tuple[int, int]:
        members = [set(fleet[int(n)].modalities) for n, view in views.items() if view == label]
        own = set(client.modalities)
        return members.count(own), sum(len(own & sensors) for sensors in members)

    return max(dict.fromkeys(views.values()), key=rank)


def train_fusion(config: Harmony, state: ServerState, context: RoundContext, client: ClientInfo) -> Assignment:
    """Assignment of the second phase: fusion and head of the cluster's model; encoders come down once."""
    is_new = str(client.id) not in clusters_of(state)
    roles = (("encoder", *FUSED), config.home, ("encoder",))
    train, home, slow = (reached(context.layout, client, *r) for r in roles)
    up = {j: part for j, part in train.items() if j not in home}
    return replace(
        train_parts(context, client, train, train if is_new else up),
        up=up,
        keep=home,
        phase=FUSION,
        view=start_of(client, state, context.fleet),
        lr_scale=dict.fromkeys(slow, config.encoder_lr),
        omit_absent=True,  # a client never gets networks of sensors that it lacks
    )


def aggregate(config: Harmony, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """Average over owners first; in the second phase inside each of this round's clusters."""
    theta, updates, shares = state.models["global"], reduced.updates, config.shares(tools.fleet)
    if updates[0].receipt.assignment.phase != FUSION:
        after = apply_step(theta, mean_of(updates, shares))
        return replace(state, models={**state.models, "global": after})
    drift, reporters = last_reports(state.tensors.get(DRIFT), reduced.receipts, DRIFT, tools.fleet)
    sets = [c.modalities if config.by_sensors else () for c in reporters]
    labels = alike(drift[[c.id for c in reporters]].nan_to_num(), sets, config.clusters)
    clusters: dict[str, Json] = {str(c.id): f"cluster.{k}" for c, k in zip(reporters, labels, strict=True)}
    starts = {c.id: start_of(c, state, tools.fleet) for c in reporters}
    models = {"global": theta}
    for label in map(str, dict.fromkeys(clusters.values())):
        start = mean_models([state.models[view] for n, view in starts.items() if clusters[str(n)] == label])
        members = [u for u in updates if clusters[str(u.receipt.assignment.client)] == label]
        models[label] = apply_step(start, mean_of(members, shares))
    return ServerState(models=models, tensors={DRIFT: drift}, facts={**state.facts, "clusters": clusters})


def diagnose(state: ServerState, layout: GroupLayout) -> Diagnostics:
    """Tell the round's record how many clients each cluster has; nothing before the fusion phase."""
    return cluster_sizes(clusters_of(state).values())


def members_of_clusters(state: ServerState) -> dict[str, str]:
    """Names the common model, and each cluster's by its clients: the same number may be another cluster next round."""
    clients: dict[str, list[str]] = {}
    for client, cluster in clusters_of(state).items():
        clients.setdefault(cluster, []).append(client)
    named = {cluster: f"clients {' '.join(sorted(own, key=int))}" for cluster, own in clients.items()}
    return {name: named.get(name, name) for name in state.models}


def own_networks(state: ServerState, fleet: Fleet) -> EvalPlan:
    """Evaluate each client's network; canonical: fusion of the richest clients' largest cluster, common encoders."""
    keep, views = dict.fromkeys(fact_table(state, "home", str), WHOLE), clusters_of(state)

    def target(client: ClientInfo) -> EvalTarget:
        personal = own_target(client)
        if str(client.id) not in views:
            return replace(personal, output=head_of(client.modalities[0]))
        return replace(personal, view=views[str(client.id)], keep=keep, omit_absent=True)

    def rank(client: str) -> tuple[int, int, int]:
        return len(fleet[int(client)].modalities), list(views.values()).count(views[client]), -int(client)

    view = views[max(views, key=rank)] if views else "global"
    canonical = EvalTarget(label="global", view=view)
    return EvalPlan(canonical=canonical, clients=tuple(map(target, fleet.clients)))
