"""Data section of a configuration: the dataset, its windows and splits, and the number of clients."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from relief_ray.data.formats.dsa import UNITS, with_units
from relief_ray.data.loader import DatasetSpec
from relief_ray.data.registry import get_spec
from relief_ray.frozen import FrozenConfig

SplitName = Literal["within_subject", "held_out_subject", "random_leaky"]


class DataConfig(FrozenConfig):
    """Dataset, split and sharding.

    Attributes:
        name: a built-in dataset, or the import path of a user's `Loader`.
        split: `within_subject` tests on the end of each bout, `held_out_subject` on other subjects (docs/data.md).
        fold: number of the held-out pair of subjects, from 0; for `held_out_subject` alone.
        stride_s: seconds between the starts of neighbouring windows.
        num_clients: number of clients; None: one per training subject.
        validation_fraction: share of what a bout has left after its test part.
        test_fraction: share of a bout's length.
        units: body units of dsa that take part; empty: all.
        subjects: the subjects that take part; empty: all.
        max_windows_per_client: limit of training windows, kept evenly over a client's recording.
        seed: seed of the random split; for `random_leaky` alone.
    """

    name: str = "dsa_mini"
    split: SplitName = "within_subject"
    fold: int = Field(default=0, ge=0)
    stride_s: float = Field(default=1.0, gt=0.0, le=60.0)
    num_clients: int | None = Field(default=None, ge=1)
    validation_fraction: float = Field(default=0.15, gt=0.0, le=0.5)
    test_fraction: float = Field(default=0.2, gt=0.0, le=0.5)
    units: tuple[str, ...] = ()
    subjects: tuple[int, ...] = ()
    max_windows_per_client: int | None = Field(default=None, ge=1)
    seed: int = 0

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return get_spec(name).name

    @field_validator("units")
    @classmethod
    def _canonical(cls, units: tuple[str, ...]) -> tuple[str, ...]:
        known = [unit for unit in UNITS if unit in units]
        return tuple(known) if len(known) == len(units) else units  # anything else is refused by `spec`

    @model_validator(mode="after")
    def _fits(self) -> "DataConfig":
        spec = self.spec()
        unknown = sorted(set(self.subjects) - set(spec.subjects))
        if unknown:
            raise ValueError(f"data.subjects={list(self.subjects)}: {unknown} unknown, {spec.name} has {spec.subjects}")
        folds = max(1, len(self.subject_ids()) // 2)
        if self.split != "held_out_subject" and self.fold:
            raise ValueError(f"data.fold={self.fold}: only the split 'held_out_subject' has folds; remove the key")
        if self.fold >= folds:
            raise ValueError(f"data.fold={self.fold}: {spec.name} has folds 0..{folds - 1} (two subjects each)")
        return self

    def spec(self) -> DatasetSpec:
        """The dataset's description with the chosen units."""
        return with_units(get_spec(self.name), self.units)

    def subject_ids(self) -> tuple[int, ...]:
        """Numbers of the subjects that take part, in the dataset's order."""
        return tuple(s for s in get_spec(self.name).subjects if not self.subjects or s in self.subjects)
