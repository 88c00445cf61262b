"""Methods side by side: a setting's main table, the searched values beside them, and the tables of `compare`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import starmap
from statistics import fmean

from pydantic import JsonValue

from relief_ray.records.schema import config_value, has_folds
from relief_ray.report.comparison import Comparison, MethodResult, in_title, stat
from relief_ray.report.paper import PAPER_ROWS, PaperCell
from relief_ray.report.remarks import (
    VERSUS,
    alike_pairs,
    premises,
    protocol,
    stand_in_note,
    whose_intervals,
)
from relief_ray.report.runs import Config, GridItem, chosen_keys
from relief_ray.report.tables import columns as col
from relief_ray.report.tables.columns import HEADLINE, OWN_F1, SPEEDUP, Column
from relief_ray.report.tables.rows import (
    figure_cell,
    gap,
    method_cell,
    name_of,
    names_line,
    recorded,
    table_of,
)
from relief_ray.strategies import REFERENCE, by_registry
from relief_ray.support.errors import listed
from relief_ray.support.table import NONE, Cell, Row, Table, grouped

STARRED = (
    "* Clients are tested on models of their own: the headline is `F1 own %`, the mean over clients, each seen through "
    "its own sensors; `F1 %` and rare F1 are the canonical model's, a diagnostic."
)
TUNED = tuple(replace(column, label=f"{column.head}, tuned") for column in (HEADLINE, SPEEDUP))


def main_table(comparison: Comparison, known: Sequence[Comparison] = ()) -> Table:
    """The columns that lead, of every method that was run or planned, by the clock that planned.

    Rows: presets in the registry's order, then a user's own methods and variants, bounds last. Methods of which nothing
    is done stand as gaps. ``known``: where one of these settings has the tuned cells, their F1 and speed come last.
    """
    tuned, columns = twin(comparison, known), recorded(comparison, _lead(comparison))
    table = replace(
        table_of(
            comparison,
            list(filter(comparison.has, labels_of(comparison))),
            columns,
            more={} if tuned is None else {c.head: partial(_tuned, tuned, c) for c in TUNED},
        ),
        caption=f"Results: {comparison.title}.",
        notes=tuple(_notes(comparison)),
        details=(
            *premises(comparison),
            *(f"{text}." for text in taken_over(comparison)),
            *_tuned_notes(tuned),
        ),
        meanings=_meanings(columns),
    )
    most = {column.head for column in columns if not column.gain} - {col.JOULES.head}
    return table.with_best(least=[col.JOULES.head], most=most)


def further_table(comparison: Comparison) -> Table | None:
    """Every other figure of the methods that ran; None where nothing is done."""
    if not comparison.runs:
        return None
    others = [*_f1_columns(comparison), *_cost_columns(comparison), *_other_columns(comparison)]
    columns = recorded(comparison, [c for c in others if c.head not in {lead.head for lead in _lead(comparison)}])
    table = table_of(comparison, comparison.labels, columns)
    caption = f"Further figures: {comparison.title}."
    return replace(table, caption=caption, meanings=_meanings(columns)).without_blanks()


def labels_of(comparison: Comparison) -> list[str]:
    """The paper's methods in its order, then ablations, then what else was run or planned, bounds last."""
    planned = (item.label for item in comparison.items)
    return comparison.bounds_last(dict.fromkeys([*PAPER_ROWS, *ablations(comparison), *comparison.labels, *planned]))


def ablations(comparison: Comparison) -> list[str]:
    """Labels of the ablations: presets in the registry's order, then variants of them and a user's own."""
    return by_registry(label for label, method in comparison.methods.items() if method.kind.startswith("ablation"))


def _notes(comparison: Comparison) -> Iterator[str]:
    """Notes that a reader needs before comparing rows."""
    spread = "Mean ± sample standard deviation over runs; last" if len(comparison.runs) > 1 else "Last"
    same = "same fold and seed" if any(has_folds(r.run.config) for r in comparison.runs) else "same seed"
    paired = f"; differences are of paired runs ({same}), with their 95 % interval" if comparison.runs else ""
    yield f"{spread} evaluated round{paired}. `-`: undefined or never reached."
    if comparison.personalised:
        yield STARRED
    yield from (f"{note}." for note in stand_in_note(comparison.runs))


