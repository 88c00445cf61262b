"""What every table of figures has to say beside them: the protocol of its runs, and the clock behind its seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relief_ray.errors import several
from relief_ray.report.captions import clock_sentence
from relief_ray.report.comparison import Comparison
from relief_ray.report.experiments import Experiment
from relief_ray.report.inventory import Slot
from relief_ray.report.runs import split_name
from relief_ray.report.tables.cells import SIMULATED, Column

TIMED = (*SIMULATED, "compute_s", "wait_s", "device_j")
_BY_ROUND = ("tta85_rounds", "tta95_rounds")
ORDINALS = {1: "1st", 2: "2nd", 3: "3rd"}


def headings(experiment: Experiment, columns: Sequence[Column], clock: str | None) -> Iterator[str]:
    """The columns' headings: simulated ones name their clock, numbers of rounds how often F1 was looked at."""
    every = experiment.text("evaluation.every")
    for column in columns:
        if column.figure in TIMED and clock is not None:
            yield f"{column.head}, `{clock}`"
        elif column.figure in _BY_ROUND and every not in ("", "1"):
            yield f"{column.head}, tested every {_ordinal(int(every))}"
        else:
            yield column.head


def _ordinal(number: int) -> str:
    return ORDINALS.get(number, f"{number}th")


def protocol(experiment: Experiment) -> str:
    """How the runs were made, in one line: whatever was reduced stands there."""
    every = experiment.text("evaluation.every")
    looked = "tested after every round" if every == "1" else f"tested every {every} rounds and after the last"
    parts = [
        _named(experiment, "{} rounds", "rounds"),
        _named(experiment, "E = {} local epochs", "training.epochs"),
        "values chosen by a search" if experiment.choice else _named(experiment, "learning rate {}", "training.lr"),
        "" if "training.batch_size" in experiment.searched else _named(experiment, "batch {}", "training.batch_size"),
        _named(experiment, "window stride {} s", "data.stride_s"),
        _named(experiment, "missing modality `{}`", "training.missing"),
        split_name(experiment.text("data.split")),
        looked if every else "",
        *_replicates(experiment.slots),
    ]
    share = experiment.text("participation")
    parts += [f"participation {share}"] if share not in ("", "1") else []
    return f"Protocol: {', '.join(p for p in parts if p)}."


def _named(experiment: Experiment, words: str, key: str) -> str:
    value = experiment.text(key)
    return words.format(value) if value else ""


def _replicates(slots: Sequence[Slot]) -> list[str]:
    """Folds and seeds of the runs that count; what else was planned stands in the column `runs`."""
    done = [s.loaded for s in slots if s.state == "done" and s.loaded is not None]
    if not done:
        return []
    return [several("fold", (r.replicate[0] for r in done)), several("seed", (r.replicate[2] for r in done))]


def clock_note(comparison: Comparison | None) -> tuple[str, ...]:
    """Which clock, who planned with which; empty without runs."""
    return () if comparison is None else (clock_sentence(comparison),)
