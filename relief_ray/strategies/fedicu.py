"""FedICU (reconstructed): clients send what changed most; lengths are averaged, directions weighted by agreement.

Client: ``Delta_n`` where ``|Delta_n,i| / (|theta_i| + eps)`` is among the top ``kappa`` of its tensor, else 0. Server,
for every matrix with columns ``c``: ``X_n = theta + Delta_n`` (LoRA factors) or ``Delta_n`` (dense),
``m_n,c = |X_n,c|``, ``v_n,c = X_n,c / m_n,c``;

``s_n = mean_{k != n, c} cos(v_n,c, v_k,c)``, ``alpha = softmax(s / T)``,
``X_c = (sum_n p_n m_n,c) u_c / |u_c|``, ``u_c = sum_n alpha_n v_n,c``.

Vectors are averaged; fusion is one matrix ``[A_1 | .. | A_M]``. Sensors play no part.

On dense weights the step is longer than a mean's, since lengths are averaged where a mean lets different directions
cancel: 1.5 to 2.2 times along nearly the same direction with 8 clients, ``sqrt(N)`` times at most for orthogonal
updates. It acts like FedAvg with a server learning rate of about 2. ``length="length_of_mean"`` takes
``X_c = |sum_n p_n X_n,c| u_c / |u_c|``, a mean's step in length and FedICU's in direction.

Liao et al., "Splitting with Importance-aware Updating for Heterogeneous Federated Learning with Large Language Models",
ICML 2025; its text could not be read: all formulas here are reconstructed (docs/strategies/fedicu.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, log2
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from relief_ray.core.client import ClientContext, ClientProgram
from relief_ray.core.federated import RoundContext, ServerTools, Strategy
from relief_ray.core.groups import ROUNDING, GroupId, GroupLayout, Params, Selection, TensorSpec
from relief_ray.core.messages import Assignment, ClientInfo, Collect, Reduced, ServerState, Update
from relief_ray.server.aggregation import apply_step, from_tensor, to_tensor
from relief_ray.strategies.common import Preset, StrategyConfig, batch_sizes, search_over, train_parts

# Consensus and divergence of matrices column by column: lengths are averaged, directions weighted by agreement.
#
# Legend: ``X_n`` client ``n``'s matrix (rows, C), ``m_n,c`` the length of its column ``c``, ``v_n,c`` that column's
# direction (zero for a zero column), ``p_n`` the client's weight, ``alpha_n`` its say in directions.


# Keeps relative importance finite where a parameter is zero.
ORIGIN_EPS = 1e-8

Importance = Literal["relative", "magnitude"]
# Length of a merged column: the mean of the clients' lengths, or the length of their mean column.
Length = Literal["mean_of_lengths", "length_of_mean"]


def importance(kind: Importance, delta: Tensor, origin: Tensor) -> Tensor:
    """Importance of each value of a change, of its shape: ``|delta|``, or ``|delta| / (|origin| + eps)``."""
    return delta.abs() if kind == "magnitude" else delta.abs() / (origin.abs() + ORIGIN_EPS)


def keep_top(scores: Tensor, share: float) -> Tensor:
    """Mask (n,) of the ``ceil(share n)`` highest of flat scores (n,); of equal ones the first."""
    number = max(1, ceil(share * len(scores) - ROUNDING))
    least = scores.kthvalue(len(scores) - number + 1).values
    kept = ~(scores <= least)  # NaN is kept, so that the check of updates refuses it
    kept[(scores == least).nonzero().flatten()[: number - int(kept.sum())]] = True
    return kept


def group_importance(kind: Importance, deltas: Sequence[Tensor], origin: Tensor) -> float:
    """Mean absolute change of a group over clients; ``relative``: divided by the group's mean absolute value."""
    change = float(torch.stack([d.abs().mean() for d in deltas]).mean())
    return change if kind == "magnitude" else change / (float(origin.abs().mean()) + ORIGIN_EPS)


EPS = 1e-12

Piece = tuple[GroupId, TensorSpec]


