"""Tables I to VI of the paper, its testbed and its running text: our figures in their form, theirs below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from relief_ray.data.registry import get_spec
from relief_ray.devices.fleet import FleetConfig, device_types, owned_modalities
from relief_ray.report.comparison import BACKBONES, Comparison, Experiment, MethodResult, Stat, stat
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
    clock_note,
    device_shares,
    mean_cosine,
    own_models,
    protocol,
    stand_in_note,
)
from relief_ray.report.runs import config_value, is_pooled, split_name
from relief_ray.report.runs import device_types as types_of
from relief_ray.report.tables import columns as col
from relief_ray.report.tables.columns import HEADLINE, OWN_F1, Column
from relief_ray.report.tables.methods import STARRED, ablations, bounds_of, labels_of, personalised
from relief_ray.report.tables.rows import (
    TableSpec,
    departures,
    figure_cell,
    gap,
    headings,
    is_comparable,
    marked_names,
    name_of,
    origin_of,
    printed,
    recorded,
    second_line,
    stat_of,
)
from relief_ray.strategies import DESCRIBED, REFERENCE, by_registry
from relief_ray.support.table import NONE, Cell, Number, Row, Table

_SECOND = "second line: paper"
_SPEED = (col.RARE_F1, col.SPEEDUP, *col.SPEED_CONTEXT)
_COLUMNS = {
    "I": (*_SPEED, col.ROUNDS_TO_85, col.UP["cnn"], col.JOULES),
    "II": (*_SPEED, col.UP["moment_lora"], col.TRAINED, col.UP_SAVED, col.JOULES),
}


def paper_table(experiment: Experiment, slug: str) -> Table | None:
    """Table I or II: ours by the paper's clock, on its data over its own, where methods that were not run are gaps.

    None for a user's data set, and where no method of the paper was run or planned.
    """
    number, comparison, labels = TABLES.get(experiment.backbone, "I"), experiment.shown, labels_of(experiment)
    if not experiment.is_on_papers_data:
        labels = [v for v in labels if paper_row(v) in PAPER_ROWS.values() and experiment.has(v)]
    if experiment.is_own_data or not labels:
        return None
    starred = personalised(experiment.main)
    columns = recorded(comparison, (col.F1, *([OWN_F1] if starred else []), *_COLUMNS[number]))
    bounds = bounds_of(experiment, labels)
    others = [v for v in labels if v not in PAPER_ROWS and v not in bounds]

    def theirs(label: str, column: Column) -> PaperCell | None:
        is_canonical_alone = column is OWN_F1 and label not in starred
        return None if is_canonical_alone else printed(experiment, number, paper_row(label), column)

    place = f"Our figures in the columns of the paper's Table {number}"
    if experiment.is_on_papers_data:
        place = f"Our figures beside the paper's (its Table {number})"
    return TableSpec(
        experiment=experiment,
        where=comparison,
        rows=labels,
        columns=columns,
        heads=headings(experiment, columns, comparison.clock if comparison else None),
        caption=f"{place}: {experiment.title}.",
        notes=_notes(experiment, number),
        beside=theirs,
        names={} if comparison is None else marked_names(comparison),
        # Above the first method that is not the paper's, and the first bound.
        rules=(*others[:1], *bounds[:1]),
        faint=bounds,
        second=second_line(experiment),
    ).table(slug)


def _notes(experiment: Experiment, number: str) -> Iterator[str]:
    """Notes that a reader needs before comparing rows."""
    yield protocol(experiment)
    yield from clock_note(experiment.shown)
    yield (
        "Mean ± sample standard deviation over runs (folds x seeds); last evaluated round. `-`: undefined or never "
        "reached. A speedup is FedAvg's mean round over the method's, same fleet, same clock. "
        "Uploads are means over the clients that take part in a round."
    )
    if is_comparable(experiment):
        if away := departures(experiment):
            yield f"Not the paper's protocol: {', '.join(away)}. Deviations are printed, they are no verdict."
        yield f"Under each figure: Table {number} of the paper, and ours minus the paper's. FITTED cells have none."
    elif not experiment.is_on_papers_data:
        yield "The paper prints nothing about these data: its values stand under runs on PAMAP2 and MHEALTH alone."
    else:
        yield (
            f"Under each figure: Table {number} of the paper, for orientation only. Data, fleet, learning rate or "
            "batch are not that table's, so there is no deviation."
        )
    if personalised(experiment.main):
        yield f"{STARRED} The paper does not say which of the two it prints."
    yield from (f"{note}." for note in stand_in_note(experiment.runs))


_DIFFERENCE = Column(
    label=f"F1 minus {V0}'s, points [95 %]",
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


def ablation_table(experiment: Experiment, slug: str) -> Table | None:
    """Table III, RELIEF and what remains of it without one part; None where no variant was planned or run."""
    variants = [v for v in ablations(experiment) if v in DESCRIBED]
    if not variants:
        return None
    ours = [v for v in variants if v not in VARIANT_ROWS]
    papers = [v for v in VARIANT_ROWS if experiment.is_on_papers_data or experiment.has(v)]
    columns = recorded(experiment.shown, _OF_VARIANTS)
    slots = "Slots per client and round that the ranking could fill, and in how many of them it had a choice."
    prefix = f"{PREFIX.get(experiment.backbone, 'B1')} "

    def theirs(label: str, column: Column) -> PaperCell | None:
        score = HEADLINE if column is _DIFFERENCE else column
        return printed(experiment, "III", VARIANT_ROWS.get(label, label), score, prefix)

    return TableSpec(
        experiment=experiment,
        where=experiment.shown,
        rows=(*papers, *ours),
        columns=columns,
        first="variant",
        caption=f"RELIEF without one of its parts{' (the paper, Table III)' if experiment.is_on_papers_data else ''}: "
        f"{experiment.title}.",
        notes=(
            protocol(experiment),
            *clock_note(experiment.shown),
            "Differences are of paired runs (fold and replicate); in brackets the 95 % interval of their mean. "
            "V2 and V3 drop two parts at once; the variants with V0's mandatory blocks drop one.",
            *([slots] if col.FREE_SLOTS in columns else []),
        ),
        beside=theirs,
        names={label: _title(label) for label in (*papers, *ours)},
        rules=ours[:1],
        second=second_line(experiment),
    ).table(slug)


def _title(label: str) -> str:
    """Name of a variant, its title, and its number in the paper."""
    title, number = DESCRIBED[label].title, VARIANT_ROWS.get(label, "")
    return f"{label}: {title}" if number in title else f"{label}: {title} ({number})"


_VARIED = {"pamap2": "IV", "mhealth": "V"}
_GAPS = {10.0: "Hetero. Mild (10x)", 55.0: "Hetero. Moderate (55x)", 100.0: "Hetero. Extreme (100x)"}
_USUAL_GAP = 55.0


def sensitivity_tables(experiments: Sequence[Experiment]) -> Iterator[Table]:
    """Tables IV and V, F1 as devices differ more and as there are more clients, by data set and split.

    Settings of one table differ in backbone, gap and number of clients alone.
    """
    groups: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        key = repr((experiment.dataset, experiment.text("data.split"), experiment.differs))
        groups.setdefault(key, []).append(experiment)
    for i, group in enumerate(groups.values(), 1):
        if len({(e.gap, e.num_clients) for e in group}) > 1:
            yield _sensitivity(group, f"sensitivity-{i}")


def _sensitivity(group: Sequence[Experiment], slug: str) -> Table:
    first = group[0]
    number = _VARIED.get(first.dataset, "")
    known = {(e.backbone, e.gap, e.num_clients): e for e in group}
    backbones = [b for b in BACKBONES if any(e.backbone == b for e in group)]
    columns = [(b, m) for b in backbones for m in _of_every_fleet(group)]
    rows = [
        Row(name=name, cells=tuple(_varied(known.get((b, wide, n)), m, name) for b, m in columns), rule=opens)
        for name, wide, n, opens in _fleets(group)
    ]
    note = "F1 in %, mean ± sample standard deviation over runs. B1, B2: the two backbones."
    note += " Under it the paper's." if number else ""
    note += " *: of the clients' own models." if any(personalised(e.main) for e in group) else ""
    theirs = f"Table {number}" if number else "In the form of Tables IV and V"
    return Table(
        slug=slug,
        caption=f"{theirs}: {first.data_title}, {split_name(first.text('data.split'))}.",
        head=("setting", *(f"{PREFIX[b]} {m}" for b, m in columns)),
        rows=tuple(rows),
        notes=(*dict.fromkeys(map(protocol, group)), note),
        second=_SECOND if number else "",
    )


def _of_every_fleet(group: Sequence[Experiment]) -> list[str]:
    """The paper's five methods, then what else was run or planned everywhere, bounds last."""
    first = group[0]
    common = [v for v in dict.fromkeys(s.label for s in first.items) if all(e.has(v) for e in group)]
    five = [v for v in REPRESENTATIVE if first.dataset in _VARIED or any(e.has(v) for e in group)]
    bounds = by_registry(bounds_of(first, common))
    return list(dict.fromkeys([*five, *(v for v in common if v not in bounds), *bounds]))


