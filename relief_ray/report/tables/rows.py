"""Tables with a row per method: our mean and spread, the paper's value below, the deviation where it has a meaning."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isclose
from types import MappingProxyType

from relief_ray.config.experiment import all_keys
from relief_ray.devices.time import CLOCKS
from relief_ray.plugins.load import is_path
from relief_ray.report.comparison import Comparison, MethodResult, Stat
from relief_ray.report.paper import PAPER_DATA, PaperCell, read_paper
from relief_ray.report.remarks import STAND_IN, stand_ins
from relief_ray.report.results import COSTS, KEY
from relief_ray.report.runs import level_values
from relief_ray.report.statistics import Paired
from relief_ray.report.tables.columns import AT_PAPER, F1, OWN_F1, ROUNDS_TO_85, Column
from relief_ray.strategies import PRESETS, REFERENCE, built_in_name
from relief_ray.support.table import NONE, Cell, Number, Origin, Row, Table
from relief_ray.support.text import with_title

# The paper's protocol, Section VI-A and Eq. (2); it does not say how subjects are split.
_PROTOCOL = {
    "rounds": "200",
    "training.epochs": "5",
    "training.lr": "0.001",
    "training.batch_size": "32",
    "data.stride_s": "1",
    "training.missing": "zero_input",
    "participation": "1",
    "data.split": "not said",
}
# Values under which a deviation from the paper is computed, where the configuration has the key.
SAME = {
    "fleet.preset": "paper",
    "fleet.coupling": "coupled",
    "fleet.types": "{}",
    "training.lr": "0.001",
    "training.batch_size": "32",
    "data.window_s": "",
    "data.partition": "subject",
}
_USUAL_FLEET = {"fleet.gap": "", "data.num_clients": "", "fleet.num_clients": ""}
_SIMULATED = (
    "round_s",
    "speedup",
    "speedup_round",
    "speedup_compute",
    "speedup_paper",
    "link_percent",
    "energy_j",
    "energy_total_j",
    "energy_saved_percent",
    "tta95_s",
    "tta95_j",
    *(f"{name}_percent" for name in COSTS),
    "compute_s",
    "wait_s",
    "device_j",
)
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


def headings(comparison: Comparison, columns: Sequence[Column]) -> list[str]:
    """Headings of the columns: simulated ones name their clock, numbers of rounds how often F1 was tested."""
    heads, every, clock = [], comparison.text("evaluation.every"), comparison.clock
    for column in columns:
        by = f", `{clock}`" if clock and column.figure in _SIMULATED and column is not AT_PAPER else ""
        if column is ROUNDS_TO_85 and every not in ("", "1"):
            by = f", tested every {every}{'th' if every[-2:-1] == '1' else _ENDINGS.get(int(every) % 10, 'th')}"
        heads.append(column.head + by)
    return heads


def is_comparable(comparison: Comparison, *, any_fleet: bool = False) -> bool:
    """True where a deviation from the paper has a meaning: its data, devices, learning rate and batch, real windows.

    Tables I to III are of one fleet (gap 55, a client per subject); ``any_fleet``: the row says which (Tables IV, V).
    """
    same = SAME if any_fleet else SAME | _USUAL_FLEET
    return (
        comparison.is_on_papers_data
        and comparison.is_real
        and not comparison.choice
        and all(comparison.text(key) in (value, "") for key, value in same.items())
    )


def departures(comparison: Comparison) -> list[str]:
    """Settings that leave the paper's protocol: ``rounds 20 (paper: 200)``."""
    return [
        f"{key} {ours} (paper: {theirs})"
        for key, theirs in _PROTOCOL.items()
        if key not in comparison.searched and (ours := comparison.text(key)) not in ("", theirs)
    ]


