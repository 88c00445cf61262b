"""HeLoRA-KD: deep mutual learning on the server; models of any size teach each other on windows without labels.

Per batch of public windows: ``t = sum_k p_k z_k`` of the models' logits ``z_k``, a constant; every model takes one step
of AdamW on ``KL(softmax(t) | softmax(z_k))``, whose gradient in ``z_k`` is ``(softmax(z_k) - softmax(t)) / B``.

Client ``k`` trains ``theta_k`` of its own rank and sends it; after mutual learning it gets its own model back, at the
same rank. The canonical model, a diagnostic, is the mean of the largest of those with all sensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from relief_ray.core.federated import ServerTools
from relief_ray.core.groups import GroupId, GroupLayout, Params, Selection
from relief_ray.core.messages import ClientId, ClientInfo, EvalPlan, EvalTarget, Fleet, Reduced, ServerState, Update
from relief_ray.core.protocols import Network
from relief_ray.core.streams import Streams
from relief_ray.server.aggregation import apply_parts, mix_models, model_of, normalised, richest
from relief_ray.server.reduction import one_thread
from relief_ray.support.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Pupil:
    """Client's model: its trainable parts (``own``), its sensors, and its weight in the common target."""

    params: Params
    own: Selection
    modalities: tuple[str, ...]
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Hyperparameters of AdamW, whose moments start afresh in every round; the defaults are the official code's."""

    epochs: int = 10
    batch_size: int = 32
    lr: float = 5e-5
    weight_decay: float = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class _Learner:
    """Model during learning; ``fixed``: views of the ranks and rows that it does not have, with their values."""

    pupil: Pupil
    network: Network
    parameters: list[nn.Parameter]
    optimizer: torch.optim.AdamW
    fixed: list[tuple[Tensor, Tensor]]

    def logits(self, windows: Mapping[str, Tensor]) -> Tensor:
        """Logits (B, K) from its own sensors alone."""
        seen = {m: x for m, x in windows.items() if m in self.pupil.modalities}
        return self.network.read(seen, (None,))[None].logits


def teach_each_other(
    pupils: Sequence[Pupil],
    windows: Mapping[str, Tensor],
    layout: GroupLayout,
    build: Callable[[], Network],
    recipe: Recipe,
    draws: tuple[Streams, int],
) -> list[dict[GroupId, Tensor]]:
    """Train the models on each other; all outside a pupil's ``own`` parts stays bit for bit.

    ``windows``: modality -> (n, C, T), standardised; ``draws``: the run's streams and the round.
    """
    num = len(next(iter(windows.values())))
    with one_thread():
        learners = [_learner(pupil, layout, build(), recipe) for pupil in pupils]
        for epoch in range(recipe.epochs):
            order = torch.randperm(num, generator=draws[0].torch("mutual", draws[1], epoch))
            for index in torch.split(order, recipe.batch_size):
                _learn_step(learners, {m: x[index] for m, x in windows.items()})
        return [_values(learner.network) for learner in learners]


def pull(logits_BK: Tensor, target_BK: Tensor) -> Tensor:
    """Gradient of the batch's mean ``KL(softmax(target) | softmax(logits))`` in ``logits``: 0 where they agree."""
    return (torch.softmax(logits_BK, 1) - torch.softmax(target_BK, 1)) / len(logits_BK)


def truncated(theta: Params, own: Selection, layout: GroupLayout) -> dict[GroupId, Tensor]:
    """Cut ``theta`` to the ranks of ``own``: LoRA factors are zero beyond them; other groups stay whole."""
    after = dict(theta)
    for j, part in own.items():
        if part.rank is not None:
            index = layout.indices(j, part)
            after[j] = torch.zeros_like(theta[j])
            after[j][index] = theta[j][index]
    return after


def _learner(pupil: Pupil, layout: GroupLayout, network: Network, recipe: Recipe) -> _Learner:
    network.load(pupil.params)
    parameters = [p for j in pupil.own for p in network.parameters[j]]
    fixed = []
    for j, part in pupil.own.items():
        for spec, p in zip(layout[j].tensors, network.parameters[j], strict=True):
            axis, number = part.lead(spec)
            if number < spec.shape[axis]:
                beyond = p.detach().narrow(axis, number, spec.shape[axis] - number)
                fixed.append((beyond, beyond.clone()))
    adam = torch.optim.AdamW(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay, foreach=False)
    return _Learner(pupil=pupil, network=network, parameters=parameters, optimizer=adam, fixed=fixed)


