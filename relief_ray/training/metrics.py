"""Classification metrics, from confusion matrices alone (rows true, columns predicted; K classes)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from relief_ray.messages import EvalPlan
from relief_ray.records.schema import Metrics


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


def summarise(matrices: Mapping[str, Tensor], plan: EvalPlan, rare: Sequence[str], subjects: Sequence[str]) -> Metrics:
    """Metrics from confusion matrices (subjects, K, K) by target label and, for single modalities, "label|modality".

    ``f1``: canonical model, all modalities; ``f1_fleet``: mean over clients, each with its model and its modalities;
    ``f1_by_modality``: canonical model, only that modality present; ``f1_rare``: the mean of ``f1_by_modality`` over
    ``rare``, the modalities of the smallest cohorts.
    """
    by_client = {t.client: matrices[t.label] for t in plan.clients if t.client is not None}
    metrics = Metrics(
        f1=None,
        f1_fleet=_mean([macro_f1(c.sum(0)) for c in by_client.values()]),
        f1_fleet_by_subject=_by_subject(list(by_client.values()), subjects),
        f1_by_client={client: macro_f1(c.sum(0)) for client, c in by_client.items()},
        num_windows=int(next(iter(matrices.values())).sum()),
    )
    return (
        metrics
        if plan.canonical is None
        else metrics.model_copy(update=_canonical(matrices, plan.canonical.label, rare, subjects))
    )


def _canonical(
    matrices: Mapping[str, Tensor], label: str, rare: Sequence[str], subjects: Sequence[str]
) -> dict[str, object]:
    """The fields that describe the strategy's one canonical model."""
    total = matrices[label].sum(0)
    single = {key.partition("|")[2]: c for key, c in matrices.items() if key.startswith(f"{label}|")}
    scarce = [single[m] for m in rare if m in single]
    return {
        "f1": macro_f1(total),
        "f1_rare": _mean([macro_f1(c.sum(0)) for c in scarce]),
        "accuracy": accuracy(total),
        "f1_by_modality": {m: macro_f1(c.sum(0)) for m, c in single.items()},
        "f1_by_class": tuple(0.0 if v != v else float(v) for v in class_f1(total).tolist()),
        "f1_by_subject": _by_subject([matrices[label]], subjects),
        "f1_rare_by_subject": _by_subject(scarce, subjects),
        "confusion": tuple(tuple(tuple(row) for row in subject) for subject in matrices[label].tolist()),
    }


def _by_subject(models: Sequence[Tensor], subjects: Sequence[str]) -> dict[str, float]:
    """Each subject's macro-F1, averaged over ``models``: matrices (subjects, K, K) of several models or masks."""
    scores = {s: _mean([macro_f1(c[i]) for c in models]) for i, s in enumerate(subjects)}
    return {s: score for s, score in scores.items() if score is not None}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
