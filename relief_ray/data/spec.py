"""What each dataset is: rates, windows, modalities, classes, subjects, device types, citation and licence.

Modalities stand in canonical order, the rarest last; in a parsed signal their columns lie side by side in that order.
Source of the device-type counts and the window length: the paper, Section VI (experimental setup).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from relief_ray.data.loader import own_loader
from relief_ray.errors import UserError
from relief_ray.plugins import is_path

WINDOW_S = 5.12
DSA_UNITS = ("T", "RA", "LA", "RL", "LL")


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetSpec:
    """A dataset's facts: `modalities` (name, channels), `labels` the raw codes of `classes`, `type_counts` A/B/C."""

    name: str
    title: str
    rate_hz: int
    raw_rate_hz: int
    modalities: tuple[tuple[str, int], ...]
    classes: tuple[str, ...]
    labels: tuple[int, ...]
    subjects: tuple[int, ...]
    type_counts: tuple[int, int, int]
    citation: str
    licence: str
    member: str
    doi: str = ""
    url: str = ""
    hints: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    max_abs: tuple[float, ...] = ()
    activity_s: tuple[float, float] = (0.0, 0.0)

    @property
    def window(self) -> int:
        """Samples in one window of 5.12 s."""
        return round(WINDOW_S * self.rate_hz)

    @property
    def num_channels(self) -> int:
        """Channels of all modalities together."""
        return sum(channels for _, channels in self.modalities)

    @property
    def names(self) -> tuple[str, ...]:
        """Modality names in canonical order."""
        return tuple(name for name, _ in self.modalities)

    def columns(self) -> tuple[tuple[str, int, int], ...]:
        """Each modality with its first column and one past its last."""
        found, first = [], 0
        for name, channels in self.modalities:
            found.append((name, first, first + channels))
            first += channels
        return tuple(found)


_PAMAP2 = DatasetSpec(
    name="pamap2",
    title="PAMAP2 Physical Activity Monitoring",
    rate_hz=50,
    raw_rate_hz=100,
    modalities=(("acc", 9), ("gyro", 9), ("mag", 9), ("hr", 1)),
    classes=(
        "lying",
        "sitting",
        "standing",
        "walking",
        "running",
        "cycling",
        "nordic_walking",
        "ascending_stairs",
        "descending_stairs",
        "vacuum_cleaning",
        "ironing",
        "rope_jumping",
    ),
    labels=(1, 2, 3, 4, 5, 6, 7, 12, 13, 16, 17, 24),
    subjects=(101, 102, 103, 104, 105, 106, 107, 108),
    type_counts=(3, 3, 2),
    citation=(
        "A. Reiss and D. Stricker, 'Introducing a New Benchmarked Dataset for Activity Monitoring', "
        "16th International Symposium on Wearable Computers (ISWC), 2012."
    ),
    licence="CC BY 4.0 (as listed by UCI)",
    doi="10.24432/C5NW2H",
    url="https://archive.ics.uci.edu/static/public/231/pamap2+physical+activity+monitoring.zip",
    hints=("pamap2",),
    member=r"(^|/)Protocol/subject10[1-8]\.dat$",
    max_abs=(170.0, 40.0, 400.0, 230.0),
    activity_s=(20.0, 420.0),
)

_MHEALTH = DatasetSpec(
    name="mhealth",
    title="MHEALTH (mobile health)",
    rate_hz=50,
    raw_rate_hz=50,
    modalities=(("acc", 9), ("gyro", 6), ("mag", 6), ("ecg", 2)),
    classes=(
        "standing",
        "sitting",
        "lying",
        "walking",
        "climbing_stairs",
        "waist_bends",
        "arm_elevation",
        "crouching",
        "cycling",
        "jogging",
        "running",
        "jumping",
    ),
    labels=tuple(range(1, 13)),
    subjects=tuple(range(1, 11)),
    type_counts=(3, 3, 4),
    citation=(
        "O. Banos et al., 'mHealthDroid: A Novel Framework for Agile Development of Mobile Health Applications', "
        "6th International Work-Conference on Ambient Assisted Living (IWAAL), 2014."
    ),
    licence="CC BY 4.0 (as listed by UCI)",
    doi="10.24432/C5TW22",
    url="https://archive.ics.uci.edu/static/public/319/mhealth+dataset.zip",
    hints=("mhealth",),
    member=r"(^|/)mHealth_subject(10|[1-9])\.log$",
    max_abs=(100.0, 20.0, 700.0, 30.0),
    activity_s=(10.0, 80.0),
)

