"""Fits the utilisation of both backbones and FLOP models to the paper's energy: ``relief_ray.devices.calibration``.

python -m benchmarks.calibrate    # prints FITTED; Backbone 2 draws its encoder, or reads the cached one
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log

from relief_ray.core.groups import GroupLayout
from relief_ray.core.stages import RAW, CostTable
from relief_ray.devices.accounting import CostAccountant, Counter
from relief_ray.devices.calibration import MODELS, NOMINAL_EPOCHS, NOMINAL_WINDOWS
from relief_ray.devices.fleet import FleetConfig, build_fleet, with_windows
from relief_ray.devices.time import FlopProportional, SplitClock, TimeModel
from relief_ray.models.backbone import InputShape
from relief_ray.models.costs import count_costs
from relief_ray.models.registry import BACKBONES
from relief_ray.support.errors import UserError

# Table I (CNN) and Table II (MOMENT with LoRA): FedAvg, joules per round of the PAMAP2 fleet.
TARGET_ENERGY_J: Mapping[str, float] = {"cnn": 847.0, "moment_lora": 1284.0}
BATCH_SIZE, NUM_PEOPLE = 32, 8
PAMAP2 = InputShape(channels=(("acc", 9), ("gyro", 9), ("mag", 9), ("hr", 1)), window=256, num_classes=12)


def nominal_energy_j(costs: CostTable, model: TimeModel, layout: GroupLayout) -> float:
    """Joules of one FedAvg round of the nominal PAMAP2 fleet, whose clients send the whole of ``layout`` both ways."""
    modalities = tuple(dict.fromkeys(i.removeprefix(RAW) for s in costs.stages for i in s.inputs if i.startswith(RAW)))
    fleet, types = build_fleet(FleetConfig(), modalities, range(NUM_PEOPLE), "pamap2")
    fleet = with_windows(fleet, [NOMINAL_WINDOWS] * len(fleet))
    accountant = CostAccountant(counter=Counter(costs, layout, "zero_input"), types=types, clocks={"": model})
    reference = accountant.fedavg_reference(fleet, epochs=NOMINAL_EPOCHS, batch_size=BATCH_SIZE, engine="naive")
    return reference[""].energy_j


def fit(costs: CostTable, layout: GroupLayout, *, backbone: str, time_model: str) -> float:
    """Solve ``nominal_energy_j(utilisation) = target`` by bisection; energy falls as utilisation grows.

    ``costs`` counted on PAMAP2's shapes, ``layout`` of the whole trainable model.

    Raises:
        UserError: no target for this backbone, or the links alone cost more than the target.
    """
    if backbone not in TARGET_ENERGY_J:
        raise UserError(f"backbone {backbone!r} has no energy in the paper to fit to; known: {sorted(TARGET_ENERGY_J)}")
    target, kind = TARGET_ENERGY_J[backbone], FlopProportional if time_model == "flop_proportional" else SplitClock
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


def fitted() -> dict[str, dict[str, float]]:
    """Fitted utilisations by backbone and FLOP model."""
    figures = {}
    for name, kind in BACKBONES.items():
        backbone = kind().build(PAMAP2, seed=0)
        costs = count_costs(backbone)
        figures[name] = {model: fit(costs, backbone.layout, backbone=name, time_model=model) for model in MODELS}
    return figures


if __name__ == "__main__":
    print(fitted())
