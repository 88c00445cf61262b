"""Calibration: the share of a device's peak speed that training reaches, fitted per backbone and time model.

It is fitted so that a FedAvg round on PAMAP2 (3/3/2 clients, 1,900 training windows each, E = 5, batch 32) costs the
fleet the energy that Tables I and II state, and never refitted. All other figures of the cost models are predictions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from math import exp, log
from typing import Literal

from pydantic import Field

from relief_ray.core.stages import RAW, CostTable
from relief_ray.devices.accounting import round_cost
from relief_ray.devices.fleet import FleetConfig, build_fleet, with_windows
from relief_ray.devices.time import FlopProportional, Split
from relief_ray.devices.workload import num_steps, workload
from relief_ray.support.errors import UserError
from relief_ray.support.frozen import FrozenConfig

ModelName = Literal["flop_proportional", "split"]
MODELS: tuple[ModelName, ...] = ("flop_proportional", "split")
# Table I (CNN) and Table II (MOMENT with LoRA): FedAvg, joules per round of the PAMAP2 fleet.
TARGET_ENERGY_J: Mapping[str, float] = {"cnn": 847.0, "moment_lora": 1284.0}
NOMINAL_WINDOWS, NOMINAL_EPOCHS, NOMINAL_BATCH = 1900, 5, 32
PAMAP2_TYPE_COUNTS = (3, 3, 2)


class Calibration(FrozenConfig):
    """A fitted utilisation and what it was fitted to; ``origin`` is FITTED, so tables give it no verdict."""

    backbone: str
    time_model: ModelName
    utilisation: float = Field(gt=0)
    target_energy_j: float = Field(gt=0)
    origin: Literal["FITTED"] = "FITTED"


class CalibrationFile(FrozenConfig):
    """All calibrations of a release."""

    schema_version: Literal[1] = 1
    entries: tuple[Calibration, ...]


def load_calibrations() -> CalibrationFile:
    """The file that ships with the package."""
    text = files("relief_ray.devices").joinpath("calibration.json").read_text(encoding="utf-8")
    return CalibrationFile.model_validate_json(text)


def calibration(backbone: str, time_model: ModelName) -> Calibration:
    """The shipped calibration.

    Raises:
        UserError: this backbone has none yet.
    """
    entries = load_calibrations().entries
    for entry in entries:
        if (entry.backbone, entry.time_model) == (backbone, time_model):
            return entry
    known = ", ".join(sorted({e.backbone for e in entries}))
    raise UserError(
        f"backbone {backbone!r} is not calibrated yet for time model {time_model!r} (calibrated: {known}); "
        f"give the utilisation of both time models yourself, or fit it as docs/costs.md shows"
    )


def utilisations(backbone: str, utilisation: float | None = None) -> dict[str, float]:
    """The calibrated utilisation of a backbone by FLOP model, or the user's one value for all FLOP models."""
    if utilisation is not None:
        return dict.fromkeys(MODELS, utilisation)
    return {name: calibration(backbone, name).utilisation for name in MODELS}


def nominal_energy_j(costs: CostTable, model: FlopProportional | Split, model_nbytes: int) -> float:
    """Joules of one FedAvg round of the nominal PAMAP2 fleet; ``model_nbytes`` travel down and up."""
    modalities = tuple(dict.fromkeys(i.removeprefix(RAW) for s in costs.stages for i in s.inputs if i.startswith(RAW)))
    fleet, types = build_fleet(FleetConfig(), modalities, PAMAP2_TYPE_COUNTS)
    fleet = with_windows(fleet, [NOMINAL_WINDOWS] * len(fleet))
    load = workload(
        costs,
        present=modalities,  # the naive engine runs absent modalities too: all clients have the same load
        trained=dict.fromkeys(costs.num_values, 1.0),
        num_windows=NOMINAL_WINDOWS,
        epochs=NOMINAL_EPOCHS,
        num_steps=num_steps(NOMINAL_WINDOWS, NOMINAL_EPOCHS, NOMINAL_BATCH),
        bytes_up=model_nbytes,
        bytes_down=model_nbytes,
    )
    return round_cost({c.id: model.times(types[c.device], load) for c in fleet.clients}, fleet, types).energy_j


def fit(costs: CostTable, model_nbytes: int, *, backbone: str, time_model: ModelName) -> Calibration:
    """Solve ``nominal_energy_j(utilisation) = target`` by bisection; energy falls as utilisation grows.

    ``costs`` counted on PAMAP2's shapes, ``model_nbytes`` the encoded length of the whole trainable model.

    Raises:
        UserError: no target for this backbone, or the links alone cost more than the target.
    """
    if backbone not in TARGET_ENERGY_J:
        raise UserError(f"backbone {backbone!r} has no energy in the paper to fit to; known: {sorted(TARGET_ENERGY_J)}")
    target, kind = TARGET_ENERGY_J[backbone], FlopProportional if time_model == "flop_proportional" else Split
    low, high = log(1e-12), log(1e6)
    if nominal_energy_j(costs, kind(utilisation=exp(high)), model_nbytes) >= target:
        raise UserError(
            f"{model_nbytes} bytes each way cost more than {target} J without any computing: not the model of the paper"
        )
    while high - low > 1e-13:
        middle = (low + high) / 2
        if nominal_energy_j(costs, kind(utilisation=exp(middle)), model_nbytes) > target:
            low = middle
        else:
            high = middle
    return Calibration(
        backbone=backbone,
        time_model=time_model,
        utilisation=float(f"{exp((low + high) / 2):.10g}"),
        target_energy_j=target,
    )


def to_json(entries: tuple[Calibration, ...]) -> str:
    """The text of ``calibration.json``."""
    return json.dumps(CalibrationFile(entries=entries).model_dump(mode="json"), indent=2) + "\n"
