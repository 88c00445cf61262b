"""Fleets: a table of device types, and each client's type and sensors, coupled as in Section III-A or otherwise."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, ValidationInfo, field_validator, model_validator

from relief_ray.core.messages import ClientInfo, Fleet, Power, apportion
from relief_ray.core.streams import Streams
from relief_ray.support.errors import Setting, UserError, counted, listed, several, value_text
from relief_ray.support.frozen import FrozenConfig, strictly

TERA = 1e12
_BYTES_PER_S = 1e6 / 8  # of a link of 1 Mbit/s
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

_POSITIVE = {
    "tops": "10^12 operations per second; the paper's types have 275, 21 and 5",
    "utilisation": "the share of the fleet's calibrated speed that this device reaches; 1.0 changes nothing",
    "active_power_w": "watts while computing; the paper's types draw 60, 30 and 5",
    "uplink_mbit_s": "10^6 bits per second; 96 is our choice, the paper names none",
    "downlink_mbit_s": "10^6 bits per second; 96 is our choice, the paper names none",
}
# What says which clients are of a type, of which a type has one.
_PLACES = ("people", "count", "share")


class DeviceType(FrozenConfig):
    """A kind of device, a row of ``fleet.types``.

    Its speed in FLOP/s is ``tops`` x 10^12 x ``utilisation`` x the time model's fitted utilisation.

    Raises:
        ValidationError: a figure that no device can have; the message names the type, the key and the fix.
    """

    name: str = Field(min_length=1)
    """The type's name, e.g. ``watch``: its key in ``fleet.types``."""
    tops: float | None = None
    """Peak speed in 10^12 operations/s; None: not known, its ``profile`` has seconds."""
    profile: str | None = None
    """File with its measured speeds (``relief-ray device profile``), for the clock ``measured`` alone."""
    utilisation: float = 1.0
    """Share of it that this type reaches beside the others."""
    active_power_w: float
    """Watts while computing."""
    comm_power_fraction: float = 0.6
    """Share of ``active_power_w`` while communicating; 0.6 from the testbed's 8 W of 13 W."""
    idle_fraction: float = 0.2
    """Share of ``active_power_w`` while waiting; 0.2 as Section VI-A says."""
    uplink_mbit_s: float = 96.0
    """Speed of uploads in 10^6 bits/s; 96 are 12e6 bytes/s."""
    downlink_mbit_s: float = 96.0
    """Speed of downloads in 10^6 bits/s."""
    latency_s: float = 0.01
    """Seconds that each transfer takes besides."""
    sensors: tuple[str, ...] | Literal["all"] = "all"
    """The sensors of its clients."""
    people: tuple[int, ...] = ()
    """The data set's people whose clients are of this type."""
    count: int | None = None
    """Number of its clients; None: by ``people`` or ``share``."""
    share: float | None = None
    """Its part of the clients that people and counts leave, beside the others'; None: 1, or the preset's."""
    available: float = 1.0
    """The chance that a client of this type is there in a round; drawn by round and client, for every method alike."""
    gap_exponent: float | None = None
    """``x`` of ``fleet.gap``; None: ``ln(max / tops) / ln g0``."""

    @field_validator("sensors", "people", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        """A single sensor or person may be written without brackets."""
        if isinstance(value, list):
            return tuple(value)
        return (value,) if isinstance(value, int) or (isinstance(value, str) and value != "all") else value

    @field_validator("people")
    @classmethod
    def _in_order(cls, people: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(people))

    @model_validator(mode="after")
    def _plausible(self) -> DeviceType:
        place = f"fleet.types.{self.name}"
        for key, meaning in _POSITIVE.items():
            if (value := getattr(self, key)) is not None and value <= 0:
                raise ValueError(f"{place}.{key} = {value}, expected a number above 0 ({meaning})")
        for key in ("comm_power_fraction", "idle_fraction"):
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(f"{place}.{key} = {getattr(self, key)}, expected 0 to 1, a share of active_power_w")
        if not 0 < self.available <= 1:
            raise ValueError(f"{place}.available = {self.available}, expected a chance above 0, at most 1")
        for key in ("latency_s", "count", "share"):
            if (getattr(self, key) or 0) < 0:
                raise ValueError(f"{place}.{key} = {getattr(self, key)}, expected 0 or more")
        if len(given := [key for key in _PLACES if getattr(self, key) not in ((), None)]) > 1:
            raise ValueError(f"{place} has {listed(given)}, expected one of {listed(_PLACES)}")
        if self.tops is None and self.profile is None:
            raise ValueError(f"{place} has neither tops ({_POSITIVE['tops']}) nor a profile, expected one")
        return self

    @property
    def flops_per_s(self) -> float:
        """Peak speed times the device's own utilisation."""
        return (self.tops or 0.0) * TERA * self.utilisation

    @property
    def uplink_bytes_per_s(self) -> float:
        """Speed of uploads in bytes."""
        return self.uplink_mbit_s * _BYTES_PER_S

    @property
    def downlink_bytes_per_s(self) -> float:
        """Speed of downloads in bytes."""
        return self.downlink_mbit_s * _BYTES_PER_S

    @property
    def ray_resources(self) -> dict[str, float]:
        """Ray resources that a node of this type offers, and a client of it needs: ``type_watch``."""
        return {resource_of(self.name): 1.0}

    @property
    def power(self) -> Power:
        """Watts while computing, communicating and waiting."""
        active_w = self.active_power_w
        return Power(active_w, self.comm_power_fraction * active_w, self.idle_fraction * active_w)


def resource_of(name: str) -> str:
    """Ray's resource of a device type: ``type_watch``."""
    return f"type_{name.lower()}"


def fault_of_name(name: str) -> str:
    """What is wrong with a device type's name; empty: nothing."""
    return "" if _NAME.fullmatch(name) else "expected a name of letters, digits and _, a letter first"


def _check_names(names: Sequence[str]) -> None:
    """Refuse names that Ray's resources could not have or tell apart.

    Raises:
        ValueError: a name is no word of letters, digits and _, or two differ in upper case alone.
    """
    for name in names:
        if fault := fault_of_name(name):
            raise ValueError(f"fleet.types.{name}: {fault}")
    if twice := [name for name, number in Counter(name.lower() for name in names).items() if number > 1]:
        raise ValueError(f"fleet.types names {twice[0]!r} twice, in upper and lower case; expected different names")


def _preset(power_c_w: float) -> Mapping[str, DeviceType]:
    rows = (
        DeviceType(name="A", tops=275.0, active_power_w=60.0),
        DeviceType(name="B", tops=21.0, active_power_w=30.0, sensors=("acc", "gyro"), gap_exponent=0.64),
        DeviceType(name="C", tops=5.0, active_power_w=power_c_w, sensors=("acc",)),
    )
    return {row.name: row for row in rows}


PRESETS: Mapping[str, Mapping[str, DeviceType]] = {"paper": _preset(5.0), "testbed": _preset(15.0)}
# Clients of the presets' types on the paper's data sets and ours (Section VI); on others each type has as many.
_SHARES: Mapping[str, tuple[float, ...]] = {
    **dict.fromkeys(("pamap2", "dsa", "dsa_mini"), (3.0, 3.0, 2.0)),
    "mhealth": (3.0, 3.0, 4.0),
}
Figure = int | float | str | tuple[int, ...] | tuple[str, ...] | None


def own_gap(types: Mapping[str, DeviceType]) -> float:
    """``g0``: how many times the fastest of the types is faster than the slowest."""
    tops = [kind.tops for kind in types.values() if kind.tops is not None]
    return max(tops) / min(tops) if tops else 1.0


def with_gap(types: Mapping[str, DeviceType], gap: float) -> dict[str, DeviceType]:
    """The same types ``gap`` apart: ``tops_i' = max g^-x_i`` with ``x_i = ln(max / tops_i) / ln g0``.

    So the order stays, the fastest type keeps its speed, and at ``g = g0`` all do. A table may give ``x_i``: the
    presets have 0.64 for B. Source: the sensitivity study's 10x / 55x / 100x (Section VI); 55^-0.64 = 1/13, its Type B.

    Raises:
        ValueError: all types are equally fast.
    """
    own = own_gap(types)
    if gap == own:
        return dict(types)
    if own == 1.0:
        none = "no device type has `tops`" if all(k.tops is None for k in types.values()) else "all are equally fast"
        raise ValueError(f"fleet.gap = {gap:g}: {none}, expected no gap")
    peak = max(kind.tops or 0.0 for kind in types.values())

    def scaled(kind: DeviceType) -> DeviceType:
        if kind.tops is None:
            return kind
        x = math.log(peak / kind.tops) / math.log(own) if kind.gap_exponent is None else kind.gap_exponent
        return kind.model_copy(update={"tops": peak * gap**-x})

    return {name: scaled(kind) for name, kind in types.items()}


def table_of(types: Mapping[str, Mapping[str, Any]], preset: str) -> dict[str, DeviceType]:
    """The device types in order of capability, before ``gap``.

    Where all ``types`` have names of the preset's, the figures given take the place of its own; else they are a table.

    Raises:
        ValueError: a wrong name or figure; the message names the type, the key and the fix.
    """
    base = PRESETS[preset]
    is_own = not types.keys() <= base.keys()
    _check_names(list(types))
    table: dict[str, DeviceType] = {}
    for name in types if is_own else base:
        figures = dict(types.get(name, {}))
        start = {} if is_own else base[name].model_dump()
        if (like := figures.pop("like", None)) is not None:
            if like not in [*table]:  # a list, since ``like`` may be one, which no mapping can look up
                above = f"one above it: {listed(table)}" if table else "none in the first type"
                move = f"; write {like} before {name}" if like in [*types] and like != name else ""
                raise ValueError(f"fleet.types.{name}.like = {like!r}, expected {above}{move}")
            start = table[like].model_dump(exclude=set(_PLACES))
        if not figures.keys().isdisjoint(_PLACES):
            start = {key: value for key, value in start.items() if key not in _PLACES}
        table[name] = _row(name, figures, start, f"; the types of {preset} are {listed(base)}" if is_own else "")
    return table


def _row(name: str, figures: Mapping[str, Any], start: Mapping[str, Any], names: str) -> DeviceType:
    known = sorted(DeviceType.model_fields.keys() - {"name"})
    if unknown := sorted(figures.keys() - known):
        raise ValueError(f"fleet.types.{name} has the unknown keys {unknown}; known are {sorted([*known, 'like'])}")
    try:
        return strictly(DeviceType, {**start, **figures, "name": name})
    except ValidationError as error:
        fault = error.errors()[0]
        if fault["type"] == "value_error":
            raise fault["ctx"]["error"] from error
        key = str(fault["loc"][0])
        if fault["type"] == "missing":
            raise ValueError(f"fleet.types.{name} has no {key}, expected {_POSITIVE[key]}{names}") from error
        raise ValueError(f"fleet.types.{name}.{key} = {value_text(figures[key])}: {_EXPECTED[key]}") from error


_EXPECTED = {
    **dict.fromkeys(DeviceType.model_fields, "expected a number"),
    "sensors": "expected all, or a list of text",
    "people": "expected a list of whole numbers",
    "count": "expected a whole number",
    "profile": "expected the name of a file",
}


_ROWS = TypeAdapter(dict[str, dict[str, Any]])


class FleetConfig(FrozenConfig):
    """Configuration of a fleet.

    Raises:
        ValidationError: a value out of range or a wrong type, with what was expected.
    """

    preset: Literal["paper", "testbed"] = "paper"
    """Table of device types A, B and C: the paper's simulation or its testbed."""
    types: dict[str, dict[str, Figure]] = Field(default={})
    """Device types in order of capability, most first (docs/costs.md#a-fleet-of-your-own); where all names are the
    preset's, only figures that differ from it, e.g. ``{"C": {"active_power_w": 4, "sensors": ["acc"]}}``."""
    gap: float | None = Field(default=None, ge=1.0)
    """Factor by which the fastest type is faster than the slowest; None: the table's own, 55 of the presets."""
    num_clients: int | None = Field(default=None, ge=1)
    """Number of clients; None: as the data have them."""
    rotation: int = Field(default=0, ge=0)
    """Number of people by which the types move on, so that other people have the slow ones; ``people`` keep theirs."""
    coupling: Literal["coupled", "independent", "inverted"] = "coupled"
    """Whether few sensors sit on slow devices, on fast ones (``inverted``), or on any (``independent``)."""
    coupling_seed: int = Field(default=0, ge=0)
    """Seed of the permutation where ``coupling`` is ``independent``."""

    @field_validator("types", mode="before")
    @classmethod
    def _plain(cls, value: object, info: ValidationInfo) -> object:
        """Figures as the table has them, in its order: equal tables have equal identities."""
        try:
            types = _ROWS.validate_python(value, strict=True)
        except ValidationError:
            return value
        table = table_of(types, info.data.get("preset", "paper"))
        return {
            name: {key: x if key == "like" else getattr(kind, key) for key, x in types[name].items()}
            for name, kind in table.items()
            if name in types
        }

    @model_validator(mode="after")
    def _known(self) -> FleetConfig:
        types = table_of(self.types, self.preset)
        if twice := [person for person, number in Counter(self.people).items() if number > 1]:
            raise ValueError(f"fleet.types: {several('person', twice)} in two places of `people`, expected one")
        if self.gap is not None:
            with_gap(types, self.gap)
            if self.gap == own_gap(types):
                object.__setattr__(self, "gap", None)
        return self

    @property
    def people(self) -> tuple[int, ...]:
        """The people that types name."""
        return tuple(person for kind in table_of(self.types, self.preset).values() for person in kind.people)


def device_types(config: FleetConfig) -> dict[str, DeviceType]:
    """The device types as the configuration has them, in order of capability: table, then ``gap``."""
    types = table_of(config.types, config.preset)
    return types if config.gap is None else with_gap(types, config.gap)


def _type_numbers(types: Mapping[str, DeviceType], number: int, dataset: str) -> dict[str, int]:
    """Clients of each type that has no ``people``, of ``number`` clients: counts first, the rest by shares.

    Raises:
        UserError: they do not add up; the sum is named.
    """
    usual = _SHARES.get(dataset, ()) if types.keys() == PRESETS["paper"].keys() else ()
    of_preset = dict(zip(types, usual, strict=True)) if usual else {}
    counts = {name: kind.count for name, kind in types.items() if kind.count is not None}
    shares = {
        name: of_preset.get(name, 1.0) if kind.share is None else kind.share
        for name, kind in types.items()
        if kind.count is None and not kind.people
    }
    left = number - sum(counts.values())
    if left < 0 or (left and not sum(shares.values())):
        found = f"the counts {value_text(counts)} are {sum(counts.values())} together" if counts else "all shares are 0"
        raise UserError(
            f"fleet.types: {found}, expected {number}, the clients that `people` leave; change them, or give a type a "
            "share above 0"
        )
    parts = apportion(left, list(shares.values())) if left else [0] * len(shares)
    numbers = counts | dict(zip(shares, parts, strict=True))
    return {name: numbers[name] for name in types if name in numbers}


def _sensor_roles(
    types: Mapping[str, DeviceType], persons: Sequence[int | None], rotation: int, dataset: str
) -> tuple[str, ...]:
    """Each client's type by its sensors: those of ``people``, then a row of the types in order of the clients' ids.

    A step of ``rotation`` moves the row by one person's clients.
    """
    of_person = {person: name for name, kind in types.items() for person in kind.people}
    roles = {n: of_person[person] for n, person in enumerate(persons) if person is not None and person in of_person}
    free = [n for n in range(len(persons)) if n not in roles]
    row = [name for name, number in _type_numbers(types, len(free), dataset).items() for _ in range(number)]
    one = max(1, len(free) // len({persons[n] for n in free})) if None not in persons and free else 1
    shift = rotation * one % len(free) if free else 0
    roles |= dict(zip(free, row[-shift:] + row[:-shift], strict=True))
    return tuple(roles[n] for n in range(len(persons)))


def _device_roles(roles: Sequence[str], order: Sequence[str], coupling: str, seed: int) -> tuple[str, ...]:
    """The device type of each client, given the type of its sensors; the same devices under every coupling.

    ``coupled``: few sensors on slow devices, the paper's premise; ``inverted``: few sensors on fast devices, the
    i-th client in ``order`` of its sensors has the device of the i-th from the end; ``independent``: a random
    permutation from ``seed``.
    """
    if coupling == "coupled":
        return tuple(roles)
    if coupling == "independent":
        drawn = Streams(seed=seed).numpy("fleet.coupling").permutation(len(roles))
        return tuple(roles[i] for i in drawn)
    richest_first = sorted(range(len(roles)), key=lambda i: order.index(roles[i]))
    device_of = dict(zip(richest_first, sorted(roles, key=order.index, reverse=True), strict=True))
    return tuple(device_of[client] for client in range(len(roles)))


def owned_modalities(
    config: FleetConfig, modalities: Sequence[str], names: Sequence[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Sensors of all device types, or of those ``names``, in canonical order.

    Raises:
        UserError: types own modalities that the dataset lacks, or none at all; all of them are named, with a remedy.
    """
    types = table_of(config.types, config.preset)
    wanted = {name: modalities if (own := types[name].sensors) == "all" else own for name in names or types}
    if bad := {name: alien for name, own in wanted.items() if (alien := [m for m in own if m not in modalities])}:
        named = "; ".join(
            f"fleet.types.{name}.sensors names {sensors}"
            + ("" if "sensors" in config.types.get(name, {}) else " by default")
            for name, sensors in bad.items()
        )
        example = _example(types, bad, modalities)
        remedy = str(Setting("fleet.types", example))
        if not types.keys() <= PRESETS[config.preset].keys():  # a table of its own, of which a part is changed
            remedy = " ".join(str(Setting(f"fleet.types.{name}.sensors", example[name]["sensors"])) for name in bad)
        raise UserError(f"{named}, but this dataset has {list(modalities)}; say what they own, for example {remedy}")
    owned = {name: tuple(m for m in modalities if m in w) for name, w in wanted.items()}
    if empty := [name for name, sensors in owned.items() if not sensors]:
        raise UserError(f"fleet.types.{empty[0]}.sensors is empty: a client needs at least one of {list(modalities)}")
    return owned


def _example(
    types: Iterable[str], names: Iterable[str], modalities: Sequence[str]
) -> dict[str, dict[str, Sequence[str] | str]]:
    """Sensors for an example: all of the first type, the first one of the last, all but the rarest of the others."""
    first, *others = types
    likely: dict[str, Sequence[str] | str] = {**{name: modalities[0] for name in others[-1:]}, first: "all"}
    return {name: {"sensors": likely.get(name, list(modalities[:-1] or modalities))} for name in names}


def owners_lines(modalities: Sequence[str], number: int, dataset: str = "") -> list[str]:
    """Lines on the sensors that clients of each device type have by default, and how ``fleet.types`` changes them.

    Where the defaults do not fit these ``modalities``, the first line says so. ``number``: clients of the ``dataset``.
    """
    types = PRESETS["paper"]
    number_of = {name: number for name, number in _type_numbers(types, number, dataset).items() if number}
    limited = [name for name in number_of if types[name].sensors != "all"]
    setting = f"  --set {shlex.quote(f'fleet.types={value_text(_example(types, limited, modalities))}')}"
    try:
        owned = owned_modalities(FleetConfig(), modalities, tuple(number_of))
    except UserError:
        clients = ", ".join(f"{name} {counted(number, 'client')}" for name, number in number_of.items())
        return [f"A run must say in fleet.types which sensors each device type has ({clients}), e.g.", setting]
    rows = [f"  {name}  {counted(number_of[name], 'client')}: {' + '.join(owned[name])}" for name in number_of]
    return ["Sensors of each device type; to change them, give a run others in fleet.types", *rows, setting]


def build_fleet(
    config: FleetConfig,
    modalities: Sequence[str],
    persons: Sequence[int | None],
    dataset: str = "",
    lacks: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> tuple[Fleet, dict[str, DeviceType]]:
    """The clients (without windows yet) and the device types.

    ``modalities`` in canonical order; ``persons``: whose windows each client has, None where they are of several;
    ``lacks``: sensors that a person lacks. A client has the sensors of its device type but for those.

    Raises:
        UserError: two different numbers of clients, types that do not add up to them, a modality that is unknown or
            that no client owns, or a client that has no sensor.
    """
    if config.num_clients and config.num_clients != len(persons):
        raise UserError(
            f"fleet.num_clients = {config.num_clients}, but the data are cut for {len(persons)} clients; give one "
            "number only"
        )
    types = device_types(config)
    roles = _sensor_roles(types, persons, config.rotation, dataset)
    devices = _device_roles(roles, [*types], config.coupling, config.coupling_seed)
    said = [name for name in types if name in roles or "sensors" in config.types.get(name, {})]
    owned = owned_modalities(config, modalities, said)
    clients = tuple(
        ClientInfo(
            id=n,
            name=f"client-{n}",
            device=device,
            modalities=_present(n, role, owned[role], person, lacks),
            num_windows=0,
        )
        for n, (role, device, person) in enumerate(zip(roles, devices, persons, strict=True))
    )
    fleet = Fleet(clients=clients, modalities=tuple(modalities), types=tuple(types))
    _check_owners(fleet, roles, persons, lacks)
    return fleet, types


def _present(
    client: int, role: str, owned: tuple[str, ...], person: int | None, lacks: Mapping[int, Sequence[str]]
) -> tuple[str, ...]:
    """Sensors of a client: its device type's sensors without those that its subject lacks.

    Raises:
        UserError: none is left.
    """
    absent = () if person is None else lacks.get(person, ())
    if present := tuple(m for m in owned if m not in absent):
        return present
    raise UserError(
        f"client-{client} has no sensor: clients of type {role} have {listed(owned)} (fleet.types.{role}.sensors), and "
        f"its subject {person} lacks {listed(absent)} (DatasetSpec.lacks); give type {role} a sensor that the subject "
        "has, move the types to other subjects (fleet.rotation), or leave the subject out (data.subjects)"
    )


def with_windows(fleet: Fleet, counts: Sequence[int]) -> Fleet:
    """The same fleet with each client's number of training windows."""
    if len(counts) != len(fleet) or any(c < 0 for c in counts):
        raise UserError(
            f"{len(counts)} window counts for {len(fleet)} clients: expected one number, 0 or more, per client"
        )
    clients = tuple(replace(c, num_windows=int(n)) for c, n in zip(fleet.clients, counts, strict=True))
    return replace(fleet, clients=clients)


def _check_owners(
    fleet: Fleet, roles: Sequence[str], persons: Sequence[int | None], lacks: Mapping[int, Sequence[str]]
) -> None:
    for modality in fleet.modalities:
        if not fleet.cohort(modality):
            row = {name: roles.count(name) for name in fleet.types}
            without = [p for p in dict.fromkeys(persons) if p is not None and modality in lacks.get(p, ())]
            lacking = f"; lacking to {several('subject', without)}" if without else ""
            raise UserError(
                f"no client owns modality {modality!r} (clients by sensor type: {row}{lacking}); give it to a type in "
                "fleet.types, or more clients to a type that has it (its share or count)"
            )
