"""What a search gives the report: a column of tuned figures beside the usual ones, and one table of its tries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from pydantic import JsonValue

from relief_ray.report.comparison import stat
from relief_ray.report.document import Entry, Line, Sheet, Tone
from relief_ray.report.experiments import Experiment
from relief_ray.report.inventory import Slot, chosen_keys
from relief_ray.report.runs import at
from relief_ray.report.tables.cells import Column, entry, gap, open_states, origin_of
from relief_ray.report.tables.notes import protocol

LEARNING_RATE = "training.lr"
HEAD = "F1 %, tuned"
_F1 = Column(head=HEAD, figure="f1_percent", decimals=1)


def with_tuned(table: Sheet, labels: Sequence[str], mine: Experiment, found: Sequence[Experiment]) -> Sheet:
    """Table I or II with the tuned F1 of each method as a last column, where a grid of tuned cells is there."""
    tuned = twin(mine, found)
    if tuned is None:
        return table
    lines = tuple(_extended(line, tuned, label) for line, label in zip(table.lines, labels, strict=True))
    note = (
        f"`{HEAD}`: every method with the values that a search chose by validation F1; below them, and `edge` where "
        "the optimum stood at the first or last value tried, so that a wider search may find a better one."
    )
    return Sheet(
        slug=table.slug, caption=table.caption, head=(*table.head, HEAD), lines=lines, notes=(*table.notes, note),
        second=table.second,
    )  # fmt: skip


def twin(mine: Experiment, found: Sequence[Experiment]) -> Experiment | None:
    """The tuned cells of a setting with the usual values."""
    if mine.choice:
        return None
    tuned = [(e, {k for s in e.slots for k in chosen_keys(s.config)}) for e in found if e.choice == "tuned"]
    return next((e for e, chosen in tuned if e.base(chosen) == mine.base(chosen)), None)


def _extended(line: Line, tuned: Experiment, label: str) -> Line:
    return Line(name=line.name, entries=(*line.entries, _tuned(tuned, label)), rule=line.rule, faint=line.faint)


def _tuned(tuned: Experiment, label: str) -> Entry:
    row = None if tuned.main is None else tuned.main.row(label)
    if tuned.main is None or row is None:
        return gap(open_states(tuned, label))
    origin = origin_of(tuned, tuned.main, label, "f1_percent")
    found = entry(row.stats.get("f1_percent"), _F1, origin=origin, num_runs=row.num_runs)
    return Entry(text=found.text, below=_chosen(tuned, label), origin=origin, numbers=found.numbers)


def _chosen(tuned: Experiment, label: str) -> str:
    """``lr 0.003, gamma 0.5, edge``; several choices (one per fold) side by side."""
    return "; ".join(dict.fromkeys(_values(s.config) for s in tuned.slots if s.label == label))


def _values(config: Mapping[str, JsonValue]) -> str:
    edge = at(config, "choice.at_edge")
    parts = [f"{key.rpartition('.')[2]} {_shown(at(config, key))}" for key in chosen_keys(config)]
    return ", ".join([*parts, *(["edge"] if edge else [])])


def _shown(value: JsonValue) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def search_table(experiment: Experiment, slug: str) -> Sheet:
    """A search: a line per method, fold and own value, a column per learning rate, validation F1 in percent."""
    rates = sorted({float(str(at(s.config, LEARNING_RATE))) for s in experiment.slots})
    groups: dict[tuple[str, int, str], list[Slot]] = {}
    for slot in experiment.slots:
        groups.setdefault((slot.label, _fold(slot), _own(slot.config)), []).append(slot)
    places = dict.fromkeys((label, fold) for label, fold, _ in groups)
    best = {place: _best([s for s in experiment.slots if (s.label, _fold(s)) == place]) for place in places}
    has_folds = len({fold for _, fold in places}) > 1
    lines = [
        Line(
            name=" ".join(filter(None, (label, f"fold {fold}" if has_folds else "", own))),
            entries=tuple(_tries(group, rate, best[label, fold]) for rate in rates),
        )
        for (label, fold, own), group in groups.items()
    ]
    note = (
        "F1 of the validation part after the last round, of the clients' own models where they have such; mean over "
        "seeds, each fold for itself. Green: a method's best, which `grid freeze` keeps once all its tries are done."
    )
    head = ("method", *(f"lr {rate:g}" for rate in rates))
    caption = f"Search by validation F1 (%): {experiment.title}."
    return Sheet(slug=slug, caption=caption, head=head, lines=tuple(lines), notes=(protocol(experiment), note))


def _own(config: Mapping[str, JsonValue]) -> str:
    keys = [k for k in chosen_keys(config) if k != LEARNING_RATE]
    return ", ".join(f"{k.rpartition('.')[2]} {_shown(at(config, k))}" for k in keys)


def _fold(slot: Slot) -> int:
    """Folds are never averaged: the validation windows of one come from subjects that another tests on."""
    fold = at(slot.config, "data.fold")
    return fold if isinstance(fold, int) else 0


def _scores(slots: Sequence[Slot]) -> list[float]:
    last = [s.loaded.trained[-1].validation for s in slots if s.loaded is not None and s.loaded.complete]
    return [m.headline for m in last if m is not None and m.headline is not None]


def _best(slots: Sequence[Slot]) -> str:
    """The values of the best try, the first listed where several are; empty where none has a score."""
    tries: dict[str, list[Slot]] = {}
    for slot in slots:
        tries.setdefault(_values(slot.config), []).append(slot)
    means = {values: fmean(found) for values, group in tries.items() if (found := _scores(group))}
    return max(means, key=lambda values: means[values], default="")


def _tries(group: Sequence[Slot], rate: float, best: str) -> Entry:
    mine = [s for s in group if float(str(at(s.config, LEARNING_RATE))) == rate]
    found = _scores(mine)
    if not found:
        return gap([s.state for s in mine])
    shown = entry(stat([100 * f1 for f1 in found]), _F1, origin="measured", num_runs=len(mine))
    tone: Tone = "good" if _values(mine[0].config) == best else ""
    return Entry(text=shown.text, numbers=shown.numbers, tone=tone)
