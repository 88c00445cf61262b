"""Fleets: each client's device and sensors, coupled as in Section III-A, or in one of two counterfactual ways."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal, cast

from pydantic import Field, field_validator, model_validator

from relief_ray.core.messages import ClientInfo, Fleet, Power
from relief_ray.core.streams import Streams
from relief_ray.support.errors import Setting, UserError, counted, listed, several, value_text
from relief_ray.support.frozen import FrozenConfig

# Device types: speed, power and link; presets A, B and C of the paper (Sections VI-A and VII).


TERA = 1e12

_POSITIVE = {
    "peak_tops": "10^12 operations per second; the paper's types have 275, 21 and 5",
    "utilisation": "the share of the fleet's calibrated speed that this device reaches; 1.0 changes nothing",
    "active_power_w": "watts while computing; the paper's types draw 60, 30 and 5",
    "uplink_bytes_per_s": "bytes per second; 12e6 is our choice, the paper names none",
    "downlink_bytes_per_s": "bytes per second; 12e6 is our choice, the paper names none",
}


class DeviceType(FrozenConfig):
    """A kind of device.

    Its speed in FLOP/s is ``peak_tops`` x 10^12 x ``utilisation`` x the time model's fitted utilisation.

    Raises:
        ValidationError: a figure that no device can have; the message names the type, the key and the fix.
    """

    name: str = Field(min_length=1)
    """The type's name, e.g. ``A``."""
    peak_tops: float
    """Peak speed in 10^12 operations/s."""
    utilisation: float = 1.0
    """Share of it that this type reaches beside the others."""
    active_power_w: float
    """Watts while computing."""
    comm_power_fraction: float = 0.6
    """Share of ``active_power_w`` while communicating; 0.6 from the testbed's 8 W of 13 W."""
    idle_fraction: float = 0.2
    """Share of ``active_power_w`` while waiting; 0.2 as Section VI-A says."""
    uplink_bytes_per_s: float = 12e6
    """Speed of uploads."""
    downlink_bytes_per_s: float = 12e6
    """Speed of downloads."""
    latency_s: float = 0.01
    """Seconds that each transfer takes besides."""
    ray_resources: dict[str, float] = Field(default_factory=dict)
    """Ray resources that a node of this type offers."""

    @model_validator(mode="after")
    def _plausible(self) -> DeviceType:
        for key, meaning in _POSITIVE.items():
            if getattr(self, key) <= 0:
                raise ValueError(
                    f"device type {self.name!r}: {key} = {getattr(self, key)}, expected a number above 0 ({meaning})"
                )
        for key in ("comm_power_fraction", "idle_fraction"):
            if not 0 <= getattr(self, key) <= 1:
                place = f"device type {self.name!r}: {key} = {getattr(self, key)}"
                raise ValueError(f"{place}, expected 0 to 1, a share of active_power_w")
        if self.latency_s < 0:
            raise ValueError(f"device type {self.name!r}: latency_s = {self.latency_s}, expected 0 or more seconds")
        if bad := {k: v for k, v in self.ray_resources.items() if v < 0}:
            raise ValueError(f"device type {self.name!r}: ray_resources has negative amounts {bad}; use 0 or more")
        return self

    @property
    def flops_per_s(self) -> float:
        """Peak speed times the device's own utilisation."""
        return self.peak_tops * TERA * self.utilisation

    @property
    def power(self) -> Power:
        """Watts while computing, communicating and waiting."""
        active_w = self.active_power_w
        return Power(active_w, self.comm_power_fraction * active_w, self.idle_fraction * active_w)


def _preset(power_c_w: float) -> Mapping[str, DeviceType]:
    figures = (("A", 275.0, 60.0), ("B", 21.0, 30.0), ("C", 5.0, power_c_w))
    return {
        name: DeviceType(name=name, peak_tops=tops, active_power_w=power, ray_resources={f"type_{name.lower()}": 1.0})
        for name, tops, power in figures
    }