def _fleets(group: Sequence[Experiment]) -> Iterator[tuple[str, float, int, bool]]:
    """Row name, gap, clients, and whether a rule stands above: gaps at the own fleet, then fleets at the usual gap."""
    own = min((e.num_clients for e in group if not e.text("data.num_clients")), default=group[0].num_clients)
    wide, many = {e.gap for e in group if e.num_clients == own}, {e.num_clients for e in group if e.gap == _USUAL_GAP}
    if group[0].dataset in _VARIED:
        wide, many = wide | set(_GAPS), many | {own, 20, 50, 100}
    yield from ((_GAPS.get(g, f"gap {g:g}x"), g, own, False) for g in sorted(wide))
    yield from ((f"Scale N={n}", _USUAL_GAP, n, n == min(many)) for n in sorted(many))


def _varied(experiment: Experiment | None, label: str, row: str) -> Cell:
    if experiment is None:
        return gap(())
    comparison = experiment.main
    if comparison is None or (method := comparison.row(label)) is None:
        return gap(experiment.open_statuses(label))
    number, column = _VARIED.get(experiment.dataset), f"{PREFIX[experiment.backbone]} {PAPER_ROWS.get(label, label)}"
    cell = figure_cell(
        method.stats.get(HEADLINE.figure),
        HEADLINE,
        origin=origin_of(comparison, label, HEADLINE.figure),
        paper=read_paper()[number].get(row, column) if number else None,
        comparable=is_comparable(experiment, any_fleet=True),
        num_runs=method.num_runs,
    )
    return replace(cell, text=f"{cell.text}*") if method.personalised else cell


