"""HeLoRA-KD: models of different ranks stay apart and teach each other on public windows at the server.

Client ``k`` trains ``theta_k`` of its own rank and sends it; the server lets the round's models learn from their mean
logits (``server.mutual``) and gives each client its own one back. Nobody's model has another rank afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from relief_ray.errors import UserError
from relief_ray.federated import ServerTools
from relief_ray.groups import GroupLayout, Params, Selection
from relief_ray.messages import ClientInfo, EvalPlan, EvalTarget, Fleet, Reduced, ServerState, Update
from relief_ray.server.aggregation import apply_parts
from relief_ray.server.mutual import Pupil, Recipe, teach_each_other, truncated
from relief_ray.streams import Streams

Sizes = Callable[[GroupLayout, ClientInfo], Selection]


def own_view(client: int) -> str:
    """The name of a client's model."""
    return f"client.{client}"


def own_models(sizes: Sizes, layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    """A model for everybody: the common start at its own rank."""
    return ServerState(models={own_view(c.id): truncated(start, sizes(layout, c), layout) for c in fleet.clients})


def teach(
    recipe: Recipe, num_windows: int, by_samples: bool, state: ServerState, reduced: Reduced, tools: ServerTools
) -> ServerState:
    """Every participant's model as it came back, then the lessons; who was absent keeps its own."""
    pupils = [_pupil(state, update, tools, by_samples) for update in reduced.updates]
    windows = public_windows(tools, num_windows)
    after = teach_each_other(pupils, windows, tools.layout, tools.build, recipe, (tools.streams, tools.round))
    names = [own_view(u.receipt.assignment.client) for u in reduced.updates]
    return replace(state, models={**state.models, **dict(zip(names, after, strict=True))})


def _pupil(state: ServerState, update: Update, tools: ServerTools, by_samples: bool) -> Pupil:
    task = update.receipt.assignment
    info = tools.fleet[task.client]
    theta = apply_parts(state.models[task.view], update.delta, task.up, tools.layout)
    weight = float(info.num_windows) if by_samples else 1.0
    return Pupil(params=theta, own=task.up, modalities=info.modalities, weight=weight)


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
    """Every client's model through its own sensors; there is no common one."""
    targets = (
        EvalTarget(label=f"client.{c.id}", view=own_view(c.id), client=c.id, modalities=c.modalities)
        for c in fleet.clients
    )
    return EvalPlan(canonical=None, clients=tuple(targets))
