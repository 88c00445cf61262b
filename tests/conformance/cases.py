"""Cases on which every executor must agree: a small configuration per strategy, and variations on other code paths.

``CASES`` maps a name to a ``Case``; ``drive`` runs one with any executor, ``outcome`` is what two drives of the same
case must share to the bit. The serial runs in ``test_strategies.py`` are the oracle, Ray runs reuse the table.
``params`` makes test parameters of it: a test says which families it tries, and which of their cases by default.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

import pytest
from _pytest.mark import ParameterSet

from relief_ray.config.experiment import ExperimentConfig, parse
from relief_ray.conformance.runner import FAST_LINK, after_rounds, outcome
from relief_ray.experiment.experiment import run_cell as drive
from relief_ray.strategies import PRESETS

Values = dict[str, object]

# Under this share of FedAvg's round the slow devices have slots to fill and groups to refuse, once the link is fast.
ALLOCATING = ("relief", "v2", "v3", "v2_mandatory", "v3_mandatory", "mandatory_only")
SMALL: dict[str, Values] = {
    "darkdistill": {"hidden": 16},
    "darkdistill_table": {"hidden": 16},
    # What comes first lasts one round, so that the few rounds of a case see what comes after it.
    "fedlease": {"warmup_rounds": 1},
}
FAR_APART: Values = {"gap": 20.0, "types": {t: FAST_LINK for t in "ABC"}}
BASE: Values = {
    "name": "conformance",
    "data": {"name": "dsa_mini", "stride_s": 10.0},
    "backbone": {"conv1": 8, "conv2": 8, "steps": 4, "fusion": 6},
    "training": {"epochs": 1, "lr": 0.01},
    "costs": {"planning_time": "split_naive"},
    "fleet": {"gap": 2.0, "types": {t: FAST_LINK for t in "ABC"}},
    "evaluation": {"every": 2},
    "rounds": 3,
    "runtime": {"mode": "inline"},
    "tracking": {"enabled": False},
}


def strategy_values(preset: str) -> Values:
    """A preset, with a deadline under which its allocation has something to decide."""
    deadline: Values = {"deadline_fraction": 0.3} if preset in ALLOCATING else {}
    return {"name": preset, **SMALL.get(preset, {}), **deadline}


# One method per kind of state, and where that state is: tried by default with every executor.
KINDS = {
    "relief": "the server's",
    "local": "the clients'",
    "v3": "random choices",
    "fedlease": "experts in clusters",
    "pilot": "mixed neighbours",
}
# Those of them whose state has the shape of the backbone: tried by default on Backbone 2 too.
KINDS_ON_MOMENT = ("relief", "fedlease", "pilot")
# One preset of every further method with code of its own: tried by default in this process, on Backbone 1.
METHODS = (*KINDS, "fedavg", "fedsa_lora", "darkdistill", "fedel", "fedicu", "harmony", "helora")
# "preset", "variation", "few" (three clients), "clients" (not the usual eight) and "crowd" (100) are on Backbone 1.
Family = Literal[
    "preset", "variation", "few", "clients", "crowd", "moment", "moment variation", "moment masked", "moment resumed"
]

ON_MOMENT = frozenset({"moment", "moment variation", "moment masked", "moment resumed"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A run that all executors must agree on.

    Attributes:
        preset: the strategy, with small settings of its own.
        family: what the case is there for.
        sections: of the configuration, over ``BASE``.
        strategy: settings over the preset's.
        is_fast: the serial run is tried by default; the others are slow tests.
    """

    preset: str
    family: Family
    sections: Values = field(default_factory=dict)
    strategy: Values = field(default_factory=dict)
    is_fast: bool = False

    @property
    def values(self) -> Values:
        return {"strategy": strategy_values(self.preset) | self.strategy, **self.sections}

    def marks(self, is_fast: bool) -> list[pytest.MarkDecorator]:
        return [
            *([] if is_fast else [pytest.mark.slow]),
            *([pytest.mark.moment] if self.family in ON_MOMENT else []),
        ]

    @property
    def has_kind(self) -> bool:
        """Whether the strategy stands for a kind of state."""
        return self.preset in KINDS


def of_presets(
    family: Family, ending: str, sections: Values, fast: Collection[str] = (), presets: Collection[str] = PRESETS
) -> dict[str, Case]:
    """A case of every preset, named by it and ``ending``; those of ``fast`` presets are tried by default."""
    return {
        f"{preset}{ending}": Case(preset=preset, family=family, sections=sections, is_fast=preset in fast)
        for preset in presets
    }


def half_take_part(preset: str, *, fast: bool = False, training: Values | None = None, **strategy: object) -> Case:
    """Half of the clients a round, without the features of absent sensors."""
    masked = {"epochs": 1, "lr": 0.01, "missing": "zero_feature"} | (training or {})
    sections: Values = {"training": masked, "participation": 0.5}
    return Case(preset=preset, family="variation", sections=sections, strategy=strategy, is_fast=fast)


