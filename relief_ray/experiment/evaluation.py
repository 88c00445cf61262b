"""Models to evaluate after a round, and a finished run's last model evaluated through any sets of sensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from relief_ray.config.experiment import ExperimentConfig, recorded_config
from relief_ray.core.groups import GroupLayout, Params
from relief_ray.core.messages import (
    ClientView,
    EvalPlan,
    EvalTarget,
    Fleet,
    Models,
    ServerState,
    States,
    masked_label,
)
from relief_ray.data.window_set import WindowSet
from relief_ray.experiment.lifecycle import as_begun
from relief_ray.experiment.recording import binding_of
from relief_ray.experiment.setup import Setup
from relief_ray.records import checkpoint
from relief_ray.records.cells import refuse_contradicted
from relief_ray.records.checkpoint import Averages
from relief_ray.records.metrics import macro_f1, summarise
from relief_ray.records.run_folder import RUN_FILE, read_run
from relief_ray.records.schema import RunRecord
from relief_ray.server.aggregation import mean_personal
from relief_ray.support.errors import UserError, nearest
from relief_ray.support.process import use_threads
from relief_ray.support.text import typed
from relief_ray.training.executor import SerialExecutor
from relief_ray.training.job import Job

# Averages of the server's models over rounds, which tests read and training never does (``evaluation.average``).
#
# ``tail``: at a tested round r the mean of rounds r - w + 1 .. r. A running mean is kept for each coming test whose
# window has begun: none between two windows, one inside a window, at most ``ceil(w / every) + 1``. ``ema``: ``x <- d x
# + (1 - d) theta`` from the first round on: one copy. A copy is float32, as large as all models that the server holds;
# the first round of a mean needs none. Every model is averaged by what it stands for (``Averaging.identities``), so
# that a cluster that is formed anew begins a mean anew. Tensors that are not floating-point are the last round's.
# Personal parts, which clients keep, are never averaged.


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
            share = 1.0 / number if config.evaluation.average == "tail" else 1.0 - config.evaluation.decay
            models[key] = theta if number == 1 else {j: _mix(averages.models[key][j], theta[j], share) for j in theta}
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


def _mix(mean: Tensor, newest: Tensor, share: float) -> Tensor:
    """``(1 - share) mean + share newest``, computed in float64; what is no floating-point number is the newest."""
    if not newest.is_floating_point():
        return newest
    both = (1.0 - share) * mean.to(torch.float64) + share * newest.to(torch.float64)
    return both.to(newest.dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationInputs:
    """Arguments of ``Executor.evaluate``.

    Attributes:
        plan: the strategy's plan.
        models: models by name, each a vector per group.
        targets: models to evaluate, first the canonical one, where there is one.
        states: personal state of the clients among them.
    """

    plan: EvalPlan
    models: Models
    targets: tuple[EvalTarget, ...]
    states: States


def evaluation_inputs(
    setup: Setup, state: ServerState, personal: States, averages: Averages = NO_AVERAGES
) -> EvaluationInputs:
    """Return the models that the strategy wants evaluated, as clients decode them.

    ``personal``: personal state by client; ``averages``: models that take the place of the server's own.
    """
    state = with_averages(state, averages, setup.strategy.averaging.identities(state))
    plan = setup.strategy.evaluate(state, setup.fleet)
    models, canonical = dict(setup.received(state.models)), plan.canonical
    if canonical and canonical.client is None and canonical.keep:
        # Under another name: clients that keep nothing yet are evaluated on the view as it is.
        view = models[canonical.view]
        models["mean"] = mean_personal(view, personal, canonical.keep, setup.layout, canonical.mean_of)
        canonical = replace(canonical, view="mean", keep={})
    targets = (*((canonical,) if canonical else ()), *plan.clients)
    states = {t.client: personal[t.client] for t in targets if t.client is not None and t.client in personal}
    return EvaluationInputs(plan=plan, models=models, targets=targets, states=states)


def served(inputs: EvaluationInputs, layout: GroupLayout) -> dict[str, Params]:
    """Return the values of every model that is evaluated, by its target's label: with what its client keeps."""
    return {
        target.label: mean_personal(
            inputs.models[target.view],
            {client: state for client, state in inputs.states.items() if client == target.client},
            target.keep,
            layout,
        )
        for target in inputs.targets
    }


def client_views(job: Job, part: WindowSet) -> list[ClientView]:
    """Return each client's sensors, and the rows of its own subjects in the part's confusion matrices."""
    subjects = np.unique(part.subjects)
    return [
        ClientView(
            client=c.id,
            modalities=c.modalities,
            rows=tuple(np.flatnonzero(np.isin(subjects, job.clients[c.id].subjects)).tolist()),
        )
        for c in job.fleet.clients
    ]


Sensors = tuple[str, ...]