_WEAKEST = "C"
# What the paper measured on two boards, one client each, and what it gives for the fleet over 200 rounds.
_OF_BOARDS = (
    Column(label="Type C computes", unit="s", figure="compute_s", decimals=2, paper="Type-C compute (s)"),
    Column(label="Type C waits", unit="s", figure="wait_s", decimals=2, paper="Type-C idle (s)"),
    col.ROUND_S,
    col.SPEEDUP,
    *col.SPEED_CONTEXT,
    Column(label="Type C", unit="J", figure="device_j", decimals=0, paper="Type-C energy (J)"),
)
_OF_FLEET = (
    Column(label="fleet", unit="J/round", figure="energy_j", decimals=0, paper="fleet energy (J)"),
    replace(HEADLINE, paper="final F1 (%)"),
    Column(label="kJ until then", figure="energy_total_j", paper="energy to it (kJ)", scale=1e-3),
)
_PLACES = {("cnn", "pamap2"), ("moment_lora", "mhealth")}


def testbed_table(experiment: Experiment, slug: str) -> Table | None:
    """Section VII, our figures over what the paper measured and prints in the text; None for another fleet."""
    if experiment.text("fleet.preset") != "testbed":
        return None
    comparison = None if experiment.main is None else _with_weakest(experiment.main)
    as_many = experiment.is_two_boards or not (experiment.text("fleet.counts") or experiment.text("data.num_clients"))
    here = as_many and (experiment.backbone, experiment.dataset) in _PLACES
    prefix = PREFIX.get(experiment.backbone, "B1")

    def theirs(label: str, column: Column) -> PaperCell | None:
        has_run = comparison is not None and comparison.row(label) is not None
        return read_paper()["testbed"].get(f"{prefix} {paper_row(label)}", column.paper) if here and has_run else None

    note = "The paper's figures were measured on two Jetson boards. Ours are "
    is_measured = comparison is not None and comparison.clock == "measured"
    note += "computed from a measured device profile." if is_measured else "simulated: no deviation is computed."
    return TableSpec(
        experiment=experiment,
        where=comparison,
        rows=[v for v in labels_of(experiment) if v in REPRESENTATIVE or experiment.has(v)],
        columns=_OF_BOARDS if experiment.is_two_boards else _OF_FLEET,
        caption=f"Testbed (the paper's Section VII-D and Fig. 8): {experiment.title}.",
        notes=(
            protocol(experiment),
            *clock_note(comparison),
            note + ("" if comparison is None else own_models(comparison)),
        ),
        beside=theirs,
        cell=_on_testbed,
        names={m.label: name_of(m) for m in comparison.rows} if comparison else {},
        second=_SECOND,
    ).table(slug)


