"""Tables I to VI of the paper, its testbed and its running text: our figures in their form, theirs below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from relief_ray.data.registry import recorded_spec
from relief_ray.devices.fleet import device_types, owned_modalities
from relief_ray.report.comparison import BACKBONES, Comparison, MethodResult, Stat, stat
from relief_ray.report.paper import (
    PAPER_ROWS,
    PREFIX,
    REPRESENTATIVE,
    TABLES,
    V0,
    V1,
    VARIANT_ROWS,
    PaperCell,
    PaperRow,
    paper_row,
    read_paper,
)
from relief_ray.report.remarks import (
    device_shares,
    mean_cosine,
    own_models,
    premises,
    protocol,
    stand_in_note,
)
from relief_ray.report.runs import split_name
from relief_ray.report.tables import columns as col
from relief_ray.report.tables.columns import HEADLINE, OWN_F1, Column
from relief_ray.report.tables.methods import STARRED, ablations, labels_of
from relief_ray.report.tables.rows import (
    departures,
    figure_cell,
    gap,
    headings,
    is_comparable,
    method_cell,
    name_of,
    origin_of,
    printed,
    recorded,
    second_line,
    table_of,
)
from relief_ray.strategies import DESCRIBED, REFERENCE, by_registry
from relief_ray.support.table import NONE, Cell, Row, Table, grouped

_SECOND = "second line: paper"
_SPEED = (col.RARE_F1, col.SPEEDUP, *col.SPEED_CONTEXT)
_COLUMNS = {
    "I": (*_SPEED, col.ROUNDS_TO_85, col.UP["cnn"], col.JOULES),
    "II": (*_SPEED, col.UP["moment_lora"], col.TRAINED, col.UP_SAVED, col.JOULES),
}


def paper_table(comparison: Comparison) -> Table | None:
    """Table I or II: ours by the paper's clock, on its data over its own, where methods that were not run are gaps.

    None for a user's data set, and where no method of the paper was run or planned.
    """
    number, labels = TABLES.get(comparison.backbone, "I"), labels_of(comparison)
    if not comparison.is_on_papers_data:
        labels = [v for v in labels if paper_row(v) in PAPER_ROWS.values() and comparison.has(v)]
    if comparison.is_own_data or not labels:
        return None
    comparison, starred = comparison.shown, comparison.personalised
    columns = recorded(comparison, (col.F1, *([OWN_F1] if starred else []), *_COLUMNS[number]))
    others = [v for v in labels if v not in PAPER_ROWS and v not in comparison.bounds]

    def theirs(label: str, column: Column) -> PaperCell | None:
        is_canonical_alone = column is OWN_F1 and label not in starred
        return None if is_canonical_alone else printed(comparison, number, paper_row(label), column)

    place = f"Our figures in the columns of the paper's Table {number}"
    if comparison.is_on_papers_data:
        place = f"Our figures beside the paper's (its Table {number})"
    return replace(
        table_of(
            comparison,
            labels,
            columns,
            heads=headings(comparison, columns),
            beside=theirs,
            # Above the first method that is not the paper's.
            rules=others[:1],
        ),
        caption=f"{place}: {comparison.title}.",
        notes=tuple(_notes(comparison, number)),
        second=second_line(comparison),
    )


def _notes(comparison: Comparison, number: str) -> Iterator[str]:
    """Notes that a reader needs before comparing rows."""
    yield from premises(comparison)
    yield (
        "Mean ± sample standard deviation over runs (folds x seeds); last evaluated round. `-`: undefined or never "
        "reached. A speedup is FedAvg's mean round over the method's, same fleet, same clock. "
        "Uploads are means over the clients that take part in a round."
    )
    if is_comparable(comparison):
        if away := departures(comparison):
            yield f"Not the paper's protocol: {', '.join(away)}. Deviations are printed, they are no verdict."
        yield f"Under each figure: Table {number} of the paper, and ours minus the paper's. FITTED cells have none."
    elif not comparison.is_on_papers_data:
        yield "The paper prints nothing about these data: its values stand under runs on PAMAP2 and MHEALTH alone."
    else:
        yield (
            f"Under each figure: Table {number} of the paper, for orientation only. Data, fleet, learning rate or "
            "batch are not that table's, so there is no deviation."
        )
    if comparison.personalised:
        yield f"{STARRED} The paper does not say which of the two it prints."
    yield from (f"{note}." for note in stand_in_note(comparison.runs))


_DIFFERENCE = Column(
    f"F1 minus {V0}'s, points [95 %]",
    gain=lambda comparison, method: comparison.difference(method.label, V0, "f1_percent"),
)
_OF_VARIANTS = (
    HEADLINE,
    _DIFFERENCE,
    col.RARE_F1,
    col.SPEEDUP,
    *col.SPEED_CONTEXT,
    col.JOULES,
    col.FREE_SLOTS,
    col.CHOSEN_SLOTS,
)


def ablation_table(comparison: Comparison) -> Table | None:
    """Table III, RELIEF and what remains of it without one part; None where no variant was planned or run."""
    variants = [v for v in ablations(comparison) if v in DESCRIBED]
    if not variants:
        return None
    ours = [v for v in variants if v not in VARIANT_ROWS]
    papers = [v for v in VARIANT_ROWS if comparison.is_on_papers_data or comparison.has(v)]
    comparison = comparison.shown
    columns = recorded(comparison, _OF_VARIANTS)
    slots = "Slots per client and round that the ranking could fill, and in how many of them it had a choice."
    prefix = f"{PREFIX.get(comparison.backbone, 'B1')} "

    def theirs(label: str, column: Column) -> PaperCell | None:
        score = HEADLINE if column is _DIFFERENCE else column
        return printed(comparison, "III", VARIANT_ROWS.get(label, label), score, prefix)

    return replace(
        table_of(
            comparison,
            (*papers, *ours),
            columns,
            first="variant",
            beside=theirs,
            names={label: _title(label) for label in (*papers, *ours)},
            rules=ours[:1],
        ),
        caption=f"RELIEF without one of its parts{' (the paper, Table III)' if comparison.is_on_papers_data else ''}: "
        f"{comparison.title}.",
        notes=(
            *premises(comparison),
            "Differences are of paired runs (fold and replicate); in brackets the 95 % interval of their mean. "
            "V2 and V3 drop two parts at once; the variants with V0's mandatory blocks drop one.",
            *([slots] if col.FREE_SLOTS in columns else []),
        ),
        second=second_line(comparison),
    )


def _title(label: str) -> str:
    """Name of a variant, its title, and its number in the paper."""
    title, number = DESCRIBED[label].title, VARIANT_ROWS.get(label, "")
    return f"{label}: {title}" if number in title else f"{label}: {title} ({number})"


_VARIED = {"pamap2": "IV", "mhealth": "V"}
_GAPS = {10.0: "Hetero. Mild (10x)", 55.0: "Hetero. Moderate (55x)", 100.0: "Hetero. Extreme (100x)"}
_USUAL_GAP = 55.0


def sensitivity_tables(comparisons: Sequence[Comparison]) -> Iterator[Table]:
    """Tables IV and V, F1 as devices differ more and as there are more clients, by data set and split.

    Settings of one table differ in backbone, gap and number of clients alone.
    """
    groups = grouped((repr((c.dataset, c.text("data.split"), c.differs, c.fleet_config.types)), c) for c in comparisons)
    for i, group in enumerate(groups.values(), 1):
        if len({(e.gap, e.num_clients) for e in group}) > 1:
            yield _sensitivity(group, f"sensitivity-{i}")


def _sensitivity(group: Sequence[Comparison], slug: str) -> Table:
    first = group[0]
    number = _VARIED.get(first.dataset, "")
    known = {(e.backbone, e.gap, e.num_clients): e for e in group}
    backbones = [b for b in BACKBONES if any(e.backbone == b for e in group)]
    columns = [(b, m) for b in backbones for m in _of_every_fleet(group)]
    rows = [
        Row(name, tuple(_varied(known.get((b, wide, n)), m, name) for b, m in columns), rule=opens)
        for name, wide, n, opens in _fleets(group)
    ]
    note = "F1 in %, mean ± sample standard deviation over runs. B1, B2: the two backbones."
    note += " Under it the paper's." if number else ""
    note += " *: of the clients' own models." if any(e.personalised for e in group) else ""
    theirs = f"Table {number}" if number else "In the form of Tables IV and V"
    return Table(
        slug=slug,
        caption=f"{theirs}: {first.data_title}, {split_name(first.text('data.split'))}.",
        head=("setting", *(f"{PREFIX[b]} {m}" for b, m in columns)),
        rows=tuple(rows),
        notes=(*dict.fromkeys(map(protocol, group)), note),
        second=_SECOND if number else "",
    )


def _of_every_fleet(group: Sequence[Comparison]) -> list[str]:
    """The paper's five methods, then what else was run or planned everywhere, bounds last."""
    first = group[0]
    common = [v for v in dict.fromkeys(s.label for s in first.items) if all(e.has(v) for e in group)]
    five = [v for v in REPRESENTATIVE if first.dataset in _VARIED or any(e.has(v) for e in group)]
    bounds = by_registry(v for v in common if v in first.bounds)
    return list(dict.fromkeys([*five, *(v for v in common if v not in bounds), *bounds]))