Part = Literal["test", "validation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Macro-F1 of one model through one set of sensors.

    Attributes:
        sensors: the sensors that it was given.
        num_clients: number of clients with exactly these.
        f1: macro-F1, 0 to 1.
        client: the client whose model it is; None: the canonical model.
    """

    sensors: Sensors
    num_clients: int
    f1: float
    client: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Scores of a run's models.

    Attributes:
        strategy: label of the method.
        round: number of the checkpoint's round.
        part: ``test`` or ``validation``.
        num_windows: number of windows of the part.
        canonical: scores of the canonical model, by set of sensors.
        own: scores of what clients run through their own sensors, where that is not the whole canonical model.
        personal: whether ``own`` is of models of the clients' own.
        f1_own_sensors: as in records (``records.schema.Metrics``): of the model that each client uses.
        f1_own_subjects: likewise.
    """

    strategy: str
    round: int
    part: str
    num_windows: int
    canonical: tuple[Score, ...]
    own: tuple[Score, ...]
    personal: bool
    f1_own_sensors: float | None
    f1_own_subjects: float | None

    @property
    def f1_canonical_own_sensors(self) -> float | None:
        """Mean over all clients of the canonical model's F1 through each client's sensors; None without that model."""
        num_clients = sum(s.num_clients for s in self.canonical)
        return sum(s.num_clients * s.f1 for s in self.canonical) / num_clients if num_clients else None


def evaluate_run(path: Path, more: Iterable[Sensors] = (), part: Part = "test") -> Evaluation:
    """Evaluate the model of the newest checkpoint on ``part``, in this process; writes nothing.

    An older one never stands in for a damaged one. The canonical model is evaluated through all sensors, each one
    alone, each client's and ``more``.

    Raises:
        UserError: no checkpoint, a damaged one, other data or encoder than the run's, or an unknown sensor.
    """
    run, setup, point = open_saved(path)
    use_threads(setup.job.num_threads)
    inputs = evaluation_inputs(setup, point.state, point.clients, point.averages)
    sets = sensor_sets(setup.fleet, [_known_sensors(sensors, setup.fleet) for sensors in more])
    job = replace(setup.job, parts={part: getattr(setup.data, part)})
    return _scores(job, run.strategy, inputs, sets, point.round)


def open_saved(path: Path, round_: int | None = None) -> tuple[RunRecord, Setup, checkpoint.Checkpoint]:
    """Return a run's record, its setup, and its checkpoint of ``round_``, or the newest (None).

    Raises:
        UserError: no such checkpoint, a damaged one, or other data or encoder than the run's.
    """
    run = read_run(path)
    saved = _saved_round(path, run, round_)
    setup = as_begun(run, path, recorded_config(run, str(path / RUN_FILE)))
    point = checkpoint.load(path, binding_of(setup, run), saved)
    if round_ is None:
        refuse_contradicted(path, run)
    assert point is not None
    return run, setup, point


def _saved_round(run_folder: Path, run: RunRecord, round_: int | None) -> int:
    """Return the round of the checkpoint to read: ``round_``, or the newest (None).

    Raises:
        UserError: there is none.
    """
    kept = [checkpoint.round_of(path) for path in checkpoint.generations(run_folder)]
    if not kept:
        go_on = f"has no checkpoint yet; go on with: relief-ray resume {typed(run_folder)}"
        what = f"has no checkpoint any more; {checkpoint.AGAIN}" if run.status == "done" else go_on
        raise UserError(f"{run_folder}: the run is {run.status} and {what}")
    if round_ is not None and round_ not in kept:
        raise UserError(
            f"{run_folder}: no checkpoint of round {round_}; a run keeps its newest two, here of "
            f"{' and '.join(f'round {r}' for r in sorted(kept))}; name one of them with --round"
        )
    return kept[0] if round_ is None else round_


def sensor_sets(fleet: Fleet, more: Sequence[Sensors] = ()) -> tuple[Sensors, ...]:
    """List all sensors, then the clients' sets from large to small, then single sensors, then ``more``; each once."""
    owned = sorted({c.modalities for c in fleet.clients}, key=lambda s: (-len(s), s))
    return tuple(dict.fromkeys([tuple(fleet.modalities), *owned, *((m,) for m in fleet.modalities), *more]))


def _known_sensors(sensors: Sensors, fleet: Fleet) -> Sensors:
    """Return the named sensors in the fleet's order.

    Raises:
        UserError: there is no such sensor, or none was named.
    """
    for sensor in sensors:
        if sensor not in fleet.modalities:
            known = ", ".join(fleet.modalities)
            raise UserError(
                f"--sensors {'+'.join(sensors)}: no {sensor!r}; known: {known}{nearest(sensor, fleet.modalities)}"
            )
    if not sensors:
        raise UserError(f"--sensors: expected sensors joined by +, e.g. {'+'.join(fleet.modalities[:2])}")
    return tuple(m for m in fleet.modalities if m in sensors)


def _scores(job: Job, strategy: str, inputs: EvaluationInputs, sets: Sequence[Sensors], round_: int) -> Evaluation:
    plan, everything = inputs.plan, job.fleet.modalities
    one = plan.canonical and inputs.targets[0]
    masked = {s: replace(one, label=masked_label(one.label, s, everything), modalities=s) for s in sets} if one else {}
    (part,) = job.parts
    matrices = SerialExecutor(job).evaluate(inputs.models, (*masked.values(), *plan.clients), inputs.states, part)
    f1 = {label: macro_f1(matrix.sum(0)) for label, matrix in matrices.items()}
    owners = Counter(c.modalities for c in job.fleet.clients)
    metrics = summarise(matrices, plan, (), (), client_views(job, job.parts[part]), everything)
    return Evaluation(
        strategy=strategy,
        round=round_,
        part=part,
        num_windows=metrics.num_windows,
        canonical=tuple(Score(sensors=s, num_clients=owners[s], f1=f1[t.label]) for s, t in masked.items()),
        own=tuple(
            Score(sensors=t.modalities or (), num_clients=1, f1=f1[t.label], client=t.client) for t in plan.clients
        ),
        personal=plan.personal,
        f1_own_sensors=metrics.f1_own_sensors,
        f1_own_subjects=metrics.f1_own_subjects,
    )