def taken_over(comparison: Comparison) -> list[str]:
    """Sentences on what the differences to FedAvg are taken over, and on the methods' names."""
    sentences = (alike_pairs, whose_intervals, names_line)
    return [text for make in sentences if (text := make(comparison))]


def clocks_table(comparison: Comparison) -> Table | None:
    """Speedup of every method by every clock that was recorded; None where there is one clock."""
    clocks = comparison.clocks
    if len(clocks) < 2:
        return None
    by_clock = [comparison.by(clock) for clock in clocks]
    rows = []
    for method in comparison.rows:
        if SPEEDUP.figure in method.stats:
            known = ((c, next(m for m in c.rows if m.label == method.label)) for c in by_clock)
            cells = tuple(method_cell(c, m, SPEEDUP) for c, m in known)
            rows.append(Row(name_of(method), cells, faint=method.is_bound))
    note = (
        f"Speedup over FedAvg by every time model of the same work; `{comparison.clock}` planned and stands in "
        "the main table."
    )
    return Table(
        caption=f"Speedup by clock: {comparison.title}.",
        head=("method", *(f"`{c}`" for c in clocks)),
        rows=tuple(rows),
        notes=(note,),
    )


def twin(usual: Comparison, others: Sequence[Comparison]) -> Comparison | None:
    """The tuned cells of a setting with the usual values."""
    if usual.choice:
        return None
    tuned = (other for other in others if other.choice == "tuned")
    return next((e for e in tuned if e.base(e.searched) == usual.base(e.searched)), None)


def _tuned(tuned: Comparison, column: Column, label: str) -> Cell:
    """F1 with the values that a search chose, several (one per fold) side by side below it; the speed of these runs."""
    is_score = column.figure == HEADLINE.figure
    if (method := tuned.row(label)) is None:
        return gap(tuned.open_statuses(label)) if is_score else Cell("", tone="gap")
    chosen = dict.fromkeys(_values(s.config) for s in tuned.items if s.label == label)
    cell = method_cell(tuned, method, column)
    return replace(cell, below="; ".join(chosen)) if is_score else cell


def _tuned_notes(tuned: Comparison | None) -> Iterator[str]:
    """What the tuned columns are; methods whose searched value also decides their speed, as they state it."""
    if tuned is None:
        return
    yield (
        f"`{TUNED[0].head}`: every method with the values that a search chose by validation F1; below them, and `edge` "
        "where the optimum stood at the first or last value tried, so that a wider search may find a better one. The "
        "speedup beside it is of the same runs."
    )
    traded = {r.label: r.run.method.search_trades_speed for r in tuned.runs}
    if texts := [f"{label} ({text})" for label, text in traded.items() if text]:
        yield f"What is searched also decides the speed, so that F1 and speed belong together: {listed(texts)}."


def _parts(config: Config) -> dict[str, str]:
    """The values that a search chose: ``lr 0.003``, ``limit none``, ``gamma A 1 B 0.75``."""
    return {key: f"{key.rpartition('.')[2]} {in_title(config_value(config, key))}" for key in chosen_keys(config)}


def _values(config: Config) -> str:
    """``lr 0.003, gamma 0.5, edge``."""
    edge = config_value(config, "choice.at_edge")
    return ", ".join([*_parts(config).values(), *(["edge"] if edge else [])])


_LEARNING_RATE = "training.lr"


