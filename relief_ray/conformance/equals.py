"""A rule for special cases: with these settings a method is another method, round by round, to the bit.

FedProx with ``mu = 0`` is FedAvg: such a limit that is known on paper tests the code of a method like nothing else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from math import ceil, log10
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote

import safetensors.torch
import torch
from torch import Tensor

from relief_ray.config.experiment import ExperimentConfig
from relief_ray.conformance.rules import Rule, Verdict, what_broke
from relief_ray.conformance.runner import after_rounds, drive
from relief_ray.records import checkpoint
from relief_ray.support.errors import UserError

# Several optimizer steps a round: in the first one FedProx's term is zero whatever mu is.
STEPS: Mapping[str, object] = MappingProxyType({"epochs": 2, "lr": 0.01, "batch_size": 4})
EQUALS_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "equals": Rule(
            says="after every round its models are those of the other method",
            fix="compare the first round that differs: the tasks, the client's half, then the aggregation",
        )
    }
)


def check_equals(config: ExperimentConfig, other: ExperimentConfig, within: float = 0.0) -> Verdict:
    """Run both configurations and compare their server models after every round.

    ``within``: the largest difference of two values; 0: the same bits.
    """
    with tempfile.TemporaryDirectory(prefix="relief-ray-") as folder:
        try:
            models, expected = (_rounds(c, Path(folder) / str(i)) for i, c in enumerate((config, other)))
        except UserError as error:
            return Verdict(rule="equals", status="broken", found=str(error))
        except Exception as error:
            return Verdict(rule="equals", status="broken", found=what_broke(error, ("equals",), config.modules())[1])
    found = _difference(models, expected, other.label(), within)
    hint = _rounding(models, expected, within) if found else ""
    return Verdict(rule="equals", status="broken" if found else "kept", found=found + hint, has_remedy=bool(hint))


_Models = dict[str, Tensor]
# Share of the largest value up to which a difference is taken for rounding: some eight units in float32's last place.
_ROUNDING = 1e-6


def _rounds(config: ExperimentConfig, path: Path) -> dict[int, _Models]:
    """The server's models after each round, by ``model/group``; the run stops after every round for it."""
    states: dict[int, _Models] = {}
    status = ""
    while status != "done":
        status = drive(config, path, should_stop=after_rounds(1)).status
        newest = checkpoint.generations(path)[0]
        tensors = safetensors.torch.load_file(newest / checkpoint.STATE_FILE)
        models = {unquote(name.removeprefix("models/")): x for name, x in tensors.items() if name.startswith("models/")}
        states[checkpoint.round_of(newest)] = models
    return states


def _difference(models: Mapping[int, _Models], expected: Mapping[int, _Models], other: str, within: float) -> str:
    """Describe the first round in which the models differ by more than ``within``; empty: in none."""
    if models.keys() != expected.keys():
        return f"it has the rounds {sorted(models)}, {other} has {sorted(expected)}"
    for round_ in sorted(models):
        mine, theirs = models[round_], expected[round_]
        if mine.keys() != theirs.keys():
            return f"round {round_}: models and groups {sorted(mine.keys() ^ theirs.keys())} are in one of them only"
        gaps = {name: _gap(x, theirs[name]) for name, x in mine.items()}
        worst = max(gaps, key=lambda name: gaps[name])
        if gaps[worst] > within:
            number = f"{sum(gap > within for gap in gaps.values())} of {len(gaps)} groups differ from {other}'s"
            return f"round {round_}: {number}, {worst} most, by {gaps[worst]:.3g}"
    return ""


def _rounding(models: Mapping[int, _Models], expected: Mapping[int, _Models], within: float) -> str:
    """Return what to do where the first round that differs does so by rounding alone; empty where by more.

    Another order of summing changes the last bits of float32, and training amplifies that from round to round.
    """
    if models.keys() != expected.keys():
        return ""
    for round_ in sorted(models):
        mine, theirs = models[round_], expected[round_]
        if mine.keys() != theirs.keys():
            return ""
        if gap := max(_gap(x, theirs[name]) for name, x in mine.items()):
            if gap > _ROUNDING * max(float(x.abs().max()) for x in theirs.values()):
                return ""
            least = max(within, 10.0 ** ceil(log10(gap)))
            return (
                f"; round {round_} differs first, by {gap:.2g}: that is rounding (another order of summing), which "
                f"training amplifies; judge that round alone, --set rounds={max(1, round_)} --within {least:g}"
            )
    return ""


def _gap(x: Tensor, y: Tensor) -> float:
    """Largest difference; infinite where the shapes differ."""
    if x.shape != y.shape:
        return float("inf")
    return 0.0 if torch.equal(x, y) else float((x.double() - y.double()).abs().max())