_DSA = DatasetSpec(
    name="dsa",
    title="Daily and Sports Activities",
    rate_hz=25,
    raw_rate_hz=25,
    modalities=(("acc", 15), ("gyro", 15), ("mag", 15)),
    classes=(
        "sitting",
        "standing",
        "lying_on_back",
        "lying_on_right_side",
        "ascending_stairs",
        "descending_stairs",
        "standing_in_elevator",
        "moving_in_elevator",
        "walking_in_parking_lot",
        "walking_on_treadmill_flat",
        "walking_on_treadmill_inclined",
        "running_on_treadmill",
        "stepper",
        "cross_trainer",
        "cycling_horizontal",
        "cycling_vertical",
        "rowing",
        "jumping",
        "playing_basketball",
    ),
    labels=tuple(range(1, 20)),
    subjects=tuple(range(1, 9)),
    type_counts=(3, 3, 2),
    citation=(
        "K. Altun, B. Barshan and O. Tuncel, 'Comparative study on classifying human activities with miniature "
        "inertial and magnetic sensors', Pattern Recognition 43(10), 2010; B. Barshan and M. C. Yuksek, 'Recognizing "
        "daily and sports activities in two open source machine learning environments using body-worn sensor units', "
        "The Computer Journal 57(11), 2014."
    ),
    licence="CC BY 4.0 (as listed by UCI)",
    doi="10.24432/C5C59F",
    url="https://archive.ics.uci.edu/static/public/256/daily+and+sports+activities.zip",
    hints=("daily", "dsa"),
    member=r"(^|/)a(0[1-9]|1\d)/p[1-8]/s([0-5]\d|60)\.txt$",
    units=DSA_UNITS,
    max_abs=(200.0, 40.0, 5.0),
    activity_s=(300.0, 300.0),
)

# Standing, two states in an elevator, two stairs, three walks: alike enough that a simple classifier stays below 1.
MINI_ACTIVITIES = (2, 5, 6, 7, 8, 9, 10, 11)

_DSA_MINI = replace(
    _DSA,
    name="dsa_mini",
    title="Daily and Sports Activities, excerpt: right leg, 8 activities, 2 minutes each",
    modalities=(("acc", 3), ("gyro", 3), ("mag", 3)),
    classes=tuple(_DSA.classes[code - 1] for code in MINI_ACTIVITIES),
    labels=MINI_ACTIVITIES,
    url="",
    hints=("dsa_mini",),
    member=r"(^|/)dsa_mini\.npz$",
    units=("RL",),
    activity_s=(120.0, 120.0),
)

_PARTIAL = replace(
    _MHEALTH,
    name="mhealth_partial",
    title="MHEALTH, chest accelerometer and arm gyroscope only, z-scored upstream (test fixture)",
    modalities=(("acc", 3), ("gyro", 3)),
    type_counts=(3, 0, 7),
    licence="none stated by the intermediate source; the original is CC BY 4.0 (as listed by UCI)",
    url="",
    hints=("mhealth_acc_gyro_partial",),
    member=r"(^|/)subject(0[1-9]|10)\.npz$",
    max_abs=(40.0, 40.0),
)

DATASETS: Mapping[str, DatasetSpec] = MappingProxyType(
    {spec.name: spec for spec in (_PAMAP2, _MHEALTH, _DSA, _DSA_MINI, _PARTIAL)}
)


def get_spec(name: str) -> DatasetSpec:
    """The dataset of that name or import path; UserError lists the known names otherwise."""
    if is_path(name):
        return own_loader(name).spec
    if name not in DATASETS:
        raise UserError(
            f"dataset {name!r} is unknown; known: {', '.join(sorted(DATASETS))}; "
            "one of your own goes by its import path, my.module:LOADER"
        )
    return DATASETS[name]


def with_units(spec: DatasetSpec, units: tuple[str, ...]) -> DatasetSpec:
    """The same dataset with only some body units (dsa): three channels per unit and modality, canonical unit order."""
    if not units or units == spec.units:
        return spec
    if spec.name != "dsa":
        raise UserError(f"data.units={list(units)}: only 'dsa' has selectable units, not {spec.name!r}; remove the key")
    unknown = [unit for unit in units if unit not in DSA_UNITS]
    if unknown or len(set(units)) != len(units):
        raise UserError(f"data.units={list(units)}: expected distinct names out of {', '.join(DSA_UNITS)}")
    chosen = tuple(unit for unit in DSA_UNITS if unit in units)
    return replace(spec, units=chosen, modalities=tuple((name, 3 * len(chosen)) for name in spec.names))
