"""FedAvg: every client trains the whole model, the server takes the weighted mean; four hooks change it.

``Theta^{r+1} = Theta^r + sum_n p_n Delta_n``, ``p_n = 1/N`` (``weighting="samples"``: ``n_n / sum n``).

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from math import inf
from operator import itemgetter
from typing import Any, ClassVar, Literal, TypeAlias
from urllib.parse import quote, unquote

import torch
from torch import Tensor

from relief_ray.core.client import ClientProgram, LocalStep, task_loss
from relief_ray.core.federated import Insight, PlannedRun, RoundContext, RoundVoid, ServerTools, Strategy
from relief_ray.core.groups import WHOLE, ParamGroup, Params
from relief_ray.core.messages import Assignment, ClientInfo, Fleet, Json, Reduced, ServerState, WeightedSum
from relief_ray.plugins.blame import refuse_other_arguments, require
from relief_ray.plugins.contract import held, sum_violation
from relief_ray.plugins.load import is_own
from relief_ray.server.aggregation import apply_parts, by_task, one_bucket
from relief_ray.strategies.common import Preset, StrategyConfig, mean_change, train_parts
from relief_ray.support.errors import UserError, nearest, shown

# One model, each client weighed as its task says.
MEAN = WeightedSum(weight=by_task, bucket=one_bucket)
# Values by name that a server keeps between rounds: tensors, JSON values, and further such mappings.
Memory: TypeAlias = "Mapping[str, Tensor | Json | Memory]"
# First part of their names in a server's state: ``memory/v/fusion.B``.
_MEMORY = "memory"


class FedAvg(StrategyConfig):
    """Configuration of FedAvg, the reference of every table: 1.00x time, bytes and energy.

    A method of one's own derives from it and overrides ``weight``, ``train``, ``client_loss`` or ``server_step``.
    """

    title = "FedAvg"
    kind = "baseline"
    about = "every client trains and sends the whole model; mean with equal weights"
    citation = "mcmahan2017fedavg"
    flops_per_value: ClassVar[float] = 0.0
    """FLOPs that ``client_loss`` costs beside the task's loss, per trained value and optimizer step; they are charged.
    """
    name: Literal["fedavg"] = "fedavg"

    def weight(self, client: ClientInfo, fleet: Fleet) -> float:
        """Weight ``w_n`` of a client in the mean, asked once a task and kept in ``Assignment.weight``; at least 0."""
        return float(client.num_windows) if self.weighting == "samples" else 1.0

    def train(self, client: ClientInfo, groups: Sequence[ParamGroup]) -> Sequence[ParamGroup]:
        """Choose the ``groups`` that a client trains and sends, at least one; it receives all, or those it reaches."""
        return groups

    def client_loss(self, step: LocalStep) -> Tensor:
        """Loss of a mini-batch, a scalar: cross-entropy of Eq. (2), mean over the batch."""
        return task_loss(step)

    def server_step(self, mean: Params, memory: Memory) -> tuple[Params, Memory]:
        """What is added to the model, for every group, and what the next round's call is given as ``memory``.

        ``mean``: ``sum_n p_n Delta_n`` of every group in float64, over all clients of the round: a group counts as
        unchanged where a client did not send it. ``memory``: {} before round 1; checkpoints hold it.
        """
        return mean, memory

    @property
    def no_average(self) -> str:  # type: ignore[override]
        """Why ``server.optimizer`` is refused: the class has a step of its own."""
        is_plain = type(self).server_step is FedAvg.server_step
        return "" if is_plain else "its server_step makes the server's step already"

    @property
    def only_whole(self) -> str:  # type: ignore[override]
        """Why ``transfer.download=reachable`` is refused; it is not where a class has a ``train`` of its own."""
        return StrategyConfig.only_whole if type(self).train is FedAvg.train else ""

    def build(self) -> Strategy:
        """Build the strategy of these hooks.

        Raises:
            UserError: ``flops_per_value`` is no number of FLOPs.
        """
        kind, flops = type(self), self.flops_per_value
        if not isinstance(flops, int | float) or not 0.0 <= flops < inf:
            raise UserError(
                f"class {kind.__name__}: flops_per_value = {shown(flops)}, expected FLOPs per trained value, at least 0"
            )
        for name in sorted(set(vars(kind)) - set(dir(FedAvg)) if is_own(kind) else ()):
            if name[0] != "_" and callable(vars(kind)[name]) and (meant := nearest(name, _HOOKS)):
                raise UserError(
                    f"class {kind.__name__}: {name} is called by nobody{meant}; rename it, or begin it with _"
                )
        for name, arguments in _HOOKS.items():
            if getattr(kind, name) is not getattr(FedAvg, name):
                refuse_other_arguments(getattr(self, name), name, *arguments)
        is_plain = kind.client_loss is FedAvg.client_loss  # whose loss the engines know
        return Strategy(
            name=kind.__name__ if is_own(kind) else self.name,
            allocate=partial(allocate, held("weight", self.weight), held("train", self.train), flops),
            reduction=MEAN,
            client=ClientProgram() if is_plain else ClientProgram(objective=self.client_loss),
            aggregate=partial(aggregate, held("server_step", self.server_step)),
            insight=Insight() if is_plain or flops else Insight(warnings=partial(uncharged, kind.__name__)),
        )


# Functions of a class, and what each is called with.
_HOOKS: Mapping[str, Sequence[str]] = {
    "weight": ("client", "fleet"),
    "train": ("client", "groups"),
    "client_loss": ("step",),
    "server_step": ("mean", "memory"),
}
PRESETS = {"fedavg": Preset(FedAvg())}


def uncharged(name: str, run: PlannedRun) -> tuple[str, ...]:
    """Warn that what a loss of one's own computes beside the task's loss costs no simulated seconds or joules."""
    return (f"{name}: its client_loss is charged nothing beside the task's loss; say what it costs in flops_per_value",)


def allocate(
    weight: Callable[[ClientInfo, Fleet], float],
    train: Callable[[ClientInfo, Sequence[ParamGroup]], Sequence[ParamGroup]],
    flops_per_value: float,
    state: ServerState,
    context: RoundContext,
) -> tuple[Assignment, ...]:
    """Every participant receives everything, and trains and sends what ``train`` says.

    Raises:
        ContractViolated: a mean cannot be divided by the sum of their weights, e.g. 0.
    """
    layout, fleet = context.layout, context.fleet
    tasks = []
    for client in context.participants:
        down = context.download(client)
        chosen = layout.select(train(client, tuple(g for g in layout if g.id in down)))
        flops = flops_per_value * layout.num_values(chosen)
        task = train_parts(context, client, chosen, down)
        tasks.append(replace(task, step_flops=flops, weight=weight(client, fleet)))
    total = sum(task.weight for task in tasks)
    if tasks and (wrong := sum_violation(total, f"all {len(tasks)} clients of round {context.round}")):
        require(weight, "weight", "", lambda: wrong)
    return tuple(tasks)


def aggregate(
    server_step: Callable[[Params, Memory], tuple[Params, Memory]],
    state: ServerState,
    reduced: Reduced,
    tools: ServerTools,
) -> ServerState:
    """``Theta + step`` (McMahan et al. 2017, Algorithm 1), of the parts of groups that clients sent.

    Raises:
        RoundVoid: only clients of weight 0 answered.
    """
    sent = {j: part for r in reduced.receipts for j, part in r.assignment.up.items()}
    if not any(r.assignment.weight for r in reduced.receipts):
        raise RoundVoid(f"round {tools.round}: all {len(reduced.receipts)} clients that answered have weight 0")
    change = mean_change(MEAN, reduced, tools)
    layout = tools.layout
    mean = {g.id: change[g.id] if g.id in change else torch.zeros(g.numel, dtype=torch.float64) for g in layout}
    step, memory = server_step(mean, recalled(state))
    step = {j: moved for j, moved in step.items() if j in change or moved is not mean[j]}
    after = apply_parts(state.models["global"], step, {j: sent.get(j, WHOLE) for j in step}, layout)
    return with_memory(replace(state, models={"global": after}), memory)


def with_memory(state: ServerState, memory: Memory) -> ServerState:
    """The state with this memory alone: tensors among its ``tensors``, all else among its ``facts``, by path."""
    tensors = {path: value for path, value in state.tensors.items() if not _is_memory(path)}
    facts = {path: value for path, value in state.facts.items() if not _is_memory(path)}
    for path, value in _leaves(memory, _MEMORY):
        if isinstance(value, Tensor):
            tensors[path] = value
        else:
            facts[path] = value
    return replace(state, tensors=tensors, facts=facts)


def recalled(state: ServerState) -> dict[str, Any]:
    """The memory of a state; names come in alphabetical order, in a resumed run as in any other."""
    memory: dict[str, Any] = {}
    for path, value in sorted({**state.tensors, **state.facts}.items(), key=itemgetter(0)):
        if _is_memory(path):
            *above, name = map(unquote, path.split("/")[1:])
            reduce(lambda node, place: node.setdefault(place, {}), above, memory)[name] = value
    return memory


def _is_memory(path: str) -> bool:
    return path.startswith(f"{_MEMORY}/")


def _leaves(memory: Memory, above: str) -> Iterator[tuple[str, Any]]:
    for name, value in memory.items():
        path = f"{above}/{quote(name, safe='')}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, path)
        else:
            yield path, value
