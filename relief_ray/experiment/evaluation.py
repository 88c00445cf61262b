"""The last model of a run, tested again: through the sensors of every client, and through any others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from relief_ray.config import parse
from relief_ray.errors import UserError, nearest
from relief_ray.experiment.lifecycle import as_begun
from relief_ray.experiment.recording import binding_of
from relief_ray.experiment.setup import Setup
from relief_ray.groups import Params
from relief_ray.messages import ClientId, ClientState, EvalPlan, EvalTarget, Fleet, ServerState
from relief_ray.process import use_threads
from relief_ray.records import checkpoint
from relief_ray.records.metrics import macro_f1
from relief_ray.records.run_folder import read_run
from relief_ray.server.aggregation import mean_personal
from relief_ray.training.job import Job
from relief_ray.training.serial_executor import SerialExecutor

# Which models an evaluation tests: the strategy's plan, with the parts that clients keep laid over what it names.


@dataclass(frozen=True, kw_only=True, slots=True)
class Tested:
    """Arguments of ``Executor.evaluate``; ``targets`` begins with the canonical model, where there is one."""

    plan: EvalPlan
    models: Mapping[str, Params]
    targets: tuple[EvalTarget, ...]
    states: Mapping[ClientId, ClientState]


def tested(setup: Setup, state: ServerState, known: Mapping[ClientId, ClientState]) -> Tested:
    """What the strategy wants tested after a round; ``known``: clients' personal state by then."""
    plan = setup.strategy.evaluate(state, setup.fleet)
    models, canonical = dict(state.models), plan.canonical
    if canonical and canonical.client is None and canonical.keep:
        # Under a name of its own: clients that keep nothing yet are tested on the view as it is.
        view = models[canonical.view]
        models["mean"] = mean_personal(view, known, canonical.keep, setup.layout, canonical.mean_of)
        canonical = replace(canonical, view="mean", keep={})
    targets = (*((canonical,) if canonical else ()), *plan.clients)
    states = {t.client: known[t.client] for t in targets if t.client is not None and t.client in known}
    return Tested(plan=plan, models=models, targets=targets, states=states)


Sensors = tuple[str, ...]

Part = Literal["test", "validation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Macro-F1 of one model through ``sensors``, which ``num_clients`` have; ``client`` None: the canonical model."""

    sensors: Sensors
    num_clients: int
    f1: float
    client: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Scores after ``round``.

    ``f1_own_sensors``: mean over all clients of the canonical model's F1 through each client's sensors: what
    ``f1_fleet``, the clients' own models through the same sensors, can be compared with. ``f1_own_subjects``: the same
    of the model that each client uses, its own or else the canonical one, on the windows of the subjects that it
    trained on alone; None where they are not in the part (held-out subjects).
    """

    strategy: str
    round: int
    part: str
    num_windows: int
    canonical: tuple[Score, ...]
    own: tuple[Score, ...]
    f1_own_sensors: float | None
    f1_own_subjects: float | None


def evaluate_run(path: Path, more: Iterable[Sensors] = (), part: Part = "test", root: Path | None = None) -> Evaluation:
    """Tests the model of the newest checkpoint on ``part``, in this process; writes nothing.

    The canonical model is seen through all sensors, each one alone, each client's and ``more``.

    Raises:
        UserError: no checkpoint, other data or encoder than the run's, or an unknown sensor.
    """
    run = read_run(path)
    setup = as_begun(run, path, parse(run.config, str(path / "run.json")), root)
    found = checkpoint.load(path, binding_of(setup))
    if found is None:
        raise UserError(f"{path}: no checkpoint yet; finish it with `relief-ray resume {path}`")
    use_threads(setup.job.num_threads)
    what = tested(setup, found.state, found.clients)
    wanted = masks(setup.fleet, [known_sensors(sensors, setup.fleet) for sensors in more])
    job = replace(setup.job, parts={part: getattr(setup.data, part)})
    return _scores(job, run.strategy, what, wanted, found.round)


def masks(fleet: Fleet, more: Sequence[Sensors] = ()) -> tuple[Sensors, ...]:
    """All sensors, then those of the clients from rich to poor, then one at a time, then ``more``; each set once."""
    owned = sorted({c.modalities for c in fleet.clients}, key=lambda s: (-len(s), s))
    return tuple(dict.fromkeys([tuple(fleet.modalities), *owned, *((m,) for m in fleet.modalities), *more]))


def known_sensors(asked: Sensors, fleet: Fleet) -> Sensors:
    """In the fleet's order.

    Raises:
        UserError: there is no such sensor, or none was named.
    """
    for sensor in asked:
        if sensor not in fleet.modalities:
            known = ", ".join(fleet.modalities)
            raise UserError(
                f"--sensors {'+'.join(asked)}: no {sensor!r}; known: {known}{nearest(sensor, fleet.modalities)}"
            )
    if not asked:
        raise UserError(f"--sensors: expected sensors joined by +, e.g. {'+'.join(fleet.modalities[:2])}")
    return tuple(m for m in fleet.modalities if m in asked)


def _scores(job: Job, strategy: str, what: Tested, wanted: Sequence[Sensors], round_: int) -> Evaluation:
    canonical = what.targets[0] if what.plan.canonical else None
    seen = {s: replace(canonical, label="+".join(s), modalities=s) for s in wanted} if canonical else {}
    targets: tuple[EvalTarget, ...] = (*seen.values(), *what.plan.clients)
    (part,) = job.parts
    matrices = SerialExecutor(job).evaluate(what.models, targets, what.states, part)
    f1 = {label: macro_f1(matrix.sum(0)) for label, matrix in matrices.items()}
    owners = Counter(c.modalities for c in job.fleet.clients)
    by_sensors = {s: f1[t.label] for s, t in seen.items()}
    used = {c.id: seen[c.modalities].label for c in job.fleet.clients} if seen else {}
    used |= {t.client: t.label for t in what.plan.clients if t.client is not None}
    through_own = [by_sensors[c.modalities] for c in job.fleet.clients] if seen else []
    return Evaluation(
        strategy=strategy,
        round=round_,
        part=part,
        num_windows=int(next(iter(matrices.values())).sum()),
        canonical=tuple(Score(sensors=s, num_clients=owners[s], f1=f1[t.label]) for s, t in seen.items()),
        own=tuple(
            Score(sensors=t.modalities or (), num_clients=1, f1=f1[t.label], client=t.client) for t in what.plan.clients
        ),
        f1_own_sensors=sum(through_own) / len(through_own) if through_own else None,
        f1_own_subjects=_on_own_subjects(job, {client: matrices[label] for client, label in used.items()}),
    )


def _on_own_subjects(job: Job, matrices: Mapping[ClientId, Tensor]) -> float | None:
    """Mean F1 over clients, from matrices (subjects of the part, classes, classes)."""
    (part,) = job.parts.values()
    tested_subjects, scores = np.unique(part.subjects), []
    for client, matrix in matrices.items():
        mine = np.isin(tested_subjects, job.clients[client].subjects)
        if not mine.any():
            return None
        scores.append(macro_f1(matrix[torch.from_numpy(mine)].sum(0)))
    return sum(scores) / len(scores)
