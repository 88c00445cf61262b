"""Scores of searches on validation data, a line per run: committed results hold test scores, which a search has not."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean

from pydantic import TypeAdapter

from relief_ray.records.cells import find_runs
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.schema import RunRecord, config_value

_CLOCK = "flop_proportional"
# Method, order, groups of the slowest client, optimizer, learning rate.
Setting = tuple[str, str, int, str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """One run: its settings, and what its last round scored.

    Attributes:
        method: name of the method.
        order: order of RELIEF's groups; empty for other methods.
        slots: groups of the slowest client; 0: the budget's own number.
        optimizer: the clients' optimizer.
        rate: its learning rate.
        fold: fold of a held-out split; 0 where the split has none.
        seed: the run's seed.
        validation_f1: headline F1 of the last tested round on validation windows, 0 to 1.
        round_s: mean simulated seconds of a round.
        config_hash: hash of the run's configuration.
        program: digest of the sources.
        replicate: number of the replicate; None where a grid names seeds.
    """

    method: str
    order: str = ""
    slots: int = 0
    optimizer: str
    rate: float
    fold: int
    seed: int
    validation_f1: float
    round_s: float
    config_hash: str
    program: str
    replicate: int | None = None

    @property
    def setting(self) -> Setting:
        """Return what tells settings apart."""
        return self.method, self.order, self.slots, self.optimizer, self.rate

    @property
    def pair(self) -> tuple[int, int]:
        """Return what two paired runs share."""
        return self.fold, self.seed


_SCORE = TypeAdapter(Score)
# Fields that are settings of a run.
_KEYS: Mapping[str, str] = {
    "order": "strategy.select",
    "slots": "strategy.slots_slowest",
    "optimizer": "training.optimizer",
    "rate": "training.lr",
    "fold": "data.fold",
    "seed": "seed",
    "replicate": "replicate",
}


def score_of(folder: Path, run: RunRecord) -> Score:
    """Read one finished run.

    Raises:
        UserError: the record is damaged.
    """
    rounds = read_rounds(folder)
    scored = [f1 for r in rounds if r.validation is not None and (f1 := r.validation.headline) is not None]
    settings = {field: config_value(run.config, key) for field, key in _KEYS.items()}
    return _SCORE.validate_python(
        {
            **{field: value for field, value in settings.items() if value is not None},
            "method": run.method.name.partition(" ")[0],
            "validation_f1": scored[-1],
            "round_s": fmean(r.costs[_CLOCK].round_s for r in rounds),
            "config_hash": run.config_hash,
            "program": run.source_digest,
        }
    )


def scores_of(folders: Sequence[Path]) -> list[Score]:
    """Read the finished runs below these folders."""
    runs = ((folder, read_run(folder)) for folder in find_runs(folders))
    return [score_of(folder, run) for folder, run in runs if run.status == "done"]


def write(scores: Iterable[Score], path: Path) -> None:
    """Write one line per run, ordered by setting, fold and seed."""
    rows = [asdict(score) for score in sorted(scores, key=lambda s: (s.setting, s.pair))]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Score)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read(path: Path) -> list[Score]:
    """Read committed scores; an empty value is the field's default."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [{key: value for key, value in row.items() if value != ""} for row in csv.DictReader(file)]
    return [_SCORE.validate_python(row) for row in rows]