def _fleets(group: Sequence[Comparison]) -> Iterator[tuple[str, float, int, bool]]:
    """Row name, gap, clients, and whether a rule stands above: gaps at the own fleet, then fleets at the usual gap."""
    own = min((e.num_clients for e in group if not e.text("data.num_clients")), default=group[0].num_clients)
    wide, many = {e.gap for e in group if e.num_clients == own}, {e.num_clients for e in group if e.gap == _USUAL_GAP}
    if group[0].dataset in _VARIED:
        wide, many = wide | set(_GAPS), many | {own, 20, 50, 100}
    yield from ((_GAPS.get(g, f"gap {g:g}x"), g, own, False) for g in sorted(wide))
    yield from ((f"Scale N={n}", _USUAL_GAP, n, n == min(many)) for n in sorted(many))


def _varied(comparison: Comparison | None, label: str, row: str) -> Cell:
    if comparison is None:
        return gap(())
    if (method := comparison.row(label)) is None:
        return gap(comparison.open_statuses(label))
    number, column = _VARIED.get(comparison.dataset), f"{PREFIX[comparison.backbone]} {PAPER_ROWS.get(label, label)}"
    theirs = read_paper()[number].get(row, column) if number else None
    cell = method_cell(comparison, method, HEADLINE, theirs, any_fleet=True)
    return replace(cell, text=f"{cell.text}*") if method.personalised else cell


