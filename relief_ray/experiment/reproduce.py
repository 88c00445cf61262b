"""Computes a committed cell again and compares: equal bits, within tolerance, or different."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap
from math import isclose, isfinite
from pathlib import Path
from typing import Literal

from relief_ray.config.experiment import recorded_config
from relief_ray.experiment.experiment import OnRound, ignore, run_opened
from relief_ray.experiment.lifecycle import stored_engine
from relief_ray.experiment.recording import run_record
from relief_ray.experiment.setup import prepare
from relief_ray.records.committed import CommittedCell, condense
from relief_ray.records.identity import other_processor, other_program
from relief_ray.records.run_folder import RunFolder, read_rounds, read_run
from relief_ray.records.schema import Metrics
from relief_ray.support.errors import Setting, UserError
from relief_ray.support.process import use_threads

Answer = Literal["equal bits", "within tolerance", "different"]
_TOLERANCE = 0.01  # of F1 as a share: one point
COSTS = 1e-6  # relative, of seconds and joules


@dataclass(frozen=True, kw_only=True, slots=True)
class Reproduction:
    """Result of a comparison.

    Attributes:
        answer: equal bits, within tolerance, or different.
        f1_gap: largest difference of F1 in a round, a share.
        differences: all differences in words.
        program: how the programs differ; None where they are the same.
        processor: how the processors differ; None where they are the same.
    """

    answer: Answer
    f1_gap: float
    differences: tuple[str, ...]
    program: str | None
    processor: str | None


def reproduce(
    cell: CommittedCell, folder: Path, tolerance: float = _TOLERANCE, on_round: OnRound = ignore
) -> Reproduction:
    """Run the cell from its first round in ``folder``, in this process, with its recorded engine and thread count.

    Raises:
        UserError: its data are not here, this version cannot read its configuration, or there is no such tolerance.
    """
    if not (isfinite(tolerance) and tolerance >= 0.0):
        raise UserError(f"--tolerance {100 * tolerance:g}: expected points of F1, 0 or more, e.g. --tolerance 1")
    _run_again(cell, folder, on_round)
    return judge(cell, condense(read_run(folder), tuple(read_rounds(folder))), tolerance)


def _run_again(cell: CommittedCell, folder: Path, on_round: OnRound) -> None:
    """Run the cell inline, without export.

    Raises:
        UserError: its data are not here, or this version cannot read its configuration.
    """
    here = {"runtime.mode": "inline", "runtime.address": None, "tracking.enabled": False, "tracking.uri": None}
    config = recorded_config(cell, "the committed cell", starmap(Setting, here.items()))
    use_threads(cell.machine.num_threads)
    setup = prepare(config, engine=stored_engine(cell))
    if setup.data.digest != cell.data_digest:
        raise UserError(
            f"the cell was computed on data {cell.data_digest[:12]}, found {setup.data.digest[:12]}; point RELIEF_DATA "
            "to the data it was computed on"
        )
    RunFolder.create(folder, run_record(setup)).close()
    run_opened(setup, folder, on_round=on_round)


def judge(old: CommittedCell, new: CommittedCell, tolerance: float = _TOLERANCE) -> Reproduction:
    """Compare two computations of a cell.

    Equal bits: the last model's hash, every F1, second, joule and byte, the last metrics. Within tolerance: F1 within
    ``tolerance`` in every evaluated round, seconds and joules to 1e-6, the same bytes. Otherwise different.
    """
    pairs = list(zip(old.rounds, new.rounds, strict=False))
    gap = max((abs(a.f1 - b.f1) for a, b in pairs if a.f1 is not None and b.f1 is not None), default=0.0)
    differences = tuple(_differences(old, new))
    answer: Answer = "equal bits"
    if differences:
        answer = "within tolerance" if gap <= tolerance and _costs_agree(old, new) else "different"
    return Reproduction(
        answer=answer,
        f1_gap=gap,
        differences=differences,
        program=other_program(old),
        processor=other_processor(old),
    )


def _differences(old: CommittedCell, new: CommittedCell) -> Iterator[str]:
    if old.model_sha256 != new.model_sha256:
        yield f"last model {old.model_sha256[:12]} there, {new.model_sha256[:12]} here"
    if len(old.rounds) != len(new.rounds):
        yield f"{len(old.rounds)} rounds there, {len(new.rounds)} here"
    for a, b in zip(old.rounds, new.rounds, strict=False):
        names = [n for n in type(a).model_fields if getattr(a, n) != getattr(b, n)]
        if names:
            shown = ", ".join(f"{n} {getattr(a, n)} there, {getattr(b, n)} here" for n in names)
            yield f"round {a.round}: {shown}"
    if _common_scores(old.metrics, new.metrics) != _common_scores(new.metrics, old.metrics):
        yield "the last metrics differ"


def _common_scores(metrics: Metrics | None, other: Metrics | None) -> Metrics | None:
    """Return ``metrics`` without registered scores that ``other`` lacks: one registered later is no difference."""
    if metrics is None or other is None:
        return metrics
    return metrics.model_copy(update={"scores": {k: v for k, v in metrics.scores.items() if k in other.scores}})


def _costs_agree(old: CommittedCell, new: CommittedCell) -> bool:
    return len(old.rounds) == len(new.rounds) and all(
        a.round == b.round
        and (a.f1 is None) == (b.f1 is None)
        and (a.bytes_up, a.bytes_down) == (b.bytes_up, b.bytes_down)
        and isclose(a.time_s, b.time_s, rel_tol=COSTS)
        and isclose(a.energy_j, b.energy_j, rel_tol=COSTS)
        for a, b in zip(old.rounds, new.rounds, strict=True)
    )