def origin_of(comparison: Comparison, label: str, figure: str) -> Origin:
    """Origin of a method's figure."""
    method = comparison.row(label)
    # Settings were chosen to agree with the paper's tables.
    is_fitted = method is not None and method.method.is_fitted
    if figure in _SIMULATED:
        if comparison.clock == "measured":
            return "measured"
        return "FITTED" if is_fitted or _is_target(comparison, label, figure) else "simulated"
    if comparison.runs[0].run.data_origin != "real":
        return "SYNTHETIC"
    if figure.startswith("up_") and (is_fitted or _has_fitted_width(comparison, label)):
        return "FITTED"
    return "measured"


def _is_target(comparison: Comparison, label: str, figure: str) -> bool:
    """True for FedAvg's joules on PAMAP2, to which the clocks were fitted, and for methods that do the same work."""
    clock = CLOCKS.get(comparison.clock)
    return (
        figure.startswith("energy")
        and comparison.dataset == "pamap2"
        and comparison.runs[0].is_fitted
        and clock is not None
        and clock.is_fitted
        and _has_fedavgs_joules(comparison, label)
    )


def _has_fedavgs_joules(comparison: Comparison, label: str) -> bool:
    """True where a round costs what FedAvg's does, to the last digits, wherever both ran."""
    mine, whole = (
        comparison.table[comparison.table["method"] == name].set_index(KEY)["energy_j"].to_dict()
        for name in (label, REFERENCE)
    )
    shared = mine.keys() & whole.keys()
    return label == REFERENCE or (bool(shared) and all(isclose(mine[k], whole[k]) for k in shared))


def _has_fitted_width(comparison: Comparison, label: str) -> bool:
    """True where the whole model is sent on PAMAP2: Backbone 1's width was chosen to give FedAvg's 4.81 MiB there."""
    mine, whole = (comparison.stat(name, "up_mib") for name in (label, REFERENCE))
    is_whole = mine is not None and whole is not None and mine.mean == whole.mean
    return comparison.backbone == "cnn" and comparison.dataset == "pamap2" and (label == REFERENCE or is_whole)


def printed(comparison: Comparison, table: str, row: str, column: Column, prefix: str = "") -> PaperCell | None:
    """The paper's cell; None for a figure that it does not print of these data. ``prefix``: a backbone's, ``B1 ``.

    All but F1 are of PAMAP2, F1 of MHEALTH too.
    """
    known = PAPER_DATA if "{data}" in column.paper else ("pamap2",)
    if comparison.dataset not in known:
        return None
    return read_paper()[table].get(row, prefix + column.paper.format(data=comparison.paper_data))


def second_line(comparison: Comparison) -> str:
    """Explanation of the cells' second line, for the heading; empty where there is none: not the paper's data."""
    if not comparison.is_on_papers_data:
        return ""
    change = ", ours minus it" if is_comparable(comparison) else ""
    return f"second line: paper, {comparison.paper_data}{change}"


def name_of(method: MethodResult) -> str:
    """The method, starred where clients are tested on models of their own."""
    return f"{method.label}{'*' if method.personalised else ''}"


def _marked_names(comparison: Comparison) -> dict[str, str]:
    """``name_of`` each method, stand-ins for LoRA marked."""
    replaced = stand_ins(comparison.runs)
    return {m.label: name_of(m) + STAND_IN * (m.label in replaced) for m in comparison.rows}


def names_line(comparison: Comparison) -> str:
    """Sentence with what stands behind the names: a preset's title, a user's method's import path, a level's values.

    A variant has the title of its preset, which says nothing new where it is the preset's name.
    """
    known = {run.label: run.run for run in comparison.runs}
    texts = {label: run.strategy if is_path(run.strategy) else run.method.title for label, run in known.items()}
    texts = {k: text if with_title(k.partition(" (")[0], text) != text else "" for k, text in texts.items()}
    texts = {k: ", ".join(filter(None, [text, level_values(known[k].config)])) for k, text in texts.items()}
    parts = [f"`{k}`: {text}" for k, text in {**texts, **_settings_of(texts)}.items() if text]
    return f"Names: {'; '.join(parts)}" if parts else ""


