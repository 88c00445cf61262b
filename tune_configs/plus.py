"""What of RELIEF pays: reach, epochs to the deadline, or formats, against FedAvg at its best number of epochs.

``plus_pilot`` looks at the candidates and their scatter, on replicates that nothing else uses. Its choice and the
claims of the study are written down before the study's first run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from relief_ray.strategies import PROPOSED, REFERENCE
from relief_ray.studies.spec import CNN, SGD, SHORT, Axis, Level, Spec, Values, backbones
from tune_configs import CLAIMS

# Every sensor's networks that a client has train for it, it receives nothing else, and all participants are averaged.
_DOWNLOAD: Values = {"transfer.download": "reachable"}
_REACH: Values = {**_DOWNLOAD, "strategy.mean": "participants"}
_FORMATS: Mapping[str, Values] = {"": {}, "int8": {"transfer.up": "int8", "transfer.down": "float16"}}
# Epochs of a level that names no others: the paper's, and FedAvg's.
_EPOCHS = 5


def _levels(name: str, epochs: tuple[int, ...], settings: Values) -> Iterator[Level]:
    """Levels of so many epochs, each in both formats; FedAvg with the paper's epochs and float32 is no level."""
    for number in epochs:
        for ending, formats in _FORMATS.items():
            is_usual = name == "e" and number == _EPOCHS
            parts = ["" if is_usual else f"{name}{number}", ending]
            changed = {} if number == _EPOCHS else {"training.epochs": number}
            yield Level(name="-".join(filter(None, parts)), settings={**settings, **formats, **changed})


PLUS_PILOT = Spec(
    name="plus_pilot",
    title="candidates for RELIEF+: own reach, epochs to the deadline, formats; FedAvg with 1, 2 and 5 epochs",
    methods=(REFERENCE, PROPOSED),
    datasets=("dsa",),
    axes=(backbones(CNN), Axis(name="epochs", levels=(Level(name="", settings={"training.epochs": _EPOCHS}),))),
    own={
        REFERENCE: tuple(_levels("e", (5, 2, 1), {})),
        PROPOSED: (
            *_levels("reach", (1, 2), {**_REACH, "strategy.budget": "none"}),
            *_levels("until", (5,), {**_REACH, "strategy.budget": "epochs"}),
            *_levels("zero", (1,), {**_REACH, "strategy.budget": "none", "training.missing": "zero_feature"}),
        ),
    },
    replicates=tuple(range(400, 406)),
    settings={**SHORT, **SGD, "training.lr": 0.1, "evaluation.every": 1},
)
"""Pilot of RELIEF+: 4 folds x 6 replicates, FedAvg with 1, 2 and 5 epochs against three ways to use the same deadline.

``reach``: everything within reach, 1 or 2 epochs; ``until``: the epochs of 5 that end by T*; ``zero``: ``reach`` with
features of absent sensors set to 0. ``-int8``: int8 up and float16 down."""


# The preset of what the pilot chose.
CHOSEN = "relief_plus"
_CODED = _FORMATS["int8"]
# FedAvg's best number of epochs at equal seconds, in the candidate's formats.
_BEST = Level(name="e1-int8", settings={"training.epochs": 1, **_CODED})
_CHOSEN = Level(name="int8", settings={**_DOWNLOAD, **_CODED})

PLUS = replace(
    PLUS_PILOT,
    name="plus",
    title="RELIEF+ against FedAvg with the paper's 5 epochs, and with its best number of epochs, 192 pairs",
    methods=(REFERENCE, CHOSEN),
    own={REFERENCE: (Level(name=""), _BEST), CHOSEN: (_CHOSEN,)},
    replicates=tuple(range(410, 458)),
    claims=CLAIMS / "plus.yaml",
)
"""The pilot's choice against FedAvg on replicates that nothing else uses: 4 folds x 48 replicates, three claims."""


# RELIEF's T* on these clients with five epochs, and 0.2 ms for rows of absent sensors, which T_o does not hold; they
# change no client's epochs. FedProx and FedNova have no rule for it, so it is given in seconds.
_TARGET_S = 0.83308128706074


_UNTIL: Values = {**_REACH, "strategy.budget": "epochs", **_CODED}

PLUS_PARTS = replace(
    PLUS,
    name="plus_parts",
    title="what pays: budgets of groups and epochs, cohorts, reach, formats; FedProx and FedNova to the same T*",
    methods=(REFERENCE, "fedprox", "fednova", PROPOSED, CHOSEN),
    own={
        REFERENCE: (*_levels("e", (_EPOCHS,), {}), Level(name="e1", settings={"training.epochs": 1}), _BEST),
        "fedprox": (Level(name="", settings={"strategy.partial_work": "deadline", "strategy.deadline_s": _TARGET_S}),),
        "fednova": (Level(name="", settings={"strategy.deadline_s": _TARGET_S}),),
        PROPOSED: (
            Level(name=""),
            Level(name="int8", settings=_CODED),
            # What T* buys, by over whom updates are averaged.
            *(
                Level(name=f"{budget}-{mean}", settings={**_DOWNLOAD, "strategy.budget": budget, "strategy.mean": mean})
                for budget in ("groups", "epochs", "none")
                for mean in ("cohort", "participants")
            ),
            Level(name="until-int8", settings=_UNTIL),
            Level(name="until-late-int8", settings={**_UNTIL, "strategy.deadline_s": _TARGET_S}),
        ),
        CHOSEN: (Level(name="", settings=_DOWNLOAD), _CHOSEN),
    },
    replicates=PLUS.replicates[:4],
    claims="",
)
"""Each part alone on 16 of the pairs of ``plus``, whose cells it shares; described, not tested."""


_ELSEWHERE = (
    Level(name="e2", settings={"training.epochs": 2}),
    Level(name="n100", settings={"data.num_clients": 100}),
    Level(name="gap10", settings={"fleet.gap": 10.0}),
    Level(name="inverted", settings={"fleet.coupling": "inverted"}),
)

PLUS_ELSEWHERE = replace(
    PLUS,
    name="plus_elsewhere",
    title="RELIEF+ and FedAvg with two epochs, with 100 clients, at a small gap, with inverted coupling",
    axes=(backbones(CNN), Axis(name="where", levels=_ELSEWHERE)),
    replicates=PLUS.replicates[:2],
    claims="",
)
"""The methods of ``plus`` in four other settings, 8 pairs each; described, not tested."""