def split_columns(x_NRC: Tensor) -> tuple[Tensor, Tensor]:
    """Lengths (N, C) and directions (N, rows, C) of all columns."""
    lengths_NC = x_NRC.norm(dim=1)
    return lengths_NC, x_NRC / lengths_NC.clamp_min(EPS).unsqueeze(1)


def cosines(directions_NRC: Tensor) -> Tensor:
    """``sum_c cos(v_n,c, v_k,c)`` for all pairs of clients (N, N); a zero column has cosine 0 with every other."""
    flat_ND = directions_NRC.flatten(1)
    return flat_ND @ flat_ND.T


def agreement(matrices: Iterable[Tensor], temperature: float) -> Tensor:
    """``alpha = softmax(s / T)`` (N,), ``s_n`` the mean cosine with the others over all columns of all ``matrices``.

    Each of ``matrices`` holds directions (N, rows, C).
    """
    pairs = [(cosines(v), v.shape[2]) for v in matrices]
    total_NN, num_columns = torch.stack([c for c, _ in pairs]).sum(0), sum(n for _, n in pairs)
    s_N = (total_NN.sum(1) - total_NN.diagonal()) / (max(1, len(total_NN) - 1) * num_columns)
    return torch.softmax(s_N / temperature, 0)


def merge_columns(x_NRC: Tensor, p_N: Tensor, alpha_N: Tensor, length: Length = "mean_of_lengths") -> Tensor:
    """Columns along ``sum_n alpha_n v_n,c`` (rows, C), ``sum_n p_n m_n,c`` long; the mean where either is 0.

    ``length_of_mean``: ``|sum_n p_n X_n,c|`` long instead. It is never more, since directions that differ cancel in a
    mean: of ``N`` orthogonal columns of one length it is ``1 / sqrt(N)`` of it.
    """
    lengths_NC, directions_NRC = split_columns(x_NRC)
    mean_RC = torch.tensordot(p_N, x_NRC, 1)
    length_C = p_N @ lengths_NC if length == "mean_of_lengths" else mean_RC.norm(dim=0)
    direction_RC = torch.tensordot(alpha_N, directions_NRC, 1)
    size_C = direction_RC.norm(dim=0)
    usable_C = (length_C >= EPS) & (size_C >= EPS)
    return torch.where(usable_C, length_C * direction_RC / size_C.clamp_min(EPS), mean_RC)


def whole_tensors(layout: GroupLayout, groups: Collection[GroupId]) -> list[tuple[Piece, ...]]:
    """All tensors of ``groups``; the fusion blocks among them form one matrix ``[A_1 | .. | A_M]``."""
    pieces = [(j, t) for j in groups for t in layout[j].tensors]
    fusion = tuple((j, t) for j, t in pieces if layout[j].role == "fusion_a" and len(t.shape) == 2)
    return [*([fusion] if fusion else []), *((piece,) for piece in pieces if piece not in fusion)]


def as_matrix(values: Tensor, spec: TensorSpec) -> Tensor:
    """Reshape a flat tensor (.., n) to (.., rows, C): a convolution to (out, in k), a vector to one column."""
    return values.view(*values.shape[:-1], spec.shape[0], -1)