PRESETS: Mapping[str, Mapping[str, DeviceType]] = {"paper": _preset(5.0), "testbed": _preset(15.0)}
_PRESET_GAP = 55.0
_GAP_EXPONENT_B = -0.64


def with_gap(types: Mapping[str, DeviceType], gap: float) -> dict[str, DeviceType]:
    """The same types with Type C at ``1/gap`` and B at ``gap^-0.64`` of Type A's speed; 55 is the preset, untouched.

    Source: the sensitivity study's 10x / 55x / 100x (Section VI); 55^-0.64 = 1/13, the paper's Type B.
    """
    if gap == _PRESET_GAP:
        return dict(types)
    peak = types["A"].peak_tops
    tops = {"A": peak, "B": peak * gap**_GAP_EXPONENT_B, "C": peak / gap}
    return {name: types[name].model_copy(update={"peak_tops": tops[name]}) for name in tops}


TYPES = ("A", "B", "C")
TypeCounts = tuple[int, int, int]
_FIGURES = frozenset(DeviceType.model_fields) - {"name"}
# A client's subject, and the sensors that it lacks; only clients of such subjects.
Lacking = Mapping[int, tuple[int, tuple[str, ...]]]
_OWNED: Mapping[str, tuple[str, ...] | None] = {"A": None, "B": ("acc", "gyro"), "C": ("acc",)}