_WEAKEST = "C"
# What the paper measured on two boards, one client each, and what it gives for the fleet over 200 rounds.
_OF_BOARDS = (
    Column("Type C computes", "compute_s", "s", decimals=2, paper="Type-C compute (s)"),
    Column("Type C waits", "wait_s", "s", decimals=2, paper="Type-C idle (s)"),
    col.ROUND_S,
    col.SPEEDUP,
    *col.SPEED_CONTEXT,
    Column("Type C", "device_j", "J", decimals=0, paper="Type-C energy (J)"),
)
_OF_FLEET = (
    Column("fleet", "energy_j", "J/round", decimals=0, paper="fleet energy (J)"),
    replace(HEADLINE, paper="final F1 (%)"),
    Column("kJ until then", "energy_total_j", paper="energy to it (kJ)", scale=1e-3),
)
_PLACES = {("cnn", "pamap2"), ("moment_lora", "mhealth")}


def testbed_table(comparison: Comparison) -> Table | None:
    """Section VII, our figures over what the paper measured and prints in the text; None for another fleet."""
    if not comparison.is_testbed:
        return None
    as_many = comparison.is_two_boards or not (comparison.fleet_config.types or comparison.text("data.num_clients"))
    here = as_many and (comparison.backbone, comparison.dataset) in _PLACES
    prefix = PREFIX.get(comparison.backbone, "B1")

    def theirs(label: str, column: Column) -> PaperCell | None:
        has_run = here and comparison.row(label) is not None
        return read_paper()["testbed"].get(f"{prefix} {paper_row(label)}", column.paper) if has_run else None

    weakest = {row.label: _of_weakest(comparison, row.label) for row in comparison.rows}

    def shown(comparison: Comparison, row: MethodResult, column: Column, paper: PaperCell | None) -> Cell:
        # Measured or simulated: nothing was fitted to the testbed.
        figure = {**row.stats, **weakest[row.label]}.get(column.figure)
        origin = origin_of(comparison, row.label, column.figure)
        origin = "simulated" if origin == "FITTED" else origin
        return figure_cell(figure, column, origin=origin, paper=paper, num_runs=figure.num if figure else 0)

    is_measured = comparison.clock == "measured"
    how = "computed from a measured device profile." if is_measured else "simulated: no deviation is computed."
    return replace(
        table_of(
            comparison,
            [v for v in labels_of(comparison) if v in REPRESENTATIVE or comparison.has(v)],
            _OF_BOARDS if comparison.is_two_boards else _OF_FLEET,
            beside=theirs,
            cell=shown,
            names={m.label: name_of(m) for m in comparison.rows},
        ),
        caption=f"Testbed (the paper's Section VII-D and Fig. 8): {comparison.title}.",
        notes=(
            *premises(comparison),
            f"The paper's figures were measured on two Jetson boards. Ours are {how}{own_models(comparison)}",
        ),
        second=_SECOND,
    )


