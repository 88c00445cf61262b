"""Calibration: the share of a device's peak speed that training reaches, fitted per backbone and time model.

It is fitted so that a FedAvg round on PAMAP2 (3/3/2 clients, 1,900 training windows each, E = 5, batch 32) costs the
fleet the energy that Tables I and II state, and never refitted. All other figures of the cost models are predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log
from typing import Literal, get_args

from relief_ray.core.groups import GroupLayout
from relief_ray.core.stages import RAW, CostTable
from relief_ray.devices.accounting import CostAccountant, Counter
from relief_ray.devices.fleet import FleetConfig, build_fleet, with_windows
from relief_ray.devices.time import FlopProportional, Split, TimeModel
from relief_ray.support.errors import UserError

ModelName = Literal["flop_proportional", "split"]
MODELS: tuple[ModelName, ...] = get_args(ModelName)
# Table I (CNN) and Table II (MOMENT with LoRA): FedAvg, joules per round of the PAMAP2 fleet.
TARGET_ENERGY_J: Mapping[str, float] = {"cnn": 847.0, "moment_lora": 1284.0}
NOMINAL_WINDOWS, NOMINAL_EPOCHS, NOMINAL_BATCH = 1900, 5, 32
PAMAP2_TYPE_COUNTS = (3, 3, 2)
# Solved by `fit`, as docs/costs.md shows: tables give a figure that was fitted no verdict.
FITTED: Mapping[str, Mapping[str, float]] = {
    "cnn": {"flop_proportional": 0.002979459413, "split": 0.002957869182},
    "moment_lora": {"flop_proportional": 0.2371275935, "split": 9.813275782},
}


def utilisations(backbone: str, utilisation: float | None = None) -> dict[str, float]:
    """The fitted utilisation of a built-in backbone by FLOP model, or the user's one value for all FLOP models."""
    return dict(FITTED[backbone]) if utilisation is None else dict.fromkeys(MODELS, utilisation)


def nominal_energy_j(costs: CostTable, model: TimeModel, layout: GroupLayout) -> float:
    """Joules of one FedAvg round of the nominal PAMAP2 fleet, whose clients send the whole of ``layout`` both ways."""
    modalities = tuple(dict.fromkeys(i.removeprefix(RAW) for s in costs.stages for i in s.inputs if i.startswith(RAW)))
    fleet, types = build_fleet(FleetConfig(), modalities, PAMAP2_TYPE_COUNTS)
    fleet = with_windows(fleet, [NOMINAL_WINDOWS] * len(fleet))
    accountant = CostAccountant(counter=Counter(costs, layout, "zero_input"), types=types, clocks={"": model})
    reference = accountant.fedavg_reference(fleet, epochs=NOMINAL_EPOCHS, batch_size=NOMINAL_BATCH, engine="naive")
    return reference[""].energy_j


def fit(costs: CostTable, layout: GroupLayout, *, backbone: str, time_model: ModelName) -> float:
    """Solve ``nominal_energy_j(utilisation) = target`` by bisection; energy falls as utilisation grows.

    ``costs`` counted on PAMAP2's shapes, ``layout`` of the whole trainable model.

    Raises:
        UserError: no target for this backbone, or the links alone cost more than the target.
    """
    if backbone not in TARGET_ENERGY_J:
        raise UserError(f"backbone {backbone!r} has no energy in the paper to fit to; known: {sorted(TARGET_ENERGY_J)}")
    target, kind = TARGET_ENERGY_J[backbone], FlopProportional if time_model == "flop_proportional" else Split
    low, high = log(1e-12), log(1e6)
    if nominal_energy_j(costs, kind(utilisation=exp(high)), layout) >= target:
        raise UserError(
            f"to send {layout.numel} values costs more than {target} J without any computing: not the paper's model"
        )
    while high - low > 1e-13:
        middle = (low + high) / 2
        if nominal_energy_j(costs, kind(utilisation=exp(middle)), layout) > target:
            low = middle
        else:
            high = middle
    return float(f"{exp((low + high) / 2):.10g}")
