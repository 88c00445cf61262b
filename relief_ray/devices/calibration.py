"""Calibration: the share of a device's peak speed that training reaches, fitted per backbone and time model.

It is fitted so that a FedAvg round on PAMAP2 (3/3/2 clients, 1,900 training windows each, E = 5, batch 32) costs the
fleet the energy that Tables I and II state, and never refitted. All other figures of the cost models are predictions.
"""

from __future__ import annotations

from collections.abc import Mapping

MODELS = ("flop_proportional", "split")
NOMINAL_WINDOWS, NOMINAL_EPOCHS = 1900, 5
# By `python -m benchmarks.calibrate`; tables give a figure that was fitted no verdict.
FITTED: Mapping[str, Mapping[str, float]] = {
    "cnn": {"flop_proportional": 0.002979459413, "split": 0.002957869182},
    "moment_lora": {"flop_proportional": 0.2371275935, "split": 9.813275782},
}


def utilisations(backbone: str, utilisation: float | None = None) -> dict[str, float]:
    """The fitted utilisation of a built-in backbone by FLOP model, or the user's one value for all FLOP models."""
    return dict(FITTED[backbone]) if utilisation is None else dict.fromkeys(MODELS, utilisation)