def _settings_of(labels: Iterable[str]) -> dict[str, str]:
    """What the settings in the names of presets' variants are, by key: ``fill`` of ``relief (fill=time)``."""
    meanings = {(key.of, key.key): key.meaning.removesuffix(".") for key in all_keys()}
    found = {}
    for base, _, values in (label.partition(" (") for label in labels):
        method = built_in_name(PRESETS[base]) if base in PRESETS else ""
        for name in (value.partition("=")[0].strip() for value in values.rstrip(")").split(",")):
            if text := meanings.get((method, f"strategy.{name}")):
                found[name] = text
    return found


def number_text(stat: Stat | None, column: Column, num_runs: int, *, tight: bool = False) -> str:
    """``73.6 ± 8.1``; ``12 (3/4)`` where only 3 of 4 runs have the figure; ``-`` where none has.

    A spread whose digits are all 0 is left out. ``tight``, for `compare`: ``73.6±8.1``, where the column asks for it.
    """
    if stat is None:
        return NONE
    std = None if stat.std is None else round(stat.std * column.scale, column.decimals)
    has_spread = std is not None and (column.spread if tight else std != 0)
    spread = f"{'±' if tight else ' ± '}{std:.{column.decimals}f}" if has_spread else ""
    part = "" if stat.num == num_runs else f" ({stat.num}/{num_runs})"
    return f"{column.rounded(stat.mean)}{spread}{part}"


def figure_cell(
    stat: Stat | None,
    column: Column,
    *,
    origin: Origin,
    paper: PaperCell | None = None,
    comparable: bool = False,
    num_runs: int = 1,
    tight: bool = False,
) -> Cell:
    """Our figure with the paper's below; ``-`` where it is undefined or was never reached."""
    numbers: dict[str, Number] = {"n": 0, "origin": origin}
    below, change = _paper_line(paper, column), None
    if stat is not None:
        std = None if stat.std is None else stat.std * column.scale
        numbers |= {"mean": stat.mean * column.scale, "std": std, "n": stat.num}
    if paper is not None:
        numbers |= {"paper": paper.value, "paper_std": paper.std}
        if comparable and stat is not None and paper.value is not None and origin != "FITTED":
            change = stat.mean * column.scale - paper.value
            below += f", {change:+.{column.decimals}f}"
    text = number_text(stat, column, num_runs, tight=tight)
    return Cell(text, below=below, origin=origin, numbers=numbers | {"deviation": change})


def method_cell(
    comparison: Comparison,
    method: MethodResult,
    column: Column,
    paper: PaperCell | None = None,
    *,
    tight: bool = False,
    any_fleet: bool = False,
) -> Cell:
    """A method's figure, the headline of own models starred, or its difference; ``any_fleet``: as ``is_comparable``.

    The deviation from the paper is of headlines: a personalised method's canonical model has none.
    """
    if column.gain:
        origin = origin_of(comparison, method.label, "f1_percent")
        return _difference_cell(column.gain(comparison, method), origin, None if paper is None else paper.delta)
    cell = figure_cell(
        method.stats.get(column.figure),
        column,
        origin=origin_of(comparison, method.label, column.figure),
        paper=paper,
        comparable=is_comparable(comparison, any_fleet=any_fleet) and not (column is F1 and method.personalised),
        num_runs=method.num_runs,
        tight=tight,
    )
    return replace(cell, text=f"{cell.text}*") if column is OWN_F1 and method.personalised else cell


def _paper_line(cell: PaperCell | None, column: Column) -> str:
    """``92.0 ± 0.38``: the paper's value; its spreads have two decimals."""
    if cell is None or cell.value is None:
        return NONE if cell else ""
    return f"{cell.value:.{column.decimals}f}" + ("" if cell.std is None else f" ± {cell.std:.2f}")