class FleetConfig(FrozenConfig):
    """Configuration of a fleet.

    Raises:
        ValidationError: a value out of range or an unknown type, with what was expected.
    """

    preset: Literal["paper", "testbed"] = "paper"
    """Figures of the device types: the paper's simulation or its testbed."""
    gap: float = Field(default=_PRESET_GAP, ge=1.0)
    """Factor by which Type A is faster than Type C."""
    num_clients: int | None = Field(default=None, ge=1)
    """Number of clients; None: as the data have them."""
    counts: TypeCounts | None = None
    """Clients of type A, B, C, scaled to the number of clients; None: the dataset's own."""
    rotation: int = Field(default=0, ge=0)
    """Number of people by which the device types move on, so that other people have the slow devices."""
    coupling: Literal["coupled", "independent", "inverted"] = "coupled"
    """Whether few sensors sit on slow devices, on fast ones (``inverted``), or on any (``independent``)."""
    coupling_seed: int = Field(default=0, ge=0)
    """Seed of the permutation where ``coupling`` is ``independent``."""
    owned: dict[str, tuple[str, ...]] = Field(default={})
    """Sensors that each device type has, e.g. `{"C": ["acc"]}`. By default A has all, B `acc` and `gyro`, and C
    `acc`. Name them for data with other sensors."""
    types: dict[str, dict[str, float | dict[str, float]]] = Field(default={})
    """Figures of a device type that differ from the preset, e.g. ``{"C": {"active_power_w": 4}}``."""

    @field_validator("owned", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        """A single sensor may be written without brackets."""
        if not isinstance(value, dict):
            return value
        return {k: tuple(v) if isinstance(v, list) else (v,) if isinstance(v, str) else v for k, v in value.items()}

    @model_validator(mode="after")
    def _known(self) -> FleetConfig:
        for key, by_type in (("owned", self.owned), ("types", self.types)):
            if unknown := sorted(set(by_type) - set(TYPES)):
                raise ValueError(f"fleet.{key} names the device types {unknown}, expected some of {list(TYPES)}")
        if self.counts is not None and (min(self.counts) < 0 or sum(self.counts) == 0):
            raise ValueError(
                f"fleet.counts = {list(self.counts)}: expected three numbers (A, B, C), none negative, not all 0"
            )
        for name, figures in self.types.items():
            if unknown := sorted(set(figures) - _FIGURES):
                raise ValueError(f"fleet.types.{name} has the unknown keys {unknown}; known are {sorted(_FIGURES)}")
            for key, value in figures.items():
                if isinstance(value, dict) != (key == "ray_resources"):
                    kind = "a mapping from text to number" if key == "ray_resources" else "a number"
                    raise ValueError(f"fleet.types.{name}.{key} = {value}: expected {kind}")
        device_types(self)
        return self


def device_types(config: FleetConfig) -> dict[str, DeviceType]:
    """Types A, B and C as the configuration has them: preset, then ``gap``, then single figures."""
    scaled = with_gap(PRESETS[config.preset], config.gap)
    return {
        name: DeviceType.model_validate(scaled[name].model_dump() | dict(config.types.get(name, {}))) for name in TYPES
    }


def type_counts_for(num_clients: int, counts: TypeCounts) -> TypeCounts:
    """``counts`` scaled to ``num_clients`` by largest remainder, ties to A, B, C (100 of 3/3/2: 38/37/25)."""
    total = sum(counts)
    scaled = [num_clients * c // total for c in counts]
    order = sorted(range(len(counts)), key=lambda i: -(num_clients * counts[i] % total))
    for i in order[: num_clients - sum(scaled)]:
        scaled[i] += 1
    return cast(TypeCounts, tuple(scaled))


def _sensor_roles(num_clients: int, counts: TypeCounts, rotation: int = 0) -> tuple[str, ...]:
    """Each client's type by its sensors, in subject order; a step of ``rotation`` moves it by one subject's clients."""
    row = [t for t, c in zip(TYPES, type_counts_for(num_clients, counts), strict=True) for _ in range(c)]
    shift = rotation * max(1, num_clients // sum(counts)) % num_clients
    return tuple(row[-shift:] + row[:-shift])


def _device_roles(roles: Sequence[str], coupling: str, seed: int) -> tuple[str, ...]:
    """The device type of each client, given the type of its sensors; the same devices under every coupling.

    ``coupled``: few sensors on slow devices, the paper's premise; ``inverted``: few sensors on fast devices;
    ``independent``: a random permutation from ``seed``.
    """
    if coupling == "coupled":
        return tuple(roles)
    if coupling == "independent":
        order = Streams(seed=seed).numpy("fleet.coupling").permutation(len(roles))
        return tuple(roles[i] for i in order)
    richest_first = sorted(range(len(roles)), key=lambda i: roles[i])
    device_of = dict(zip(richest_first, sorted(roles, reverse=True), strict=True))
    return tuple(device_of[client] for client in range(len(roles)))


def owned_modalities(
    config: FleetConfig, modalities: Sequence[str], types: Sequence[str] = TYPES
) -> dict[str, tuple[str, ...]]:
    """Sensors of each of the ``types``, in canonical order.

    Raises:
        UserError: types own modalities that the dataset lacks, or none at all; all of them are named, with a remedy.
    """
    wanted = {name: config.owned.get(name, _OWNED[name]) for name in types}
    unknown = {name: [m for m in sensors or () if m not in modalities] for name, sensors in wanted.items()}
    if bad := {name: sensors for name, sensors in unknown.items() if sensors}:
        named = "; ".join(
            f"fleet.owned.{name} names {sensors}" + ("" if name in config.owned else " by default")
            for name, sensors in bad.items()
        )
        remedy = Setting("fleet.owned", {name: [*_likely(name, modalities)] for name in bad})
        raise UserError(f"{named}, but this dataset has {list(modalities)}; say what they own, for example {remedy}")
    owned = {name: tuple(m for m in modalities if w is None or m in w) for name, w in wanted.items()}
    if empty := [name for name, sensors in owned.items() if not sensors]:
        raise UserError(f"fleet.owned.{empty[0]} is empty: a client needs at least one of {list(modalities)}")
    return owned


def _likely(name: str, modalities: Sequence[str]) -> Sequence[str]:
    """Sensors for an example: all of them (A), all but the rarest, which is the last (B), or the first alone (C)."""
    return {"A": modalities, "B": modalities[:-1] or modalities, "C": modalities[:1]}[name]


def owners_lines(modalities: Sequence[str], counts: TypeCounts) -> list[str]:
    """Lines on the sensors that the clients of each device type have by default, and how ``fleet.owned`` changes them.

    Where the defaults do not fit these ``modalities``, the first line says so. ``counts``: clients of type A, B and C.
    """
    number_of = {name: number for name, number in zip(TYPES, counts, strict=True) if number}
    example = value_text({name: list(_likely(name, modalities)) for name in number_of})
    setting = f"  --set {shlex.quote(f'fleet.owned={example}')}"
    try:
        owned = owned_modalities(FleetConfig(), modalities, tuple(number_of))
    except UserError:
        clients = ", ".join(f"{name} {counted(number, 'client')}" for name, number in number_of.items())
        return [f"A run must say in fleet.owned which sensors each device type has ({clients}), e.g.", setting]
    rows = [f"  {name}  {counted(number_of[name], 'client')}: {' + '.join(owned[name])}" for name in number_of]
    return ["Sensors of each device type; to change them, give a run others in fleet.owned", *rows, setting]


def build_fleet(
    config: FleetConfig,
    modalities: Sequence[str],
    type_counts: TypeCounts,
    num_clients: int | None = None,
    lacking: Lacking = MappingProxyType({}),
) -> tuple[Fleet, dict[str, DeviceType]]:
    """The clients (without windows yet) and the device types.

    ``modalities`` in canonical order; ``type_counts`` the dataset's A/B/C, where the configuration has none of its own;
    the number of clients is the configuration's, else ``num_clients``, else the sum of the counts. A client has the
    sensors of its device type but for those that its subject lacks (``lacking``).

    Raises:
        UserError: two different numbers of clients, a modality that is unknown or that no client owns, or a client
            that has no sensor.
    """
    counts = config.counts or type_counts
    if config.num_clients and num_clients and config.num_clients != num_clients:
        raise UserError(
            f"fleet.num_clients = {config.num_clients}, but the data are cut for {num_clients} clients; give one "
            "number only"
        )
    number = num_clients or config.num_clients or sum(counts)
    roles = _sensor_roles(number, counts, config.rotation)
    devices = _device_roles(roles, config.coupling, config.coupling_seed)
    owned = owned_modalities(config, modalities, sorted({*roles, *config.owned}))
    clients = tuple(
        ClientInfo(
            id=n,
            name=f"client-{n}",
            device=device,
            modalities=_present(n, role, owned[role], lacking.get(n)),
            num_windows=0,
        )
        for n, (role, device) in enumerate(zip(roles, devices, strict=True))
    )
    fleet = Fleet(clients=clients, modalities=tuple(modalities))
    _check_owners(fleet, roles, lacking)
    return fleet, device_types(config)


def _present(
    client: int, role: str, owned: tuple[str, ...], lacks: tuple[int, tuple[str, ...]] | None
) -> tuple[str, ...]:
    """Sensors of a client: its device type's sensors without those that its subject lacks.

    Raises:
        UserError: none is left.
    """
    subject, absent = lacks or (0, ())
    if present := tuple(m for m in owned if m not in absent):
        return present
    raise UserError(
        f"client-{client} has no sensor: clients of type {role} have {listed(owned)} (fleet.owned.{role}), and its "
        f"subject {subject} lacks {listed(absent)} (DatasetSpec.lacks); give type {role} a sensor that the subject "
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


def _check_owners(fleet: Fleet, roles: Sequence[str], lacking: Lacking) -> None:
    for modality in fleet.modalities:
        if not fleet.cohort(modality):
            row = {t: roles.count(t) for t in TYPES}
            without = [subject for subject, absent in lacking.values() if modality in absent]
            lacks = f"; lacking to {several('subject', without)}" if without else ""
            raise UserError(
                f"no client owns modality {modality!r} (clients by sensor type: {row}{lacks}); raise fleet.counts, "
                f"the number of clients, or give it to a type in fleet.owned"
            )
