"""The data as training sees them: clients' windows, validation, test, statistics, digest and coverage."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from relief_ray.data.cache import Origin
from relief_ray.data.config import DataConfig
from relief_ray.data.coverage import Coverage, cover
from relief_ray.data.dataset import Dataset
from relief_ray.data.files import sha256_json
from relief_ray.data.plan import Plan, make_plan, training_positions
from relief_ray.data.spec import DatasetSpec
from relief_ray.data.standardise import standardisation
from relief_ray.data.window_set import WindowSet, pool
from relief_ray.data.windows import Table
from relief_ray.errors import UserError

Purpose = Literal["run", "tune"]


class _Statistics(TypedDict):
    mean: NDArray[np.float32]
    std: NDArray[np.float32]


class _Windows(TypedDict):
    starts: NDArray[np.int64]
    labels: NDArray[np.int64]
    subjects: NDArray[np.int16]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FederatedData:
    """Windows of every client, pooled validation and test; `digest` covers source bytes, parser and data configuration.

    `validation_by_client` holds each client's own share of its subject's validation windows (it may be empty when a
    subject is cut into many clients). What was made for tuning has no test part.
    """

    spec: DatasetSpec
    digest: str
    origin: Origin
    clients: tuple[WindowSet, ...]
    validation: WindowSet
    validation_by_client: tuple[WindowSet, ...]
    coverage: Coverage
    test_or_none: WindowSet | None

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; a label is an index into them."""
        return self.spec.classes

    @property
    def test(self) -> WindowSet:
        """The pooled test windows; UserError where the data were opened for tuning."""
        if self.test_or_none is None:
            raise UserError(
                "the test part is closed: these data were opened with purpose='tune', which may read training and "
                "validation only; score the chosen configuration in a run of its own"
            )
        return self.test_or_none


def num_clients(dataset: Dataset | DatasetSpec, config: DataConfig) -> int:
    """Clients of a run: `config.num_clients`, else one per subject that is not held out."""
    _require_same(dataset.spec if isinstance(dataset, Dataset) else dataset, config)
    return config.num_clients or len(training_positions(config))


def federate(
    dataset: Dataset, config: DataConfig, owned: Sequence[Collection[str]], purpose: Purpose = "run"
) -> FederatedData:
    """Split, deal to clients and standardise; `owned[n]` are client n's modalities.

    Raises UserError for a wrong number of clients, an unknown or ownerless modality, or a client without windows.
    """
    _check(dataset, config, owned)
    plan = make_plan(dataset, config, len(owned))
    whole = WindowSet(
        signal_path=str(dataset.signal_path),
        window=dataset.spec.window,
        columns=dataset.spec.columns(),
        **_statistics(dataset, plan, owned),
        **_fields(plan.test),
    )
    clients = tuple(replace(whole, **_fields(table)) for table in plan.train)
    validation = tuple(replace(whole, **_fields(table)) for table in plan.validation)
    return FederatedData(
        spec=dataset.spec,
        digest=sha256_json({"dataset": dataset.digest, "config": config.model_dump(mode="json")}),
        origin=dataset.origin,
        clients=clients,
        validation=pool(validation),
        validation_by_client=validation,
        coverage=cover(dataset.spec, config, plan),
        test_or_none=whole if purpose == "run" else None,
    )


def _require_same(spec: DatasetSpec, config: DataConfig) -> None:
    if spec != config.spec():
        raise UserError(
            f"dataset {spec.name!r} (units {spec.units}) does not fit the configuration's {config.name!r} "
            f"(units {config.spec().units}); load it with open_dataset(config)"
        )


def _check(dataset: Dataset, config: DataConfig, owned: Sequence[Collection[str]]) -> None:
    expected = num_clients(dataset, config)
    if len(owned) != expected:
        raise UserError(f"{len(owned)} clients have modalities, but data.num_clients gives {expected} clients")
    for client, has in enumerate(owned):
        unknown = sorted(set(has) - set(dataset.spec.names))
        if unknown or not has:
            raise UserError(f"client {client}: modalities {sorted(has)}, expected some of {dataset.spec.names}")


def _statistics(dataset: Dataset, plan: Plan, owned: Sequence[Collection[str]]) -> _Statistics:
    starts = [table[:, 0] for table in plan.train]
    spec = dataset.spec
    mean, std = standardisation(dataset.signal(), spec.columns(), spec.window, starts, owned)
    return {"mean": mean, "std": std}


def _fields(table: Table) -> _Windows:
    return {
        "starts": np.ascontiguousarray(table[:, 0]),
        "labels": np.ascontiguousarray(table[:, 1]),
        "subjects": table[:, 2].astype(np.int16),
    }
