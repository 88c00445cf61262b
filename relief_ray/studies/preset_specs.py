"""Specs of the presets without titles: values of a configuration, and methods, folds, replicates or seeds."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import starmap
from pathlib import Path
from types import MappingProxyType

from relief_ray.config.experiment import assign
from relief_ray.strategies import BOUNDS, DESCRIBED, PROPOSED, REFERENCE, VARIANTS
from relief_ray.studies.spec import PAPER, Spec, Values
from relief_ray.support.errors import Setting


def _preset(
    name: str,
    *methods: str,
    settings: Values,
    folds: tuple[int, ...] | None = None,
    seeds: tuple[int, ...] = (0,),
    replicates: int = 3,
    claims: str | Path = "",
) -> Spec:
    """A preset with its methods in the registry's order, which tables and figures have too.

    ``settings``: keys (dotted) and values.
    """
    return Spec(
        kind="run",
        name=name,
        title="",
        methods=tuple(sorted(methods, key=[*DESCRIBED].index)),
        folds=folds,
        seeds=seeds,
        replicates=tuple(range(replicates)),
        claims=claims,
        settings=assign({}, starmap(Setting, settings.items())),
    )


def _paper(name: str) -> Spec:
    """The paper's setting (Section VI-A) on the data set called ``name``: E = 5, R = 200, windows every second."""
    return _preset(
        name,
        REFERENCE,
        "fedprox",
        PROPOSED,
        settings={
            "data.name": name,
            "data.split": "within_subject",
            "data.stride_s": 1.0,
            "training.epochs": 5,
            **PAPER,
        },
    )


# Seven replicates, of which each tests every subject once: enough to decide its claim (claims/demo.yaml).
_DEMO = _preset(
    "demo",
    REFERENCE,
    PROPOSED,
    folds=(0, 1, 2, 3),
    seeds=(),
    replicates=7,
    claims=Path(__file__).parent / "claims" / "demo.yaml",
    settings={
        "data.name": "dsa_mini",
        "data.split": "held_out_subject",
        "data.stride_s": 5.0,
        "training.epochs": 3,
        "evaluation.every": 1,
        "rounds": 4,
        "runtime.mode": "packed",
    },
)
# Shows that it runs.
_QUICK = _preset(
    "quick",
    PROPOSED,
    settings={
        "data.name": "dsa_mini",
        "data.stride_s": 10.0,
        "training.epochs": 1,
        "evaluation.every": 1,
        "rounds": 2,
        "runtime.mode": "inline",
        "tracking.enabled": False,
    },
)
# The study's setting on the full Daily and Sports Activities set, one seed.
_DSA = _preset(
    "dsa",
    REFERENCE,
    "fedprox",
    PROPOSED,
    *VARIANTS,
    folds=(0, 1, 2, 3),
    settings={
        "data.name": "dsa",
        "data.split": "held_out_subject",
        "data.stride_s": 5.0,
        "training.epochs": 2,
        "evaluation.every": 5,
        "record.checkpoint_every": 5,
        "record.pairwise_every": 5,
        "rounds": 20,
    },
)
# Table II's methods and the bounds on Backbone 2 with the tiny, untrained encoder: one core, minutes.
# The shipped utilisation is fitted to the small encoder: under it the tiny one computes in no time, and links alone
# decide T*. The one given here makes Type C compute for 18 / 1.02 of its link's seconds in FedAvg, as in Section VII.
_MOMENT_TINY = _preset(
    "moment_tiny",
    REFERENCE,
    "fedprox",
    PROPOSED,
    *VARIANTS,
    *BOUNDS,
    settings={
        "data.name": "dsa_mini",
        "data.split": "within_subject",
        "data.stride_s": 5.0,
        "backbone.name": "moment_lora",
        "backbone.size": "tiny",
        "costs.utilisation": 0.008,
        "training.epochs": 5,
        "evaluation.every": 5,
        "record.checkpoint_every": 5,
        "rounds": 20,
        "runtime.mode": "inline",
        "tracking.enabled": False,
    },
)

SPECS: Mapping[str, Spec] = MappingProxyType(
    {spec.name: spec for spec in (_DEMO, _QUICK, _DSA, _MOMENT_TINY, *map(_paper, ("pamap2", "mhealth")))}
)
