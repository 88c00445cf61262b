"""Scalar metrics and their values from confusion matrices (rows true).

``METRICS`` names those that are fields of ``schema.Metrics``. A user's own (``ExperimentConfig.metrics``) is in
``Metrics.scores`` and with that in ``rounds.jsonl``, in the MLflow copy, in `compare`'s JSON and CSV and in data frames
of cells. Its value is computed when the model is tested and then read like any other, so that no report runs a user's
code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from types import MappingProxyType
from typing import Any, SupportsFloat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relief_ray.core.messages import ClientId, ClientView, EvalPlan, masked_label
from relief_ray.plugins.blame import called, refuse_other_arguments, require
from relief_ray.plugins.load import is_path, load
from relief_ray.records.schema import Metrics, RoundRecord
from relief_ray.support.errors import UserError, shown

OwnMetric = Callable[[NDArray[np.int64]], float]
# Names of figures that tables have besides ``METRICS``.
_TAKEN = re.compile(
    r"f1(_\w+)?|link|fedavg_link|trained|(energy|up)_saved|"
    r"loss|speedup|trained_fraction|(round|time|wall)_s|energy_j|bytes_(up|down)"
)


def class_f1(confusion: Tensor) -> Tensor:
    """F1 per class (K,): ``2 TP / (2 TP + FP + FN)``; NaN for a class that neither occurs nor is predicted."""
    counts = confusion.to(torch.float64)
    hits = counts.diagonal()
    return 2.0 * hits / (counts.sum(0) + counts.sum(1))


def macro_f1(confusion: Tensor) -> float:
    """Unweighted mean of the classes' F1 over classes that occur or are predicted."""
    scores = class_f1(confusion)
    return float(scores[~scores.isnan()].mean())


def accuracy(confusion: Tensor) -> float:
    """Share of windows on the diagonal."""
    return float(confusion.diagonal().sum() / confusion.sum())


def constant_f1(counts: Sequence[int]) -> float:
    """Macro-F1 of always answering the most frequent class, from windows per class; a model above it has learned.

    That class has precision q (its share of the windows) and recall 1, all others have F1 0: ``2 q / (1 + q) / K``
    with K the number of classes that occur.
    """
    share = max(counts) / sum(counts)
    return 2.0 * share / (1.0 + share) / sum(c > 0 for c in counts)


def chance_f1(confusion: Sequence[Sequence[Sequence[int]]]) -> float | None:
    """F1 without knowledge, a share, from confusion matrices per subject (S, K, K); None without one.

    The larger one of always answering the most frequent class and of guessing: ``1 / K`` for ``K`` classes, which is
    what macro-F1 of guessing all classes alike comes to where they are equally frequent, and at most otherwise.
    """
    if not confusion:
        return None
    counts = [sum(sum(subject[k]) for subject in confusion) for k in range(len(confusion[0]))]
    return max(constant_f1(counts), 1.0 / sum(c > 0 for c in counts))


# Shares (0 to 1, shown in percent) that ``Metrics`` has as fields, with their prefix on the terminal's line of a round;
# empty: not shown.
METRICS: Mapping[str, str] = {
    "f1": "F1",  # macro-F1 of the canonical model, all modalities present
    "f1_fleet": "",  # of clients with models of their own: the same as ``f1_own_sensors``
    "f1_own_sensors": "own",  # mean over clients of the macro-F1 of the model that each uses, through its own sensors
    "f1_rare": "",  # mean macro-F1 of the canonical model with a sensor of the smallest cohorts alone
    "accuracy": "",  # share of windows that the canonical model classifies correctly
}


def round_scalars(record: RoundRecord, planning_model: str) -> dict[str, float]:
    """Scalars of a round that exist and are finite: scores of its evaluation, users' among them, and what it cost."""
    metrics, cost = record.metrics, record.costs.get(planning_model)
    scores = {} if metrics is None else {name: getattr(metrics, name) for name in METRICS} | metrics.scores
    totals = record.totals.get(planning_model)
    values: dict[str, float | None] = {
        **scores,
        "loss": record.loss,
        "speedup": record.speedup,
        "trained_fraction": record.trained_fraction,
        "round_s": None if cost is None else cost.round_s,
        **({} if totals is None else totals.model_dump()),
        "wall_s": record.wall_s,
    }
    return {name: float(value) for name, value in values.items() if value is not None and isfinite(value)}


def extra_columns(metrics: Metrics) -> dict[str, float]:
    """Values of users' metrics in percent, by column."""
    return {f"{name}_percent": 100 * value for name, value in metrics.scores.items()}


def own_metrics(paths: Sequence[str]) -> dict[str, OwnMetric]:
    """Load users' metrics by their import paths; a metric's name is its function's.

    Raises:
        UserError: nothing is at a path, or no function, or its name is taken.
    """
    found: dict[str, OwnMetric] = {}
    for path in paths:
        name, place = path.rpartition(":")[2], f"metrics = {shown(path)}"
        if not is_path(path):
            raise UserError(f"{place}: expected the import path of a function of your own, e.g. my_metrics.py:kappa")
        function = load(path, "metrics")
        if isinstance(function, type) or not callable(function):
            raise UserError(f"{place}: found {shown(function)}, expected a function of a confusion matrix (K, K)")
        if name in METRICS or name in found or _TAKEN.fullmatch(name):
            raise UserError(f"{place}: there is a figure of the name {name!r}; give the function another, own_{name}")
        refuse_other_arguments(function, name, "confusion")
        found[name] = function
    return found


