"""Averages of the server's models over rounds, which tests read and training never does (``evaluation.average``).

``tail``: at a tested round r the mean of rounds r - w + 1 .. r. A running mean is kept for each coming test whose
window has begun: none between two windows, one inside a window, at most ``ceil(w / every) + 1``. ``ema``:
``x <- d x + (1 - d) theta`` from the first round on: one copy. A copy is float32, as large as all models that the
server holds; the first round of a mean needs none. Every model is averaged by what it stands for
(``Strategy.identities``), so that a cluster that is formed anew begins a mean anew. Tensors that are not floating-point
are the last round's. Personal parts, which clients keep, are never averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from relief_ray.config.experiment import EvaluationConfig, ExperimentConfig
from relief_ray.core.groups import GroupId, Params
from relief_ray.core.messages import ServerState
from relief_ray.records.checkpoint import Averages

NO_AVERAGES = Averages()


def is_tested(config: ExperimentConfig, round_: int) -> bool:
    """Whether models are evaluated after this round."""
    return round_ % config.evaluation.every == 0 or round_ == config.rounds


def advanced(
    config: ExperimentConfig, averages: Averages, round_: int, state: ServerState, identities: Mapping[str, str]
) -> Averages:
    """Return the averages with this round's models; ``identities``: what each of the models stands for."""
    models: dict[str, Params] = {}
    num_rounds: dict[str, int] = {}
    for end in _open_ends(config, round_):
        for name, theta in state.models.items():
            key = f"{end}/{identities[name]}"
            number = averages.num_rounds.get(key, 0) + 1
            share = _share_of_newest(config.evaluation, number)
            models[key] = theta if number == 1 else _mixed(averages.models[key], theta, share)
            num_rounds[key] = number
    return Averages(models=models, num_rounds=num_rounds)


def with_averages(state: ServerState, averages: Averages, identities: Mapping[str, str]) -> ServerState:
    """Return ``state`` with averaged models; between two tests, those of the next one as far as they have come."""
    ends = [int(key.partition("/")[0]) for key in averages.models]
    if not ends:
        return state
    means = {name: averages.models.get(f"{min(ends)}/{identities[name]}") for name in state.models}
    return replace(state, models={name: means[name] or theta for name, theta in state.models.items()})


def _open_ends(config: ExperimentConfig, round_: int) -> list[int]:
    """Last rounds of the averages that this round counts in."""
    how = config.evaluation
    if how.average == "last":
        return []
    if how.average == "ema":
        return [config.rounds]
    last = min(round_ + how.window - 1, config.rounds)
    return [end for end in range(round_, last + 1) if is_tested(config, end)]


def _share_of_newest(how: EvaluationConfig, number: int) -> float:
    """Weight of the newest of ``number`` rounds."""
    return 1.0 / number if how.average == "tail" else 1.0 - how.decay


def _mixed(mean: Params, newest: Params, share: float) -> dict[GroupId, Tensor]:
    """``(1 - share) mean + share newest``, computed in float64."""
    return {j: _mix(mean[j], value, share) if value.is_floating_point() else value for j, value in newest.items()}


def _mix(mean: Tensor, newest: Tensor, share: float) -> Tensor:
    both = (1.0 - share) * mean.to(torch.float64) + share * newest.to(torch.float64)
    return both.to(newest.dtype)
