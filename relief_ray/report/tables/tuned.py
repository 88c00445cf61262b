"""Results of a search: a column of tuned figures beside the usual ones, and one table of its tries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from pydantic import JsonValue

from relief_ray.report.comparison import Experiment, stat
from relief_ray.report.remarks import protocol
from relief_ray.report.runs import GridItem, chosen_keys, config_value
from relief_ray.report.tables.columns import HEADLINE, SPEEDUP
from relief_ray.report.tables.rows import figure_cell, gap, method_cell, open_statuses
from relief_ray.support.errors import listed
from relief_ray.support.table import Cell, Row, Table, Tone

_LEARNING_RATE = "training.lr"
HEAD = f"{HEADLINE.head}, tuned"


def with_tuned(table: Table, labels: Sequence[str], usual: Experiment, others: Sequence[Experiment]) -> Table:
    """Table I or II with the tuned F1 of each method as a last column, where a grid of tuned cells is there."""
    tuned = twin(usual, others)
    if tuned is None:
        return table
    pairs = zip(table.rows, labels, strict=True)
    rows = tuple(replace(row, cells=(*row.cells, *_tuned(tuned, label))) for row, label in pairs)
    speed = f"{SPEEDUP.head}, tuned"
    note = (
        f"`{HEAD}`: every method with the values that a search chose by validation F1; below them, and `edge` where "
        "the optimum stood at the first or last value tried, so that a wider search may find a better one. The speedup "
        "beside it is of the same runs."
    )
    notes = (*table.notes, note, *_traded(tuned))
    return replace(table, head=(*table.head, HEAD, speed), rows=rows, notes=notes)


def _traded(tuned: Experiment) -> tuple[str, ...]:
    """Name the methods whose searched value also decides their speed, as they state it."""
    traded = {r.label: r.run.method.search_trades_speed for r in tuned.runs}
    texts = [f"{label} ({text})" for label, text in traded.items() if text]
    if not texts:
        return ()
    return (f"What is searched also decides the speed, so that F1 and speed belong together: {listed(texts)}.",)


def twin(usual: Experiment, others: Sequence[Experiment]) -> Experiment | None:
    """The tuned cells of a setting with the usual values."""
    if usual.choice:
        return None
    tuned = [(e, {k for s in e.items for k in chosen_keys(s.config)}) for e in others if e.choice == "tuned"]
    return next((e for e, chosen in tuned if e.base(chosen) == usual.base(chosen)), None)


def _tuned(tuned: Experiment, label: str) -> tuple[Cell, Cell]:
    """F1 with the values that a search chose, and the speed of the same runs."""
    shown = tuned.main
    method = None if shown is None else shown.row(label)
    if shown is None or method is None:
        return gap(open_statuses(tuned, label)), Cell(text="", tone="gap")
    f1, speed = (method_cell(tuned, shown, method, column) for column in (HEADLINE, SPEEDUP))
    return replace(f1, below=_chosen(tuned, label)), speed


def _chosen(tuned: Experiment, label: str) -> str:
    """``lr 0.003, gamma 0.5, edge``; several choices (one per fold) side by side."""
    return "; ".join(dict.fromkeys(_values(s.config) for s in tuned.items if s.label == label))


def _values(config: Mapping[str, JsonValue]) -> str:
    edge = config_value(config, "choice.at_edge")
    parts = [f"{key.rpartition('.')[2]} {_shown(config_value(config, key))}" for key in chosen_keys(config)]
    return ", ".join([*parts, *(["edge"] if edge else [])])


def _shown(value: JsonValue) -> str:
    """``0.003``, ``none``, ``A 1, B 0.75``: a value in a cell."""
    if isinstance(value, Mapping):
        return " ".join(f"{key} {_shown(v)}" for key, v in value.items())
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def search_table(experiment: Experiment, slug: str) -> Table:
    """Table of a search: a row per method, fold and value of its own, a column per learning rate, validation F1."""
    rates = sorted({float(str(config_value(s.config, _LEARNING_RATE))) for s in experiment.items})
    groups: dict[tuple[str, int, str], list[GridItem]] = {}
    for item in experiment.items:
        groups.setdefault((item.label, _fold(item), _other_values(item.config)), []).append(item)
    places = dict.fromkeys((label, fold) for label, fold, _ in groups)
    best = {place: _best([s for s in experiment.items if (s.label, _fold(s)) == place]) for place in places}
    has_folds = len({fold for _, fold in places}) > 1
    has_rounds = any(item.status == "stopped" for item in experiment.items)
    rows = [
        Row(
            name=" ".join(filter(None, (label, f"fold {fold}" if has_folds else "", others))),
            cells=tuple(_tries(group, rate, best[label, fold], has_rounds=has_rounds) for rate in rates),
        )
        for (label, fold, others), group in groups.items()
    ]
    note = (
        "F1 of the validation part after the last round, of the clients' own models where they have such; mean over "
        "seeds, each fold for itself. Green: a method's best, which `grid freeze` keeps once all its tries are done."
    )
    stops = (
        "Below each F1 the rounds of the try. A try with fewer was stopped early: its F1 is that of its last tested "
        "round, and it cannot be chosen."
    )
    notes = (protocol(experiment), note, *([stops] if has_rounds else []))
    head = ("method", *(f"lr {rate:g}" for rate in rates))
    caption = f"Search by validation F1 (%): {experiment.title}."
    return Table(slug=slug, caption=caption, head=head, rows=tuple(rows), notes=notes)


def _other_values(config: Mapping[str, JsonValue]) -> str:
    keys = [k for k in chosen_keys(config) if k != _LEARNING_RATE]
    return ", ".join(f"{k.rpartition('.')[2]} {_shown(config_value(config, k))}" for k in keys)


def _fold(item: GridItem) -> int:
    """Fold of a run; folds are never averaged, since one validates on subjects that another tests."""
    fold = config_value(item.config, "data.fold")
    return fold if isinstance(fold, int) else 0


def _scores(items: Sequence[GridItem]) -> list[float]:
    last = [s.loaded.trained[-1].validation for s in items if s.loaded is not None and s.loaded.complete]
    return [m.headline for m in last if m is not None and m.headline is not None]


def _best(items: Sequence[GridItem]) -> str:
    """The values of the best try, the first listed where several are; empty where none has a score."""
    tries: dict[str, list[GridItem]] = {}
    for item in items:
        tries.setdefault(_values(item.config), []).append(item)
    means = {values: fmean(scores) for values, group in tries.items() if (scores := _scores(group))}
    return max(means, key=lambda values: means[values], default="")


def _tries(group: Sequence[GridItem], rate: float, best: str, *, has_rounds: bool) -> Cell:
    """The tries of a learning rate; ``has_rounds``: some of the search were stopped early, so each says its rounds."""
    items = [s for s in group if float(str(config_value(s.config, _LEARNING_RATE))) == rate]
    stopped = [s.loaded for s in items if s.status == "stopped" and s.loaded is not None and s.loaded.trained]
    scores = _scores(items)
    if not scores and stopped:
        tested = [n.validation.headline for n in stopped[-1].trained if n.validation is not None]
        last, round_ = tested[-1] if tested else None, stopped[-1].trained[-1].round
        text = "-" if last is None else f"{100 * last:.1f}"
        facts = {"mean": None if last is None else 100 * last, "rounds": round_, "status": "stopped"}
        return Cell(text=text, below=f"{round_} rounds, stopped", tone="gap", numbers=facts)
    if not scores:
        return gap([s.status for s in items])
    shown = figure_cell(stat([100 * f1 for f1 in scores]), HEADLINE, origin="measured", num_runs=len(items))
    tone: Tone = "good" if _values(items[0].config) == best else ""
    if not has_rounds:
        return Cell(text=shown.text, numbers=shown.numbers, tone=tone)
    rounds = max(s.loaded.planned for s in items if s.loaded is not None and s.loaded.complete)
    return Cell(text=shown.text, below=f"{rounds} rounds", numbers={**shown.numbers, "rounds": rounds}, tone=tone)
