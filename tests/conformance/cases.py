"""What every executor must agree on: one small configuration per strategy, and variations that touch other paths.

``CASES`` maps a name to configuration values; ``drive`` runs a case with any executor, ``outcome`` is what two drives
of the same case must share to the bit. The serial runs in ``test_conformance.py`` are the oracle, Ray runs reuse the
table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest

from relief_ray.config import ExperimentConfig, parse
from relief_ray.conformance.runner import FAST_LINK, after_rounds, drive, outcome
from relief_ray.strategies import PRESETS

Values = dict[str, object]

# Under this share of FedAvg's round the slow devices have slots to fill and groups to refuse, once the link is fast.
ALLOCATING = ("relief", "v2", "v3", "v2_mandatory", "v3_mandatory", "mandatory_only")
# What comes first lasts one round, so that the few rounds of a case see what comes after it.
SECOND_PHASE_SOON: dict[str, Values] = {"fedlease": {"warmup_rounds": 1}}
FAR_APART: Values = {"gap": 20.0, "types": {t: FAST_LINK for t in "ABC"}}
BASE: Values = {
    "name": "conformance",
    "data": {"name": "dsa_mini", "stride_s": 10.0},
    "backbone": {"conv1": 8, "conv2": 8, "steps": 4, "fusion": 6},
    "training": {"epochs": 1, "lr": 0.01},
    "fleet": {"gap": 2.0, "types": {t: FAST_LINK for t in "ABC"}},
    "evaluation": {"every": 2},
    "rounds": 3,
    "runtime": {"mode": "inline"},
    "tracking": {"enabled": False},
}


def strategy_values(preset: str, deadline_fraction: float = 0.45) -> Values:
    """A preset, with a deadline under which its allocation has something to decide."""
    small = {"hidden": 16} if preset.startswith("darkdistill") else SECOND_PHASE_SOON.get(preset, {})
    return {"name": preset} | small | ({"deadline_fraction": deadline_fraction} if preset in ALLOCATING else {})


# One sensor channel is a sequence of its own: few windows, one epoch, two of the smallest blocks.
MOMENT: Values = {
    "backbone": {"name": "moment_lora", "size": "tiny", "rank": 2, "alpha": 4},
    "data": {"name": "dsa_mini", "stride_s": 20.0, "max_windows_per_client": 6, "subjects": [1, 4, 7]},
    "training": {"epochs": 1, "lr": 0.01, "batch_size": 3},
    "evaluation": {"every": 3},
    "rounds": 2,
}
HALF_MASKED: Values = {
    "training": {"epochs": 1, "lr": 0.01, "missing": "zero_feature"},
    "participation": 0.5,
}
# One per kind of state: the server's, the clients', random choices, experts in clusters, mixed neighbours.
KINDS = ("relief", "local", "v3", "fedlease", "pilot")
ON_MOMENT = {f"{preset}, moment": preset for preset in PRESETS}
CASES: dict[str, Values] = {preset: {"strategy": strategy_values(preset)} for preset in PRESETS} | {
    "drop_slow": {"strategy": "drop_slow", "fleet": FAR_APART},
    "relief, zero_feature": {
        "strategy": strategy_values("relief"),
        "training": {"epochs": 2, "lr": 0.01, "missing": "zero_feature"},
    },
    "relief, naive engine": {
        "strategy": strategy_values("relief"),
        "training": {"epochs": 1, "lr": 0.01, "engine": "naive"},
    },
    "relief, half take part": {"strategy": strategy_values("relief"), "participation": 0.5},
    "relief, unseen subjects": {
        "strategy": strategy_values("relief"),
        "data": {"name": "dsa_mini", "stride_s": 10.0, "split": "held_out_subject", "fold": 1},
        "evaluation": {"every": 1, "parts": ["test", "validation"]},
    },
    "relief, 20 clients, by samples": {
        "strategy": strategy_values("relief") | {"weighting": "samples"},
        "data": {"name": "dsa_mini", "stride_s": 4.0, "num_clients": 20},
        "rounds": 2,
    },
    "fedavg, pairs watched": {"strategy": "fedavg", "record": {"pairwise_every": 2, "checkpoint_every": 2}},
    "fedsa_lora, half take part": {
        "strategy": "fedsa_lora",
        "training": {"epochs": 1, "lr": 0.01, "missing": "zero_feature"},
        "participation": 0.5,
    },
    "darkdistill, half take part": {
        "strategy": strategy_values("darkdistill") | {"bin_nats": 0.25},
        "training": {"epochs": 1, "lr": 0.01, "missing": "zero_feature"},
        "participation": 0.5,
    },
    "darkdistill, no distillation": {"strategy": {"name": "darkdistill", "distil": False}},
    "fedel, half take part": {
        "strategy": "fedel",
        "training": {"epochs": 1, "lr": 0.01, "missing": "zero_feature"},
        "participation": 0.5,
    },
    **{
        f"{preset}, moment, zero_feature": {
            **MOMENT,
            "strategy": strategy_values(preset),
            "training": {"epochs": 1, "lr": 0.01, "batch_size": 3, "missing": "zero_feature"},
        }
        for preset in PRESETS
    },
    **{f"{name}, half take part": {"strategy": name, **HALF_MASKED} for name in ("fedicu", "harmony", "helora")},
    "harmony, 20 clients": {
        "strategy": "harmony",
        "data": {"name": "dsa_mini", "stride_s": 4.0, "num_clients": 20},
        "rounds": 4,
    },
    "helora, taught": {"strategy": {"name": "helora", "variant": "kd", "kd_epochs": 1, "public_windows": 48}},
    "fedlease, half take part": {
        "strategy": strategy_values("fedlease") | {"encoders": "cluster"},
        "training": {"epochs": 1, "lr": 0.01, "missing": "zero_feature"},
        "participation": 0.5,
    },
    "fedlease, moment, every layer routed": {
        **MOMENT,
        "strategy": strategy_values("fedlease") | {"moe_scope": "all"},
        "training": {"epochs": 1, "lr": 0.01, "batch_size": 3, "missing": "zero_feature"},
    },
    "fedlease, one of four takes part": {
        "strategy": strategy_values("fedlease"),
        "participation": 0.25,
        "rounds": 4,
    },
    "pilot, half take part": {
        "strategy": strategy_values("pilot"),
        "training": {"epochs": 1, "lr": 0.01, "missing": "zero_feature", "engine": "naive"},
        "participation": 0.5,
    },
    "local, half take part": {"strategy": "local", "participation": 0.5},
    "full_only, idle rounds": {"strategy": "full_only", "participation": 0.2},
    # The frozen forward pass takes its share of the round whatever is trained.
    **{case: {"strategy": strategy_values(preset, 0.75), **MOMENT} for case, preset in ON_MOMENT.items()},
    **{
        f"{preset}, moment, 3 rounds": {**MOMENT, "strategy": strategy_values(preset, 0.75), "rounds": 3}
        for preset in PRESETS
    },
    # The oracle of Backbone 2: every stage in every step.
    **{
        f"{preset}, moment, naive engine": {
            **MOMENT,
            "strategy": strategy_values(preset, 0.75),
            "training": {"epochs": 1, "lr": 0.01, "batch_size": 3, "engine": "naive"},
        }
        for preset in ("fedavg", "relief", "pilot", "fedlease")
    },
    # Two by two where a batch is of three; with Pilot's losses, which need the whole of it.
    **{
        f"{preset}, moment, micro-batches": {
            **MOMENT,
            "strategy": strategy_values(preset, 0.75),
            "training": {"epochs": 1, "lr": 0.01, "batch_size": 3, "micro_batch": 2},
        }
        for preset in ("relief", "pilot")
    },
    **{
        f"{preset}, 100 clients": {
            "strategy": strategy_values(preset),
            "data": {"name": "dsa_mini", "stride_s": 1.0, "num_clients": 100},
        }
        for preset in PRESETS
    },
}
MASKED_ON_MOMENT = tuple(case for case in CASES if case.endswith("moment, zero_feature"))
NAIVE_ON_MOMENT = tuple(case for case in CASES if case.endswith(("moment, naive engine", "moment, micro-batches")))
RESUMED_ON_MOMENT = tuple(case for case in CASES if case.endswith("moment, 3 rounds"))
OF_100 = tuple(case for case in CASES if case.endswith("100 clients"))
_SLOW_ON_MOMENT = {*MASKED_ON_MOMENT, *NAIVE_ON_MOMENT, *RESUMED_ON_MOMENT}
LONG = frozenset({*_SLOW_ON_MOMENT, *OF_100} - {"darkdistill, moment, zero_feature"})


def marked(cases: Iterable[str], fast: Collection[str]) -> list[object]:
    """The cases as parameters; those that are not ``fast`` are slow tests."""
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def config_of(case: str, **changes: object) -> ExperimentConfig:
    """The configuration of a case; ``changes`` replace whole sections."""
    return parse({**BASE, **CASES[case], **changes}, case)


__all__ = [
    "BASE", "CASES", "FAST_LINK", "KINDS", "LONG", "MASKED_ON_MOMENT", "OF_100", "ON_MOMENT", "RESUMED_ON_MOMENT",
    "after_rounds", "config_of", "drive", "marked", "outcome",
]  # fmt: skip
