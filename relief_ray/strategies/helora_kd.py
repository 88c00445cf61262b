"""HeLoRA-KD: models of different ranks stay apart and teach each other on public windows at the server.

Client ``k`` trains ``theta_k`` of its own rank and sends it; the server lets the round's models learn from their mean
logits (``server.mutual``) and gives each client its own one back. Nobody's model has another rank afterwards. The
canonical model, a diagnostic, is the mean of the largest of those with all sensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relief_ray.errors import UserError
from relief_ray.federated import ServerTools
from relief_ray.groups import GroupLayout, Params, Selection
from relief_ray.messages import ClientId, ClientInfo, EvalPlan, EvalTarget, Fleet, Reduced, ServerState, Update
from relief_ray.server.aggregation import apply_parts
from relief_ray.server.mutual import Pupil, Recipe, teach_each_other, truncated
from relief_ray.server.neighbours import mean
from relief_ray.server.tasks import richest, view
from relief_ray.streams import Streams


@dataclass(frozen=True, kw_only=True, slots=True)
class Lessons:
    """What each client has of the model, its weight, how models are taught and on how many public windows at most."""

    sizes: Callable[[GroupLayout, ClientInfo], Selection]
    shares: Callable[[Fleet], list[float]]
    recipe: Recipe
    num_windows: int


def own_models(lessons: Lessons, layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    """A model for everybody: the common start at its own rank."""
    models = {view(c.id): truncated(start, lessons.sizes(layout, c), layout) for c in fleet.clients}
    return ServerState(models={**models, "global": canonical(lessons, models, layout, fleet)})


def teach(lessons: Lessons, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """Every participant's model as it came back, then the lessons; who was absent keeps its own."""
    layout, fleet, draws = tools.layout, tools.fleet, (tools.streams, tools.round)
    shares = lessons.shares(fleet)
    pupils = [_pupil(state, update, tools, shares) for update in reduced.updates]
    windows = public_windows(tools, lessons.num_windows)
    after = teach_each_other(pupils, windows, layout, tools.build, lessons.recipe, draws)
    names = [view(u.receipt.assignment.client) for u in reduced.updates]
    models = {**state.models, **dict(zip(names, after, strict=True))}
    return replace(state, models={**models, "global": canonical(lessons, models, layout, fleet)})


def _pupil(state: ServerState, update: Update, tools: ServerTools, shares: list[float]) -> Pupil:
    task = update.receipt.assignment
    theta = apply_parts(state.models[task.view], update.delta, task.up, tools.layout)
    modalities = tools.fleet[task.client].modalities
    return Pupil(params=theta, own=task.up, modalities=modalities, weight=shares[task.client])


def fullest(lessons: Lessons, layout: GroupLayout, fleet: Fleet) -> list[ClientId]:
    """Of the clients with most sensors those that have most of the model: all of it, where anybody has."""
    numel = {n: layout.num_values(lessons.sizes(layout, fleet[n])) for n in richest(fleet)}
    return [n for n in numel if numel[n] == max(numel.values())]


def canonical(lessons: Lessons, models: Mapping[str, Params], layout: GroupLayout, fleet: Fleet) -> Params:
    """The mean of the fullest clients' models; of a product ``B A`` both factors', so a diagnostic alone."""
    chosen, shares = fullest(lessons, layout, fleet), lessons.shares(fleet)
    return mean([models[view(n)] for n in chosen], [shares[n] for n in chosen], layout.ids)


def public_windows(tools: ServerTools, most: int) -> dict[str, Tensor]:
    """At most so many of the public windows, evenly over them: modality -> (n, C, T), standardised.

    Raises:
        UserError: there are none.
    """
    if tools.public is None or not len(tools.public):
        raise UserError("strategy helora, variant=kd: found no public windows, expected some; take variant=pad")
    num = min(most, len(tools.public))
    chosen = tools.public.take([i * len(tools.public) // num for i in range(num)])
    return {m: torch.from_numpy(x) for m, x in chosen.load().items()}


def each_its_own(state: ServerState, fleet: Fleet) -> EvalPlan:
    """Every client's model through its own sensors; canonical is the mean of the fullest."""
    targets = (
        EvalTarget(label=view(c.id), view=view(c.id), client=c.id, modalities=c.modalities) for c in fleet.clients
    )
    return EvalPlan(canonical=EvalTarget(label="global"), clients=tuple(targets))