def own_value(name: str, function: OwnMetric, confusion: NDArray[np.int64]) -> float:
    """Value of a user's metric on a confusion matrix (K, K), a row per true class; not finite where it is undefined.

    Raises:
        UserCodeFailed: the function returned no number, or one beyond -1 to 1.
    """

    def violation(value: object) -> str:
        if not isinstance(value, SupportsFloat):
            return f"returned {shown(value)}, expected a number"
        share = float(value)
        if isfinite(share) and abs(share) > 1.0:
            return f"returned {shown(value)}, expected a share from -1 to 1: 0.5 is shown as 50 %"
        return ""

    value = called(function, f"metric {name!r}", confusion)
    require(function, f"metric {name!r}", "a number", violation, value)
    return float(value)


def summarise(
    matrices: Mapping[str, Tensor],
    plan: EvalPlan,
    rare: Sequence[str],
    subjects: Sequence[str],
    views: Sequence[ClientView] = (),
    modalities: Sequence[str] = (),
    own: Mapping[str, OwnMetric] = MappingProxyType({}),
) -> Metrics:
    """Metrics from confusion matrices (subjects, K, K) by target label and, for some modalities, "label|acc+gyro".

    ``f1``: canonical model, all modalities; ``f1_by_client``: what each client runs, with its modalities; ``f1_fleet``:
    the mean of these where they are models of their own; ``f1_by_modality``: canonical model, only that modality
    present; ``f1_rare``: the mean of ``f1_by_modality`` over ``rare``, the modalities of the smallest cohorts;
    ``f1_own_sensors`` and ``f1_own_subjects``: mean over ``views``; ``own``: users' metrics, of the models that the
    headline F1 is of: the clients' own ones where these are tested, else the canonical one.
    """
    by_client = {t.client: matrices[t.label] for t in plan.clients if t.client is not None}
    personal = by_client if plan.personal else {}
    canonical = {} if plan.canonical is None else _canonical(matrices, plan.canonical.label, rare, subjects)
    tested = list(personal.values()) or ([] if plan.canonical is None else [matrices[plan.canonical.label]])
    means = {
        name: _mean([own_value(name, f, matrix.sum(0).numpy(force=True)) for matrix in tested])
        for name, f in own.items()
    }
    scores = {name: value for name, value in means.items() if value is not None and isfinite(value)}
    return Metrics.model_validate(
        {
            "f1": None,
            "f1_fleet": _mean([macro_f1(c.sum(0)) for c in personal.values()]),
            "f1_fleet_by_subject": _by_subject(list(personal.values()), subjects),
            "f1_by_client": {client: macro_f1(c.sum(0)) for client, c in by_client.items()},
            "num_windows": int(next(iter(matrices.values())).sum()),
            **_own(matrices, by_client, plan, views, modalities),
            **canonical,
            "scores": scores,
        }
    )


def _own(
    matrices: Mapping[str, Tensor],
    personal: Mapping[ClientId, Tensor],
    plan: EvalPlan,
    views: Sequence[ClientView],
    modalities: Sequence[str],
) -> dict[str, object]:
    """F1 of the model that each client uses, and its means: the client's own, else the canonical through its sensors.

    Nothing where one of them was not tested.
    """
    used: list[tuple[Tensor, ClientView]] = []
    for view in views:
        label = "" if plan.canonical is None else masked_label(plan.canonical.label, view.modalities, modalities)
        matrix = personal.get(view.client, matrices.get(label))
        if matrix is None:
            return {}
        used.append((matrix, view))
    f1_by_client = {view.client: macro_f1(matrix.sum(0)) for matrix, view in used}
    # Of each client's model on the subjects that it trained on; nothing where a client trained on none of them.
    on_own = [macro_f1(matrix[list(view.rows)].sum(0)) for matrix, view in used if view.rows]
    return ({"f1_by_client": f1_by_client} if used else {}) | {
        "f1_own_sensors": _mean(list(f1_by_client.values())),
        "f1_own_subjects": _mean(on_own) if len(on_own) == len(used) else None,
    }


def _canonical(
    matrices: Mapping[str, Tensor], label: str, rare: Sequence[str], subjects: Sequence[str]
) -> dict[str, Any]:
    """Fields of ``Metrics`` that describe the strategy's one canonical model."""
    pooled = matrices[label].sum(0)
    single = {
        sensors: macro_f1(c.sum(0))
        for key, c in matrices.items()
        if "+" not in (sensors := key.removeprefix(f"{label}|")) and sensors != key
    }
    return {
        "f1": macro_f1(pooled),
        "accuracy": accuracy(pooled),
        "f1_rare": _mean([single[m] for m in rare if m in single]),
        "f1_by_modality": single,
        "f1_by_class": tuple(None if v != v else float(v) for v in class_f1(pooled).tolist()),
        "f1_by_subject": _by_subject([matrices[label]], subjects),
        "confusion": tuple(tuple(tuple(row) for row in subject) for subject in matrices[label].tolist()),
    }


def _by_subject(matrices: Sequence[Tensor], subjects: Sequence[str]) -> dict[str, float]:
    """Each subject's macro-F1, averaged over several models or masks."""
    scores = {s: _mean([macro_f1(c[i]) for c in matrices]) for i, s in enumerate(subjects)}
    return {s: score for s, score in scores.items() if score is not None}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
