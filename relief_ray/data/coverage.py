"""The coverage report: windows per client and class, in every run record."""

from typing import TypedDict

import numpy as np

from relief_ray.data.config import DataConfig
from relief_ray.data.partition import Plan, Table
from relief_ray.data.spec import DatasetSpec
from relief_ray.errors import UserError


class ClientCoverage(TypedDict):
    """One client: its subject, windows per class (order of `classes`) and the classes it has none of."""

    client: int
    subject: int
    train: list[int]
    validation: list[int]
    missing: list[str]


class Coverage(TypedDict):
    """Windows per client, part and class; `notes` counts bouts too short for some part; JSON-able."""

    classes: list[str]
    clients: list[ClientCoverage]
    train: list[int]
    validation: list[int]
    test: list[int]
    single_class_clients: list[int]
    notes: dict[str, int]
    overlap: float


def cover(spec: DatasetSpec, config: DataConfig, plan: Plan) -> Coverage:
    """Count the windows of a plan; `overlap` is the share of a window that the next one repeats.

    Raises UserError where the test windows are all of one class: any score would be 0 or 100 %.
    """
    _require_classes(spec, plan.test)
    clients = [
        _client(spec, client, train, validation)
        for client, (train, validation) in enumerate(zip(plan.train, plan.validation, strict=True))
    ]
    return {
        "classes": list(spec.classes),
        "clients": clients,
        "train": _per_class(spec, np.concatenate(plan.train)),
        "validation": _per_class(spec, np.concatenate(plan.validation)),
        "test": _per_class(spec, plan.test),
        "single_class_clients": [c["client"] for c in clients if sum(count > 0 for count in c["train"]) == 1],
        "notes": dict(plan.notes),
        "overlap": max(0.0, 1.0 - config.stride_s * spec.rate_hz / spec.window),
    }


def _require_classes(spec: DatasetSpec, table: Table) -> None:
    present = [name for name, count in zip(spec.classes, _per_class(spec, table), strict=True) if count]
    if len(present) < 2:
        raise UserError(
            f"{spec.name}: all {len(table)} test windows are of the class {' '.join(present)!r}, expected at least two "
            "classes; check the label column of the files (`relief-ray data describe`)"
        )


def _client(spec: DatasetSpec, client: int, train: Table, validation: Table) -> ClientCoverage:
    counts = _per_class(spec, train)
    return {
        "client": client,
        "subject": spec.subjects[int(train[0, 2])],
        "train": counts,
        "validation": _per_class(spec, validation),
        "missing": [name for name, count in zip(spec.classes, counts, strict=True) if not count],
    }


def _per_class(spec: DatasetSpec, table: Table) -> list[int]:
    return [int(count) for count in np.bincount(table[:, 1], minlength=len(spec.classes))]
