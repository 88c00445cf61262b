"""What of RELIEF pays: reach, epochs to the deadline, or formats, against FedAvg at its best number of epochs.

``plus_pilot`` looks at the candidates and their scatter, on replicates that nothing else uses. Its choice and the
claims of the study are written down before the study's first run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from relief_ray.strategies import PROPOSED, REFERENCE
from relief_ray.studies.spec import CNN, SGD, SHORT, Axis, Level, Spec, Values, backbones

# Every sensor's networks that a client has train for it, it receives nothing else, and all participants are averaged.
_REACH: Values = {"transfer.download": "reachable", "strategy.mean": "participants"}
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