def _learn_step(learners: Sequence[_Learner], windows: Mapping[str, Tensor]) -> None:
    """Take one step of every model towards the mean of all models' logits before the step."""
    logits_of_all = [learner.logits(windows) for learner in learners]
    # In float64 the mean of equal logits is that logit to the bit: models that agree do not move.
    weighted = [m.pupil.weight * z.detach().to(torch.float64) for m, z in zip(learners, logits_of_all, strict=True)]
    target = (torch.stack(weighted).sum(0) / sum(m.pupil.weight for m in learners)).to(torch.float32)
    for learner, logits in zip(learners, logits_of_all, strict=True):
        wanted = pull(logits.detach(), target)
        gradients = torch.autograd.grad(logits, learner.parameters, grad_outputs=wanted, allow_unused=True)
        for p, gradient in zip(learner.parameters, gradients, strict=True):
            p.grad = gradient
        learner.optimizer.step()
        for beyond, value in learner.fixed:
            beyond.copy_(value)


def _values(network: Network) -> dict[GroupId, Tensor]:
    return {j: torch.cat([p.detach().reshape(-1) for p in ps]) for j, ps in network.parameters.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class KdSettings:
    """Settings of HeLoRA-KD.

    Attributes:
        sizes: parts of the model that a client has.
        shares: weights of all clients.
        recipe: hyperparameters of mutual learning.
        num_windows: number of public windows, at most.
    """

    sizes: Callable[[GroupLayout, ClientInfo], Selection]
    shares: Callable[[Fleet], list[float]]
    recipe: Recipe
    num_windows: int


def own_models(settings: KdSettings, layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    """Initial state: the common start for every client, at its own rank."""
    models = {model_of(c.id): truncated(start, settings.sizes(layout, c), layout) for c in fleet.clients}
    return ServerState(models={**models, "global": canonical(settings, models, layout, fleet)})


def teach(settings: KdSettings, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """Let the participants' models learn from each other; absent clients keep their models."""
    layout, fleet, draws = tools.layout, tools.fleet, (tools.streams, tools.round)
    shares = settings.shares(fleet)
    pupils = [_pupil(state, update, tools, shares) for update in reduced.updates]
    windows = public_windows(tools, settings.num_windows)
    after = teach_each_other(pupils, windows, layout, tools.build, settings.recipe, draws)
    names = [model_of(u.receipt.assignment.client) for u in reduced.updates]
    models = {**state.models, **dict(zip(names, after, strict=True))}
    return replace(state, models={**models, "global": canonical(settings, models, layout, fleet)})


def _pupil(state: ServerState, update: Update, tools: ServerTools, shares: list[float]) -> Pupil:
    task = update.receipt.assignment
    theta = apply_parts(state.models[task.view], update.delta, task.up, tools.layout)
    modalities = tools.fleet[task.client].modalities
    return Pupil(params=theta, own=task.up, modalities=modalities, weight=shares[task.client])


def fullest(settings: KdSettings, layout: GroupLayout, fleet: Fleet) -> list[ClientId]:
    """Clients that have most of the model among those with most sensors."""
    numel = {n: layout.num_values(settings.sizes(layout, fleet[n])) for n in richest(fleet)}
    return [n for n in numel if numel[n] == max(numel.values())]


def canonical(settings: KdSettings, models: Mapping[str, Params], layout: GroupLayout, fleet: Fleet) -> Params:
    """Mean of the fullest clients' models; it averages both factors of ``B A``, so it is a diagnostic only."""
    chosen, shares = fullest(settings, layout, fleet), settings.shares(fleet)
    return mix_models([models[model_of(n)] for n in chosen], normalised([shares[n] for n in chosen]), layout.ids)


def public_windows(tools: ServerTools, most: int) -> dict[str, Tensor]:
    """Take at most ``most`` public windows at even distances: modality -> (n, C, T), standardised.

    Raises:
        UserError: there are none.
    """
    if tools.public is None or not len(tools.public):
        raise UserError("strategy helora, variant=kd: found no public windows, expected some; take variant=pad")
    num = min(most, len(tools.public))
    chosen = tools.public.take([i * len(tools.public) // num for i in range(num)])
    return {m: torch.from_numpy(x) for m, x in chosen.load().items()}


def each_its_own(state: ServerState, fleet: Fleet) -> EvalPlan:
    """Evaluate every client's model with its own sensors; canonical: the mean of the fullest."""
    targets = (
        EvalTarget(label=model_of(c.id), view=model_of(c.id), client=c.id, modalities=c.modalities)
        for c in fleet.clients
    )
    return EvalPlan(canonical=EvalTarget(label="global"), clients=tuple(targets))