def search_table(comparison: Comparison) -> Table:
    """Table of a search: a row per method, fold and value of its own, a column per learning rate, validation F1."""
    items = comparison.items
    rates = sorted(set(map(_rate, items)))
    # Folds are never averaged: one validates on subjects that another tests.
    places = grouped(((item.label, _fold(item)), item) for item in items)
    has_folds = len({_fold(item) for item in items}) > 1
    has_rounds = any(item.status == "stopped" for item in items)

    def name(item: GridItem) -> str:
        return " ".join(filter(None, (item.label, f"fold {_fold(item)}" * has_folds, _others(item))))

    def row(name: str, tries: Sequence[GridItem]) -> Row:
        best = _best(places[tries[0].label, _fold(tries[0])])
        of_rates = ([item for item in tries if _rate(item) == rate] for rate in rates)
        return Row(name, tuple(_tries(items, best, has_rounds=has_rounds) for items in of_rates))

    note = (
        "F1 of the validation part after the last round, of the clients' own models where they have such; mean over "
        "seeds, each fold for itself. Green: a method's best, which `grid freeze` keeps once all its tries are done."
    )
    stops = (
        "Below each F1 the rounds of the try. A try with fewer was stopped early: its F1 is that of its last tested "
        "round, and it cannot be chosen."
    )
    return Table(
        caption=f"Search by validation F1 (%): {comparison.title}.",
        head=("method", *(f"lr {rate:g}" for rate in rates)),
        rows=tuple(starmap(row, grouped((name(item), item) for item in items).items())),
        notes=(protocol(comparison), note, *([stops] if has_rounds else [])),
    )


def _fold(item: GridItem) -> JsonValue:
    return config_value(item.config, "data.fold") or 0


def _rate(item: GridItem) -> float:
    return float(str(config_value(item.config, _LEARNING_RATE)))


def _others(item: GridItem) -> str:
    """The searched values beside the learning rate."""
    return ", ".join(text for key, text in _parts(item.config).items() if key != _LEARNING_RATE)


def _scores(items: Sequence[GridItem]) -> list[float]:
    last = [s.loaded.rounds[-1].validation for s in items if s.loaded is not None and s.loaded.complete]
    return [m.headline for m in last if m is not None and m.headline is not None]


def _best(items: Sequence[GridItem]) -> str:
    """The values of the best try, the first listed where several are; empty where none has a score."""
    tries = grouped((_values(item.config), item) for item in items)
    means = {values: fmean(scores) for values, group in tries.items() if (scores := _scores(group))}
    return max(means, key=lambda values: means[values], default="")


def _tries(items: Sequence[GridItem], best: str, *, has_rounds: bool) -> Cell:
    """The tries of a learning rate; ``has_rounds``: some of the search were stopped early, so each says its rounds."""
    stopped = [s.loaded for s in items if s.status == "stopped" and s.loaded is not None and s.loaded.rounds]
    scores = [100 * f1 for f1 in _scores(items)]
    if not scores and stopped:
        tried = stopped[-1].rounds
        f1 = next((record.validation.headline for record in reversed(tried) if record.validation is not None), None)
        last = None if f1 is None else 100 * f1
        return Cell(
            NONE if last is None else f"{last:.1f}",
            below=f"{tried[-1].round} rounds, stopped",
            tone="gap",
            numbers={"mean": last, "rounds": tried[-1].round, "status": "stopped"},
        )
    if not scores:
        return gap([s.status for s in items])
    shown = figure_cell(stat(scores), HEADLINE, origin="measured", num_runs=len(items))
    cell = replace(shown, origin=None, tone="good" if _values(items[0].config) == best else "")
    if not has_rounds:
        return cell
    rounds = max(s.loaded.planned for s in items if s.loaded is not None and s.loaded.complete)
    return replace(cell, below=f"{rounds} rounds", numbers={**cell.numbers, "rounds": rounds})