def _difference_cell(ours: Paired | None, origin: Origin, theirs: float | None) -> Cell:
    """A paired difference in points with its interval, the paper's printed one below."""
    mean, low, high, n = (None, None, None, 0) if ours is None else (ours.mean, ours.low, ours.high, ours.num_pairs)
    return Cell(
        str(ours or NONE),
        below="" if theirs is None else f"{theirs:+.1f}",
        origin=origin,
        numbers={"mean": mean, "low": low, "high": high, "n": n, "paper": theirs, "origin": origin},
    )


def recorded(comparison: Comparison, columns: Sequence[Column], always: Collection[Column] = ()) -> tuple[Column, ...]:
    """The columns without those that no run has a figure for, but ``always``, and a target that none reached."""
    known = {figure for row in comparison.rows for figure in row.stats}
    return tuple(c for c in columns if not known or c is ROUNDS_TO_85 or c in always or c.gain or c.figure in known)


def gap(statuses: Sequence[str]) -> Cell:
    """Empty place with its reason: the statuses of the runs that should have filled it."""
    text = ", ".join(dict.fromkeys(statuses)) or "not run"
    return Cell(text, tone="gap", numbers={"n": 0, "status": text})


def runs_cell(comparison: Comparison, label: str) -> Cell:
    """Number of runs behind a row, of how many that were planned; runs of other code are marked."""
    lacking = comparison.open_statuses(label)
    if (method := comparison.row(label)) is None:
        return gap(lacking)
    other, planned = comparison.of_other_code(label), method.num_runs + len(lacking)
    text = f"{method.num_runs} of {planned}" if lacking else str(method.num_runs)
    return Cell(
        text,
        below=f"{other} by other code" if other else "",
        tone="warn" if lacking or other else "",
        numbers={"n": method.num_runs, "planned": planned, "other_code": other},
    )


def table_of(
    comparison: Comparison,
    labels: Sequence[str],
    columns: Sequence[Column],
    *,
    first: str = "method",
    heads: Sequence[str] = (),
    beside: Callable[[str, Column], PaperCell | None] = lambda label, column: None,
    cell: Callable[[Comparison, MethodResult, Column, PaperCell | None], Cell] = method_cell,
    more: Mapping[str, Callable[[str], Cell]] = MappingProxyType({}),
    names: Mapping[str, str] | None = None,
    rules: Collection[str] = (),
    has_number: bool = True,
) -> Table:
    """Table of a setting: a row per method, a column per figure; a method without finished runs is a row of gaps.

    Bounds are printed pale, below a line.

    Args:
        comparison: where the figures are from.
        labels: the methods.
        columns: the figures.
        first: heading of the rows.
        heads: headings of the columns; empty: their own.
        beside: the paper's cell of a method's figure.
        cell: how a figure is shown.
        more: columns of other runs behind these, by their headings: the cell of a method.
        names: names of methods that do not stand under their own; None: ``_marked_names``.
        rules: further methods above which a line stands.
        has_number: the first column is the number of runs.
    """
    names = _marked_names(comparison) if names is None else names
    bounds = [label for label in labels if label in comparison.bounds]
    lines = {*rules, *(bounds[:1] if len(bounds) < len(labels) else ())}

    def shown(column: Column, label: str) -> Cell:
        theirs = beside(label, column)
        if method := comparison.row(label):
            return cell(comparison, method, column, theirs)
        known = None if column.gain else theirs
        paper = None if known is None else known.value
        return Cell("", below=_paper_line(known, column), tone="gap", numbers={"n": 0, "paper": paper})

    makers: list[tuple[str, Callable[[str], Cell]]] = [("runs", partial(runs_cell, comparison))] if has_number else []
    names_of = heads or [column.head for column in columns]
    makers += [(head, partial(shown, column)) for head, column in zip(names_of, columns, strict=True)]
    makers += more.items()
    rows = (
        Row(
            names.get(label, label),
            tuple(make(label) for _, make in makers),
            rule=label in lines,
            faint=label in bounds,
        )
        for label in labels
    )
    return Table(head=(first, *(name for name, _ in makers)), rows=tuple(rows))