def _of_weakest(comparison: Comparison, label: str) -> dict[str, Stat]:
    """A Type-C device's mean round under a method: over the rounds of a run, then over runs."""
    runs = comparison.runs_of(label)
    shares = [s for r in runs for s in device_shares([r], comparison.clock) if s.kind == _WEAKEST]
    fields = {"compute_s": "compute_s", "wait_s": "wait_s", "device_j": "energy_j"}
    return {name: stat([getattr(s, of) for s in shares]) for name, of in fields.items() if shares}


def device_table(comparison: Comparison) -> Table | None:
    """Table VI, the testbed's devices, ours below the paper's names; None for another fleet."""
    if not comparison.is_testbed:
        return None
    fleet = comparison.fleet_config
    sensors, types = owned_modalities(fleet, recorded_spec(comparison.dataset).names), device_types(fleet)
    # The name of a row ends with its type.
    devices = {row.name[-1]: row for row in read_paper()["VI"].rows}
    rows = [_device(row, " + ".join(sensors[kind]), types[kind].active_power_w) for kind, row in devices.items()]
    note = "Ours are the power and the sensors that the fleet of these runs was given; one type stands for its devices."
    return Table(
        caption=f"Table VI of the paper (the testbed's devices) with ours: {comparison.title}.",
        head=("device", "power mode", "sensors", "power, W"),
        rows=tuple(rows),
        notes=(note,),
        second=_SECOND,
        is_text=True,
    )


def _device(row: PaperRow, sensors: str, power_w: float) -> Row:
    watts = row.cells["power (W)"].value
    below = "" if watts is None else f"{watts:g}"
    return Row(
        f"Type {row.name[-1]} ({row.name})",
        (
            Cell(NONE, below=row.cells["power mode"].text),
            Cell(sensors, below=row.cells["modality"].text),
            Cell(f"{power_w:g}", below=below, numbers={"mean": power_w, "paper": watts}),
        ),
    )


class _Wanted(NamedTuple):
    """Our figure for one that the paper's text prints."""

    backbone: str
    dataset: str
    figure: str = ""
    """Its key in ``MethodResult.stats``."""
    label: str = V0
    minus: str = ""
    """Another method whose figure is subtracted."""
    kinds: tuple[str, str] | None = None
    """Two device types; then the figure is the mean cosine of their updates."""
    decimals: int = 1


# Same order as the rows of ``paper["text"]``.
_WANTED = (
    _Wanted("cnn", "pamap2", "energy_j", V1, decimals=0),
    *(_Wanted("cnn", "pamap2", f"f1_{m}_percent", minus=REFERENCE) for m in ("mag", "hr", "acc")),
    *(_Wanted("moment_lora", "mhealth", f"f1_{m}_percent", v) for m in ("mag", "ecg") for v in (REFERENCE, V0)),
    *(_Wanted("moment_lora", "pamap2", kinds=k, decimals=2) for k in (("A", "A"), ("A", "C"))),
)
_ACC = "fusion.A.acc"


def text_table(comparisons: Sequence[Comparison]) -> Table | None:
    """One row per figure of the paper's running text; None where no run is of the kind that any of them speaks of."""
    rows = []
    for theirs, wanted in zip(read_paper()["text"].rows, _WANTED, strict=True):
        for comparison in (c.shown for c in comparisons if c.runs):
            if (comparison.backbone, comparison.dataset) == (wanted.backbone, wanted.dataset):
                ours = figure_cell(
                    _stat(comparison, wanted),
                    Column("", wanted.figure, decimals=wanted.decimals),
                    origin=origin_of(comparison, wanted.label, wanted.figure),
                    paper=theirs.cells["value"],
                    comparable=is_comparable(comparison),
                )
                cells = (Cell(theirs.cells["section"].text), ours, Cell(comparison.title))
                rows.append(Row(theirs.name, cells))
                break
    if not rows:
        return None
    return Table(
        slug="text",
        caption="Figures of the paper's running text.",
        head=("figure", "section", "ours", "setting"),
        rows=tuple(rows),
        second=_SECOND,
    )


def _stat(comparison: Comparison, wanted: _Wanted) -> Stat | None:
    if wanted.kinds is not None:
        value = mean_cosine(comparison.runs_of(REFERENCE), _ACC, wanted.kinds)
        return None if value is None else Stat(value, None, 1)
    first, second = (comparison.stat(label, wanted.figure) for label in (wanted.label, wanted.minus))
    if not wanted.minus or first is None:
        return first
    return None if second is None else Stat(first.mean - second.mean, None, min(first.num, second.num))
