"""Presets of `relief-ray run NAME`: named experiments as plain, typed functions.

A preset is a ``Spec`` without further axes: values of a configuration, and strategies, folds of the held-out subjects,
and replicates or seeds that it is run over. The library is loaded when a preset is made, not when its title is read:
`relief-ray --help` stays quick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relief_ray.studies.spec import Spec

_CLAIMS = Path(__file__).parent / "claims"


def _in_order(*names: str) -> tuple[str, ...]:
    """Strategies in the registry's order, which tables and figures have too."""
    from relief_ray.strategies import DESCRIBED

    return tuple(sorted(names, key=list(DESCRIBED).index))


@dataclass(frozen=True, slots=True)
class NamedPreset:
    """A preset before it is made.

    Attributes:
        title: one line for the help text.
        make: makes the preset; loads the library.
    """

    title: str
    make: Callable[[str, str], Spec]


def demo(name: str, title: str) -> Spec:
    """FedAvg, V1 and V0 on the data that ship with the package; three replicates, each tests every subject once."""
    from relief_ray.report.paper import V1
    from relief_ray.strategies import PROPOSED, REFERENCE
    from relief_ray.studies.spec import Spec

    return Spec(
        kind="run",
        name=name,
        title=title,
        methods=_in_order(REFERENCE, V1, PROPOSED),
        folds=(0, 1, 2, 3),
        replicates=(0, 1, 2),
        claims=str(_CLAIMS / "demo.yaml"),
        settings={
            "data": {"name": "dsa_mini", "split": "held_out_subject", "stride_s": 5.0},
            "training": {"epochs": 5},
            "evaluation": {"every": 2},
            "rounds": 4,
            "runtime": {"mode": "packed"},
        },
    )


def quick(name: str, title: str) -> Spec:
    """RELIEF for two short rounds in this process: shows that it runs."""
    from relief_ray.strategies import PROPOSED
    from relief_ray.studies.spec import Spec

    return Spec(
        kind="run",
        name=name,
        title=title,
        methods=(PROPOSED,),
        seeds=(0,),
        settings={
            "data": {"name": "dsa_mini", "stride_s": 10.0},
            "training": {"epochs": 1},
            "evaluation": {"every": 1},
            "rounds": 2,
            "runtime": {"mode": "inline"},
            "tracking": {"enabled": False},
        },
    )


def dsa(name: str, title: str) -> Spec:
    """The study's setting on the full Daily and Sports Activities set, one seed."""
    from relief_ray.strategies import PROPOSED, REFERENCE, presets_of
    from relief_ray.studies.spec import Spec

    return Spec(
        kind="run",
        name=name,
        title=title,
        methods=_in_order(REFERENCE, "fedprox", PROPOSED, *presets_of("ablation")),
        folds=(0, 1, 2, 3),
        seeds=(0,),
        settings={
            "data": {"name": "dsa", "split": "held_out_subject", "stride_s": 5.0},
            "training": {"epochs": 2},
            "evaluation": {"every": 5},
            "record": {"checkpoint_every": 5, "pairwise_every": 5},
            "rounds": 20,
        },
    )


def moment_tiny(name: str, title: str) -> Spec:
    """Table II's methods and the bounds on Backbone 2 with the tiny, untrained encoder: one core, minutes.

    The shipped utilisation is fitted to the small encoder: under it the tiny one computes in no time, and links alone
    decide T*. The one given here makes Type C compute for 18 / 1.02 of its link's seconds in FedAvg, as in Section VII.
    """
    from relief_ray.strategies import PROPOSED, REFERENCE, presets_of
    from relief_ray.studies.spec import Spec

    return Spec(
        kind="run",
        name=name,
        title=title,
        methods=_in_order(
            REFERENCE,
            "fedprox",
            PROPOSED,
            *presets_of("ablation"),
            *presets_of("bound"),
        ),
        seeds=(0,),
        settings={
            "data": {"name": "dsa_mini", "split": "within_subject", "stride_s": 5.0},
            "backbone": {"name": "moment_lora", "size": "tiny"},
            "costs": {"utilisation": 0.008},
            "training": {"epochs": 5},
            "evaluation": {"every": 5},
            "record": {"checkpoint_every": 5},
            "rounds": 20,
            "runtime": {"mode": "inline"},
            "tracking": {"enabled": False},
        },
    )


def paper(name: str, title: str) -> Spec:
    """The paper's setting (Section VI-A) on the data set called ``name``: E = 5, R = 200, windows every second."""
    from relief_ray.strategies import PROPOSED, REFERENCE
    from relief_ray.studies.spec import Spec

    return Spec(
        kind="run",
        name=name,
        title=title,
        methods=_in_order(REFERENCE, "fedprox", PROPOSED),
        seeds=(0,),
        settings={
            "data": {"name": name, "split": "within_subject", "stride_s": 1.0},
            "training": {"epochs": 5},
            "evaluation": {"every": 5},
            "record": {"checkpoint_every": 5},
            "rounds": 200,
        },
    )


PRESETS: Mapping[str, NamedPreset] = MappingProxyType(
    {
        "demo": NamedPreset(
            "real data that ship with the package: FedAvg, V1 and V0 (RELIEF), 4 folds of subjects, 3 replicates",
            demo,
        ),
        "quick": NamedPreset(
            "two short rounds of RELIEF in this process, without Ray or MLflow: seconds",
            quick,
        ),
        "dsa": NamedPreset(
            "Daily and Sports Activities: 6 strategies, all 4 folds of held-out subjects, 20 rounds of 2 epochs",
            dsa,
        ),
        "moment_tiny": NamedPreset(
            "Backbone 2 (MOMENT with LoRA, tiny, random) on the data of the package: 10 methods, 20 rounds, one core",
            moment_tiny,
        ),
        "pamap2": NamedPreset(
            "PAMAP2 as in the paper: FedAvg, FedProx and RELIEF, 200 rounds of 5 epochs",
            paper,
        ),
        "mhealth": NamedPreset(
            "MHEALTH as in the paper: FedAvg, FedProx and RELIEF, 200 rounds of 5 epochs",
            paper,
        ),
    }
)


def make_preset(name: str) -> Spec:
    """Make the preset called ``name``, one of ``PRESETS``."""
    return PRESETS[name].make(name, PRESETS[name].title)