def _on_testbed(
    experiment: Experiment, comparison: Comparison, method: MethodResult, column: Column, paper: PaperCell | None
) -> Cell:
    """A figure that was measured or simulated: nothing was fitted to the testbed."""
    figure, origin = method.stats.get(column.figure), origin_of(comparison, method.label, column.figure)
    origin = "simulated" if origin == "FITTED" else origin
    return figure_cell(figure, column, origin=origin, paper=paper, num_runs=figure.num if figure else 0)


def _with_weakest(comparison: Comparison) -> Comparison:
    """The comparison with a Type-C device's mean round: over the rounds of a run, then over runs."""
    fields, rows = {"compute_s": "compute_s", "wait_s": "wait_s", "device_j": "energy_j"}, []
    for method in comparison.rows:
        label, stats = method.label, dict(method.stats)
        runs = [r for r in comparison.runs_of(label) if not is_pooled(r) and _WEAKEST in types_of(r).values()]
        shares = [s for r in runs for s in device_shares([r], label, comparison.clock) if s.kind == _WEAKEST]
        if shares:
            stats |= {name: stat([getattr(s, of) for s in shares]) for name, of in fields.items()}
        rows.append(replace(method, stats=stats))
    return replace(comparison, rows=tuple(rows))


def device_table(experiment: Experiment, slug: str) -> Table | None:
    """Table VI, the testbed's devices, ours below the paper's names; None for another fleet."""
    if experiment.text("fleet.preset") != "testbed":
        return None
    fleet = FleetConfig.model_validate(config_value(experiment.items[0].config, "fleet"))
    sensors, types = owned_modalities(fleet, get_spec(experiment.dataset).names), device_types(fleet)
    # The name of a row ends with its type.
    devices = {row.name[-1]: row for row in read_paper()["VI"].rows}
    rows = [_device(row, " + ".join(sensors[kind]), types[kind].active_power_w) for kind, row in devices.items()]
    note = "Ours are the power and the sensors that the fleet of these runs was given; one type stands for its devices."
    return Table(
        slug=slug,
        caption=f"Table VI of the paper (the testbed's devices) with ours: {experiment.title}.",
        head=("device", "power mode", "sensors", "power, W"),
        rows=tuple(rows),
        notes=(note,),
        second=_SECOND,
        is_text=True,
    )


def _device(row: PaperRow, sensors: str, power_w: float) -> Row:
    watts = row.cells["power (W)"].value
    numbers: dict[str, Number] = {"mean": power_w, "paper": watts}
    return Row(
        name=f"Type {row.name[-1]} ({row.name})",
        cells=(
            Cell(text=NONE, below=row.cells["power mode"].text),
            Cell(text=sensors, below=row.cells["modality"].text),
            Cell(text=f"{power_w:g}", below="" if watts is None else f"{watts:g}", numbers=numbers),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Wanted:
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


def text_table(experiments: Sequence[Experiment]) -> Table | None:
    """One row per figure of the paper's running text; None where no run is of the kind that any of them speaks of."""
    rows = []
    for theirs, wanted in zip(read_paper()["text"].rows, _WANTED, strict=True):
        for experiment in experiments:
            comparison, place = experiment.shown, (experiment.backbone, experiment.dataset)
            if place == (wanted.backbone, wanted.dataset) and comparison is not None:
                ours = figure_cell(
                    _stat(comparison, wanted),
                    Column(label="", figure=wanted.figure, decimals=wanted.decimals),
                    origin=origin_of(comparison, wanted.label, wanted.figure),
                    paper=theirs.cells["value"],
                    comparable=is_comparable(experiment),
                )
                cells = (Cell(text=theirs.cells["section"].text), ours, Cell(text=experiment.title))
                rows.append(Row(name=theirs.name, cells=cells))
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
        return None if value is None else Stat(mean=value, std=None, num=1)
    first, second = (stat_of(comparison, label, wanted.figure) for label in (wanted.label, wanted.minus))
    if not wanted.minus or first is None:
        return first
    return None if second is None else Stat(mean=first.mean - second.mean, std=None, num=min(first.num, second.num))