def optimised(
    preset: str,
    *,
    training: Values,
    server: Values | None = None,
    evaluation: Values,
    fast: bool = True,
    **more: object,
) -> Case:
    """Another optimizer on clients or server, tested by averaged models."""
    sections = {
        "training": {"epochs": 1, "lr": 0.01} | training,
        "server": server or {},
        "evaluation": {"every": 2} | evaluation,
        **more,
    }
    return Case(preset=preset, family="variation", sections=sections, is_fast=fast)


def on_moment(
    preset: str, family: Family, *, rounds: int = 2, training: Values | None = None, **strategy: object
) -> Case:
    """A case on Backbone 2."""
    sections = MOMENT | {"rounds": rounds, "training": {"epochs": 1, "lr": 0.01, "batch_size": 3} | (training or {})}
    return Case(preset=preset, family=family, sections=sections, strategy=strategy)


# One sensor channel is a sequence of its own: few windows, one epoch, two of the smallest blocks.
MOMENT: Values = {
    "backbone": {"name": "moment_lora", "size": "tiny", "rank": 2, "alpha": 4},
    "data": {"name": "dsa_mini", "stride_s": 20.0, "max_windows_per_client": 6, "subjects": [1, 4, 7]},
    "training": {"epochs": 1, "lr": 0.01, "batch_size": 3},
    # A client computes for microseconds: its link has to be faster still, or no time is left for a group of choice.
    "fleet": {
        "gap": 2.0,
        "types": {t: FAST_LINK | {"uplink_mbit_s": 8e8, "downlink_mbit_s": 8e8} for t in "ABC"},
    },
    "evaluation": {"every": 3},
    "rounds": 2,
}
THREE: Values = {"name": "dsa_mini", "stride_s": 10.0, "subjects": [1, 4, 7]}
TWENTY: Values = {"name": "dsa_mini", "stride_s": 4.0, "num_clients": 20}
HUNDRED: Values = {"name": "dsa_mini", "stride_s": 1.0, "num_clients": 100}
VARIATIONS: dict[str, Case] = {
    "relief, zero_feature": Case(
        preset="relief",
        family="variation",
        sections={"training": {"epochs": 2, "lr": 0.01, "missing": "zero_feature"}},
        is_fast=True,
    ),
    "relief, naive engine": Case(
        preset="relief",
        family="variation",
        sections={"training": {"epochs": 1, "lr": 0.01, "engine": "naive"}},
        is_fast=True,
    ),
    "relief, half take part": Case(preset="relief", family="variation", sections={"participation": 0.5}, is_fast=True),
    "fedavg, pairs watched": Case(
        preset="fedavg",
        family="variation",
        sections={"record": {"pairwise_every": 2, "checkpoint_every": 2}},
        is_fast=True,
    ),
    "relief, batch norm and dropout": Case(
        preset="relief",
        family="variation",
        sections={"backbone": "tests.nets:Normed", "training": {"epochs": 2, "lr": 0.01, "missing": "zero_feature"}},
        is_fast=True,
    ),
    "pilot, batch norm in one shared fusion": Case(
        preset="pilot", family="variation", sections={"backbone": "tests.nets:NormedShared"}
    ),
    "full_only, idle rounds": Case(
        preset="full_only", family="variation", sections={"participation": 0.2}, is_fast=True
    ),
    "local, half take part": Case(preset="local", family="variation", sections={"participation": 0.5}, is_fast=True),
    "fedlease, one of four takes part": Case(
        preset="fedlease", family="variation", sections={"participation": 0.25, "rounds": 4}
    ),
    "helora, taught": Case(
        preset="helora", family="variation", strategy={"variant": "kd", "kd_epochs": 1, "public_windows": 48}
    ),
    "darkdistill, no distillation": Case(
        preset="darkdistill", family="variation", sections={"strategy": {"name": "darkdistill", "distil": False}}
    ),
    "fedavg, SGD, tail": optimised(
        "fedavg",
        training={"optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-3, "clip_norm": 1.0, "schedule": "cosine"},
        evaluation={"average": "tail", "window": 2},
    ),
    "relief, AdamW, FedAdam, half take part": optimised(
        "relief",
        training={"optimizer": "adamw", "weight_decay": 0.1, "missing": "zero_feature"},
        server={"optimizer": "fedadam", "lr": 0.03},
        evaluation={"average": "ema"},
        participation=0.5,
    ),
    "fedlease, SGD, FedYogi, half take part": optimised(
        "fedlease",
        training={"optimizer": "sgd", "lr": 0.1, "schedule": "step", "schedule_every": 1},
        server={"optimizer": "fedyogi"},
        evaluation={"average": "tail"},
        participation=0.5,
        rounds=4,
    ),
    "harmony, SGD, tail": optimised(
        "harmony",
        training={"optimizer": "sgd", "schedule": "linear"},
        evaluation={"average": "tail"},
        fast=False,
    ),
    **{
        f"{name}, SGD, FedAvgM": optimised(
            name,
            training={"optimizer": "sgd"},
            server={"optimizer": "fedavgm"},
            evaluation={"average": "ema"},
            fast=False,
        )
        for name in ("fedprox", "fedsa_lora", "fedel", "helora", "v2", "drop_slow")
    },
    "v1, int8 up, bfloat16 down, reachable": Case(
        preset="v1",
        family="variation",
        sections={"transfer": {"up": "int8", "down": "bfloat16", "download": "reachable"}},
        is_fast=True,
    ),
    "relief, epochs, float16, reachable, zero_feature": Case(
        preset="v2_mandatory",
        family="variation",
        sections={
            "training": {"epochs": 3, "lr": 0.01, "missing": "zero_feature", "engine": "naive"},
            "transfer": {"up": "float16", "down": "float16", "download": "reachable"},
        },
        strategy={"budget": "epochs", "deadline_fraction": 0.5},
        is_fast=True,
    ),
    "fedicu, int8 up, float16 down": Case(
        preset="fedicu", family="variation", sections={"transfer": {"up": "int8", "down": "float16"}}, is_fast=True
    ),
    "fedlease, half take part": half_take_part("fedlease", fast=True, encoders="cluster"),
    "pilot, half take part": half_take_part("pilot", fast=True, training={"engine": "naive"}),
    "darkdistill, half take part": half_take_part("darkdistill", bin_nats=0.25),
    **{
        f"{name}, half take part": half_take_part(name)
        for name in ("fedsa_lora", "fedel", "fedicu", "harmony", "helora")
    },
}
OTHER_CLIENTS: dict[str, Case] = {
    "relief, unseen subjects": Case(
        preset="relief",
        family="clients",
        sections={
            "data": {"name": "dsa_mini", "stride_s": 10.0, "split": "held_out_subject", "fold": 1},
            "evaluation": {"every": 1, "parts": ["test", "validation"]},
        },
        is_fast=True,
    ),
    "relief, 20 clients, by samples": Case(
        preset="relief", family="clients", sections={"data": TWENTY, "rounds": 2}, strategy={"weighting": "samples"}
    ),
    "harmony, 20 clients": Case(preset="harmony", family="clients", sections={"data": TWENTY, "rounds": 4}),
}
MOMENT_VARIATIONS: dict[str, Case] = {
    "fedlease, moment, every layer routed": on_moment(
        "fedlease", "moment variation", training={"missing": "zero_feature"}, moe_scope="all"
    ),
    # The oracle of Backbone 2: every stage in every step.
    **{
        f"{preset}, moment, naive engine": on_moment(preset, "moment variation", training={"engine": "naive"})
        for preset in ("fedavg", "relief", "pilot", "fedlease")
    },
    # Two by two where a batch is of three; with Pilot's losses, which need the whole of it.
    **{
        f"{preset}, moment, micro-batches": on_moment(preset, "moment variation", training={"micro_batch": 2})
        for preset in ("relief", "pilot")
    },
}
FORMATS: Values = {"transfer": {"up": "int8", "down": "float16", "download": "reachable"}}
MASKED = MOMENT | {"training": {"epochs": 1, "lr": 0.01, "batch_size": 3, "missing": "zero_feature"}}
CASES: dict[str, Case] = {
    **of_presets("preset", "", {}, METHODS),
    # Without these devices nobody is slow enough to be dropped.
    "drop_slow": Case(preset="drop_slow", family="preset", sections={"fleet": FAR_APART}),
    **VARIATIONS,
    **OTHER_CLIENTS,
    **of_presets("few", ", 3 clients", {"data": THREE}, presets=KINDS),
    "relief, 3 clients, int8 up, float16 down, reachable": Case(
        preset="relief", family="few", sections={"data": THREE, **FORMATS}
    ),
    **of_presets("crowd", ", 100 clients", {"data": HUNDRED}),
    **of_presets("moment", ", moment", MOMENT, KINDS_ON_MOMENT),
    **MOMENT_VARIATIONS,
    "relief, moment, int8 up, float16 down, reachable": Case(
        preset="relief", family="moment variation", sections=MOMENT | FORMATS
    ),
    **of_presets("moment masked", ", moment, zero_feature", MASKED),
    **of_presets("moment resumed", ", moment, 3 rounds", MOMENT | {"rounds": 3}),
}


def params(*families: Family, fast: Callable[[Case], bool] = attrgetter("is_fast")) -> list[ParameterSet]:
    """The cases of ``families`` (none: of all) as parameters: slow tests but for the ``fast`` ones."""
    chosen = {name: case for name, case in CASES.items() if not families or case.family in families}
    return [pytest.param(name, marks=case.marks(fast(case))) for name, case in chosen.items()]


def config_of(case: str, **changes: object) -> ExperimentConfig:
    """The configuration of a case; ``changes`` replace whole sections."""
    return parse({**BASE, **CASES[case].values, **changes}, case)


__all__ = [
    "BASE", "CASES", "FAST_LINK", "KINDS", "MOMENT", "THREE", "Case", "after_rounds", "config_of", "drive", "outcome",
    "params", "strategy_values",
]  # fmt: skip
