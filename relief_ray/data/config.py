"""Data section of a configuration: the dataset, its windows and splits, and their division among clients."""

from dataclasses import replace
from typing import ClassVar, Final, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from relief_ray.data.checks import window_fault
from relief_ray.data.formats.dsa import with_units
from relief_ray.data.loader import DatasetSpec
from relief_ray.data.registry import get_spec
from relief_ray.support.errors import counted
from relief_ray.support.frozen import ReadWith, SwitchedConfig

SplitName = Literal["within_subject", "held_out_subject", "random_leaky"]
PartitionName = Literal["subject", "dirichlet", "quantity"]

# More are refused before any data are opened; how many a dataset has windows for is told later.
MAX_CLIENTS: Final = 1_000_000

# Added after results were computed: left out of the data's digest where they have their defaults.
_ADDED: Final = (
    "window_s",
    "max_filled",
    "partition",
    "dirichlet_alpha",
    "min_partition_size",
    "self_balancing",
    "leave_out",
    "test_subjects",
)


class DataConfig(SwitchedConfig):
    """Dataset, windows, split and division among clients."""

    _section = "data"
    read_with: ClassVar[ReadWith] = (
        ("partition", ("dirichlet", "quantity"), ("dirichlet_alpha", "min_partition_size")),
        ("partition", "dirichlet", ("self_balancing",)),
        ("split", "held_out_subject", ("leave_out", "test_subjects")),
    )

    name: str = "dsa_mini"
    """A built-in dataset, the import path of a user's `Loader`, or `arrays:NAME@SHA12`, which `rr.dataset` gives."""
    split: SplitName = "within_subject"
    """`within_subject` tests on the end of each bout, `held_out_subject` on other subjects (docs/data.md)."""
    fold: int = Field(default=0, ge=0)
    """Number of the held-out subjects, from 0: fold f holds out the f-th `leave_out` of them; for `held_out_subject`
    alone."""
    leave_out: int = Field(default=2, ge=1)
    """Subjects that a fold holds out, so that each is tested on in one fold; the last fold may have fewer."""
    test_subjects: tuple[int, ...] = ()
    """The subjects that are held out instead; empty: those of `fold`."""
    window_s: float | None = Field(default=None, gt=0.0, le=600.0)
    """Seconds of a window; None: the dataset's own (5.12 of the built-in ones)."""
    stride_s: float = Field(default=1.0, gt=0.0, le=60.0)
    """Seconds between the starts of neighbouring windows. Windows that you cut yourself keep their own length."""
    max_filled: float = Field(default=0.5, ge=0.0, le=1.0)
    """Windows with filled-in readings in more than this share of their rows are left out; 1.0: none is."""
    num_clients: int | None = Field(default=None, ge=1, le=MAX_CLIENTS)
    """Number of clients; None: one per training subject."""
    partition: PartitionName = "subject"
    """What each client gets. `subject`: windows of one person, or a consecutive share of them where there are more
    clients than people; `dirichlet`: shares of every class drawn from a Dirichlet distribution (label skew);
    `quantity`: shares of all windows drawn from one (clients differ in size). The last two mix people."""
    dirichlet_alpha: float = Field(default=0.5, gt=0.0, le=1e9)
    """Concentration of the Dirichlet distribution (`dirichlet`, `quantity`). A small value gives skewed shares,
    a large one equal ones."""
    min_partition_size: int = Field(default=10, ge=1)
    """Least number of training windows of a client (`dirichlet`, `quantity`). Shares are drawn again until
    all clients have so many."""
    self_balancing: bool = False
    """Whether a client with more than its equal share of windows gets none of the classes that follow; for `dirichlet`
    alone."""
    validation_fraction: float = Field(default=0.15, gt=0.0, le=0.5)
    """Share of a bout that validates, of what is left after its test part."""
    test_fraction: float = Field(default=0.2, gt=0.0, le=0.5)
    """Share of a bout, at its end, that tests."""
    units: tuple[str, ...] = ()
    """Sensor units on the body that are used, for `dsa` alone; empty: all."""
    subjects: tuple[int, ...] = ()
    """The subjects that take part; empty: all."""
    max_windows_per_client: int | None = Field(default=None, ge=1)
    """Limit of training windows, kept evenly over a client's recording."""
    seed: int = Field(default=0, ge=0)
    """Seed of the random split and of the partitions that are drawn; in a study each replicate or seed draws its own
    partition, by its number, unless this is set."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return get_spec(name).name

    @model_validator(mode="after")
    def _fits(self) -> "DataConfig":
        spec = self.spec()
        if self.units:
            object.__setattr__(self, "units", spec.units)  # in the dataset's order: the same units, the same run
        unknown = sorted(set(self.subjects) - set(spec.subjects))
        if unknown:
            raise ValueError(f"data.subjects={list(self.subjects)}: {unknown} unknown, {spec.name} has {spec.subjects}")
        if spec.cut and spec.window_s != (cut_s := get_spec(self.name).window_s):
            raise ValueError(
                f"data.window_s={spec.window_s:g}: the windows of {spec.name} were cut before, to {cut_s:g} s; leave "
                "the key out"
            )
        if spec.cut:  # whatever a preset's stride
            object.__setattr__(self, "stride_s", spec.window_s)
        if fault := window_fault(spec):
            raise ValueError(f"data.window_s={spec.window_s:g}: {fault}")
        if not round(self.stride_s * spec.rate_hz):
            raise ValueError(
                f"data.stride_s={self.stride_s:g}: is less than a row of {spec.name}, expected at least "
                f"{1 / spec.rate_hz:g} (its {spec.rate_hz} Hz)"
            )
        if self.split != "held_out_subject" and self.fold:
            raise ValueError(f"data.fold={self.fold}: only the split 'held_out_subject' has folds; remove the key")
        if self.fold >= self.num_folds:
            last = self.num_folds - 1
            known = f"folds 0..{last} ({counted(self.leave_out, 'subject')} each); choose among these: --folds 0-{last}"
            raise ValueError(f"data.fold={self.fold}: {spec.name} has {known}")
        return self._held_out_fits()

    def _held_out_fits(self) -> "DataConfig":
        place, people = f"data.test_subjects={list(self.test_subjects)}", self.subject_ids()
        if unknown := sorted(set(self.test_subjects) - set(people)):
            raise ValueError(f"{place}: {unknown} do not take part, expected some of {list(people)}")
        if len(set(self.test_subjects)) < len(self.test_subjects):
            raise ValueError(f"{place}: names a subject twice, expected each once")
        if self.test_subjects and self.fold:
            raise ValueError(f"{place}: with data.fold={self.fold}, expected one of the two; remove either")
        object.__setattr__(self, "test_subjects", tuple(sorted(self.test_subjects)))  # the same people, the same run
        return self

    @property
    def has_folds(self) -> bool:
        """True where subjects are held out by the number of a fold, and not by name."""
        return self.split == "held_out_subject" and not self.test_subjects

    @property
    def num_folds(self) -> int:
        """Folds in which everybody who takes part is tested on once."""
        return -(-len(self.subject_ids()) // self.leave_out)

    def spec(self) -> DatasetSpec:
        """The dataset's description with the chosen units and length of windows."""
        spec = with_units(get_spec(self.name), self.units)
        return spec if self.window_s is None else replace(spec, window_s=self.window_s)

    def deciding(self) -> dict[str, JsonValue]:
        """The settings that the data's digest is computed from."""
        unchanged = {key for key in _ADDED if getattr(self, key) == type(self).model_fields[key].default}
        return self.model_dump(mode="json", exclude=unchanged)

    def subject_ids(self) -> tuple[int, ...]:
        """Numbers of the subjects that take part, in the dataset's order."""
        return tuple(s for s in get_spec(self.name).subjects if not self.subjects or s in self.subjects)