def by_piece(x: Tensor, tensor: Sequence[Piece]) -> dict[Piece, Tensor]:
    """Cut a whole matrix (rows, C) into its pieces' flat values."""
    widths = [t.numel // t.shape[0] for _, t in tensor]
    return {piece: part.reshape(-1) for piece, part in zip(tensor, torch.split(x, widths, dim=1), strict=True)}


def balanced_steps(
    updates: Sequence[Update],
    theta: Params,
    layout: GroupLayout,
    p_N: Tensor,
    temperature: float,
    together: bool = False,
    length: Length = "mean_of_lengths",
) -> dict[GroupId, Tensor]:
    """``theta_new - theta`` per group in float64, from updates of ``theta`` that all sent the same whole groups.

    LoRA factors are split into lengths and directions themselves, of dense matrices the update is; vectors are
    averaged. ``together``: one ``alpha`` for all matrices instead of one for each. ``length``: of the merged columns.
    """
    groups = tuple(updates[0].delta)
    tensors = whole_tensors(layout, groups)
    matrices = [t for t in tensors if len(t[0][1].shape) > 1]
    shared = (
        agreement((split_columns(_stacked(updates, theta, t))[1] for t in matrices), temperature)
        if together and matrices
        else None
    )

    def new(tensor: tuple[Piece, ...]) -> Tensor:
        x = _stacked(updates, theta, tensor)
        if tensor not in matrices:
            mean: Tensor = torch.tensordot(p_N, x, 1)
            return mean
        alpha_N = agreement([split_columns(x)[1]], temperature) if shared is None else shared
        return merge_columns(x, p_N, alpha_N, length)

    steps = {piece: values for tensor in tensors for piece, values in by_piece(new(tensor), tensor).items()}
    return {j: torch.cat([steps[j, t] - _origin(theta, (j, t)) for t in layout[j].tensors]) for j in groups}


def _origin(theta: Params, piece: Piece) -> Tensor:
    """Values added to a change to give ``X_n``: the LoRA factor itself, zeros for a dense tensor."""
    group, spec = piece
    values = spec.of(theta[group]).flatten().to(torch.float64)
    return values if spec.is_factor else torch.zeros_like(values)


def _stacked(updates: Sequence[Update], theta: Params, tensor: Sequence[Piece]) -> Tensor:
    """Stack ``X_n`` of all clients (N, rows, C)."""

    def of(piece: Piece) -> Tensor:
        group, spec = piece
        moved = torch.stack([spec.of(u.delta[group]).flatten().to(torch.float64) for u in updates])
        return as_matrix(moved + _origin(theta, piece), spec)

    return torch.cat([of(piece) for piece in tensor], 2)


IMPORTANCE = "importance"


class FedICU(StrategyConfig):
    """Configuration of FedICU (reconstructed)."""

    title = "FedICU"
    kind = "baseline"
    about = "FedICU (reconstructed): 80 % of each change sent, directions averaged by agreement"
    citation = "liao2025fedicu"
    dense_stand_in = "updates of dense weights are split in place of LoRA factors"
    search_trades_speed = "kappa is the share of each change that is sent"
    reconstructed = True
    search = search_over("kappa", (0.6, 0.8, 0.95))
    read_with = (("freeze_unimportant", True, ("freeze_share",)),)
    no_average = "lengths and directions of updates are combined apart, by a step of its own"
    name: Literal["fedicu"] = "fedicu"
    kappa: float = Field(default=0.8, gt=0.0, le=1.0)
    """Share of each tensor's values that is sent; the fusion matrix counts as one tensor."""
    temperature: float = Field(default=1.0, gt=0.0)
    """``T`` of the softmax over clients' agreement."""
    importance: Importance = "relative"
    """Measure of a value's importance: its change, ``relative`` to the value or by ``magnitude``."""
    alpha_scope: Literal["tensor", "global"] = "tensor"
    """One ``alpha`` per tensor, or one for all."""
    length: Length = "mean_of_lengths"
    """Length of a merged column: ``mean_of_lengths`` of the clients' columns, which makes steps on dense weights longer
    than a mean's, or ``length_of_mean``, that of their mean column."""
    freeze_unimportant: bool = False
    """Whether the groups that were least important in the last round are left untrained."""
    freeze_share: float = Field(default=0.2, gt=0.0, lt=1.0)
    """Approximate share of the parameters that `freeze_unimportant` leaves untrained."""

    def build(self) -> Strategy:
        """Build the strategy."""
        return Strategy(
            name=self.name,
            allocate=partial(allocate, self),
            client=ClientProgram(after=partial(send_important, self)),
            reduction=Collect(),
            aggregate=partial(aggregate, self),
        )


PRESETS = {
    "fedicu": Preset(FedICU()),
    "fedicu_table": Preset(
        FedICU(kappa=1.0, freeze_unimportant=True),
        title="FedICU, table",
        kind="baseline, FITTED",
        about="FedICU (reconstructed): the least important fifth frozen, all else sent",
    ),
}


def send_important(config: FedICU, context: ClientContext, update: Update) -> Update:
    """Zero the least important values of an update, and send the others."""
    if config.kappa == 1.0:
        return update
    delta = update.delta
    kept = {j: torch.zeros(len(moved), dtype=torch.bool) for j, moved in delta.items()}
    for tensor in whole_tensors(context.layout, delta):
        moved, origin = (
            torch.cat([as_matrix(t.of(values[j]).flatten(), t) for j, t in tensor], 1)
            for values in (delta, context.start)
        )
        scores = importance(config.importance, moved, origin)
        top = keep_top(scores.reshape(-1), config.kappa).view_as(scores)
        for (j, t), mask in by_piece(top, tensor).items():
            t.of(kept[j]).copy_(mask.view(t.shape))
    delta = {j: torch.where(kept[j], moved, torch.zeros(())) for j, moved in delta.items()}
    return replace(update, delta=delta, kept=kept)


def frozen(config: FedICU, known: dict[GroupId, float], layout: GroupLayout) -> tuple[GroupId, ...]:
    """Least important groups whose sizes add up nearest to ``freeze_share``; groups without a score are trained."""
    chosen: list[GroupId] = []
    missing = config.freeze_share * layout.numel
    for j in sorted(known, key=known.__getitem__):
        if not config.freeze_unimportant or abs(missing - layout[j].numel) >= abs(missing):
            break
        chosen.append(j)
        missing -= layout[j].numel
    return tuple(chosen)


def allocate(config: FedICU, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Every participant trains and sends all groups that are not frozen."""
    known = from_tensor(state.tensors.get(IMPORTANCE), context.layout)
    frozen_groups = frozen(config, known, context.layout)
    everything = context.layout.select()
    chosen = {j: part for j, part in everything.items() if j not in frozen_groups}
    flops = choosing_flops(config, context.layout, chosen)

    def task(client: ClientInfo) -> Assignment:
        steps = max(1, context.epochs * len(batch_sizes(context, client)))
        return replace(train_parts(context, client, chosen, everything), step_flops=flops / steps)

    return tuple(map(task, context.participants))


def choosing_flops(config: FedICU, layout: GroupLayout, chosen: Selection) -> float:
    """FLOPs of choosing the values to send, once a round: ``sum_t n_t (s + 1 + log2 n_t)`` over tensors of n_t values.

    ``s``: FLOPs of a score, 4 if relative (two absolute values, a sum, a quotient), else 1; one for the mask;
    ``log2 n_t`` comparisons to sort. 0 where everything is sent.
    """
    if config.kappa == 1.0:
        return 0.0
    scoring = 1.0 if config.importance == "magnitude" else 4.0
    sizes = [sum(t.numel for _, t in tensor) for tensor in whole_tensors(layout, chosen)]
    return sum(n * (scoring + 1.0 + log2(n)) for n in sizes)


def aggregate(config: FedICU, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """Average lengths, weigh directions by agreement; then note each group's importance for the next round."""
    theta, layout, updates = state.models["global"], tools.layout, reduced.updates
    started = tools.received(state.models)["global"]
    shares = config.shares(tools.fleet)
    p_N = torch.tensor([shares[u.receipt.assignment.client] for u in updates], dtype=torch.float64)
    steps = balanced_steps(
        updates,
        started,
        layout,
        p_N / p_N.sum(),
        config.temperature,
        together=config.alpha_scope == "global",
        length=config.length,
    )
    known = {j: group_importance(config.importance, [u.delta[j] for u in updates], started[j]) for j in steps}
    tensors = {**state.tensors, IMPORTANCE: to_tensor(known, layout)}
    return replace(state, models={"global": apply_step(theta, steps)}, tensors=tensors)