SCORES = (
    OWN_F1,
    col.OWN_SUBJECTS_F1,
    col.WORST_CLIENT_F1,
    col.WORST_TENTH_F1,
    col.AT_SECONDS_F1,
    col.AT_SECONDS_OWN_F1,
    col.AT_JOULES_F1,
)
_CHANGE_OF_F1 = Column(VERSUS, gain=lambda _, method: method.f1)
COSTS = (col.ROUND_S, SPEEDUP, col.SPEEDUP_ROUND, *col.SPEED_CONTEXT, col.ROUNDS_TO_85, col.JOULES)
_WIDE = (
    col.LAST10_F1,
    col.JOULES_TOTAL,
    col.JOULES_SAVED,
    col.UP_SAVED,
    col.UP_MAX,
    col.TRAINED,
    col.ROUNDS_TO_FEDAVG,
    col.SECONDS_TO_FEDAVG,
    col.JOULES_TO_FEDAVG,
    col.FREE_SLOTS,
    col.CHOSEN_SLOTS,
)


def _lead(comparison: Comparison) -> tuple[Column, ...]:
    """The columns that lead everywhere: F1, gain, F1 at equal time and own sensors, speed, joules; a user's metrics."""
    own = map(col.own_metric, comparison.metrics)
    return (col.F1, _CHANGE_OF_F1, col.AT_SECONDS_F1, OWN_F1, SPEEDUP, col.JOULES, *own)


def lead_table(comparison: Comparison) -> Table:
    """The columns that lead."""
    return replace(_compared(comparison, _lead(comparison)), slug="results")


def all_tables(comparison: Comparison) -> tuple[Table, Table, Table]:
    """Scores, costs, and everything else.

    Scores: F1 of the canonical model, through own sensors (starred: own models), at equal cost, and by modality. Costs:
    seconds, joules, bytes and rounds to a target, which no method may reach; else what the records tell alone.
    Everything else: F1 at best validation only if known.
    """
    return (
        _compared(comparison, _f1_columns(comparison), always=(col.F1, *_alone(comparison))),
        _compared(comparison, _cost_columns(comparison)),
        _compared(comparison, _other_columns(comparison), always=_WIDE),
    )


def _f1_columns(comparison: Comparison) -> tuple[Column, ...]:
    own = map(col.own_metric, comparison.metrics)
    return (col.F1, *SCORES, _CHANGE_OF_F1, *own, *_alone(comparison))


def _alone(comparison: Comparison) -> tuple[Column, ...]:
    """F1 through one sensor."""
    return (col.RARE_F1, *map(col.modality_f1, comparison.sensors))


def _cost_columns(comparison: Comparison) -> tuple[Column, ...]:
    names = {name for row in comparison.rows for name in row.stats if name.startswith("sent_")}
    kinds = comparison.in_order(name.removeprefix("sent_").removesuffix("_percent") for name in names)
    upload = col.UP.get(comparison.backbone, col.UP["cnn"])
    return (*COSTS, upload, *map(col.sent_by, kinds), col.WALL_S)


def _other_columns(comparison: Comparison) -> tuple[Column, ...]:
    canonical = [_change("F1 %", "f1_canonical_percent")] if comparison.personalised else []
    return (*canonical, _change("rare F1", "f1_rare_percent"), col.BEST_F1, *_WIDE)


def _change(label: str, figure: str) -> Column:
    """The differences to FedAvg in a figure that does not lead."""
    return Column(f"{label} vs {REFERENCE} [95 %]", gain=lambda _, method: method.over_reference(figure))


def _compared(comparison: Comparison, columns: Sequence[Column], *, always: Collection[Column] = ()) -> Table:
    """A row per method, a rule above the first bound.

    Columns that no method has a figure for are left out, but ``always``. Cells are texts alone, without origins.
    """
    shown = recorded(comparison, columns, always)
    table = table_of(comparison, comparison.labels, shown, cell=_text_cell, has_number=False)
    return replace(table, meanings=_meanings(shown))


def _text_cell(comparison: Comparison, method: MethodResult, column: Column, _: PaperCell | None) -> Cell:
    return Cell(method_cell(comparison, method, column, tight=True).text)


def _meanings(columns: Iterable[Column]) -> dict[str, str]:
    """What headings mean that do not say it themselves."""
    return {column.head: column.meaning for column in columns if column.meaning}
