"""Section VII: the testbed's devices. The paper prints its measurements there in the text, not in a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from relief_ray.data.registry import get_spec
from relief_ray.devices.fleet import DeviceType, FleetConfig, device_types, owned_modalities
from relief_ray.report.comparison import Comparison, Experiment, Stat, stat
from relief_ray.report.paper import PREFIX, REPRESENTATIVE, Paper, PaperRow, paper_row
from relief_ray.report.remarks import clock_note, device_shares, own_models, protocol
from relief_ray.report.runs import config_value, is_pooled
from relief_ray.report.runs import device_types as types_of
from relief_ray.report.tables import columns as col
from relief_ray.report.tables.columns import Column
from relief_ray.report.tables.methods import labels_of
from relief_ray.report.tables.rows import figure_cell, gaps, name_of, runs_cell
from relief_ray.support.table import NONE, Cell, Number, Origin, Row, Table

_WEAKEST = "C"
# What the paper measured on two boards, one client each, and what it gives for the fleet over 200 rounds.
_DEVICE_COLUMNS = (
    Column(label="Type C computes", unit="s", figure="compute_s", decimals=2, paper="Type-C compute (s)"),
    Column(label="Type C waits", unit="s", figure="wait_s", decimals=2, paper="Type-C idle (s)"),
    col.ROUND_S,
    col.SPEEDUP,
    *col.SPEED_CONTEXT,
    Column(label="Type C", unit="J", figure="device_j", decimals=0, paper="Type-C energy (J)"),
)
_FLEET_COLUMNS = (
    Column(label="fleet", unit="J/round", figure="energy_j", decimals=0, paper="fleet energy (J)"),
    replace(col.HEADLINE, paper="final F1 (%)"),
    Column(label="kJ until then", figure="energy_total_j", decimals=1, paper="energy to it (kJ)", scale=1e-3),
)
_PLACES = {("cnn", "pamap2"), ("moment_lora", "mhealth")}


def testbed_table(experiment: Experiment, paper: Paper, slug: str) -> Table | None:
    """Our clock's figures over the paper's measurements; None for a fleet that is not the testbed's."""
    if experiment.text("fleet.preset") != "testbed":
        return None
    wanted = [v for v in labels_of(experiment) if v in REPRESENTATIVE or any(s.label == v for s in experiment.items)]
    columns = _DEVICE_COLUMNS if experiment.is_two_boards else _FLEET_COLUMNS
    rows = tuple(_row(experiment, paper, label, columns) for label in wanted)
    measured = experiment.main is not None and experiment.main.clock == "measured"
    note = "The paper's figures were measured on two Jetson boards. Ours are " + (
        "computed from a measured device profile." if measured else "simulated: no deviation is computed."
    )
    note += "" if experiment.main is None else own_models(experiment.main)
    title = f"Testbed (the paper's Section VII-D and Fig. 8): {experiment.title}."
    head = ("method", "runs", *(c.head for c in columns))
    notes = (protocol(experiment), *clock_note(experiment.main), note)
    return Table(slug=slug, caption=title, head=head, rows=rows, notes=notes, second="second line: paper")


def device_table(experiment: Experiment, paper: Paper, slug: str) -> Table | None:
    """Table VI: the testbed's devices, ours below the paper's names; None for another fleet."""
    if experiment.text("fleet.preset") != "testbed":
        return None
    fleet = FleetConfig.model_validate(config_value(experiment.items[0].config, "fleet"))
    sensors = owned_modalities(fleet, get_spec(experiment.dataset).names)
    rows = [_device(row, kind, device_types(fleet)[kind], sensors[kind]) for row, kind in _kinds(paper)]
    head = ("device", "power mode", "sensors", "power, W")
    note = "Ours are the power and the sensors that the fleet of these runs was given; one type stands for its devices."
    title = f"Table VI of the paper (the testbed's devices) with ours: {experiment.title}."
    return Table(
        slug=slug,
        caption=title,
        head=head,
        rows=tuple(rows),
        notes=(note,),
        second="second line: paper",
        is_text=True,
    )


def _kinds(paper: Paper) -> Iterator[tuple[PaperRow, str]]:
    """Each row with the device type that its name ends with."""
    yield from ((row, row.name[-1]) for row in paper["VI"].rows)


def _device(row: PaperRow, kind: str, ours: DeviceType, sensors: Sequence[str]) -> Row:
    watts = row.cells["power (W)"].value
    numbers: dict[str, Number] = {"mean": ours.active_power_w, "paper": watts}
    return Row(
        name=f"Type {kind} ({row.name})",
        cells=(
            Cell(text=NONE, below=row.cells["power mode"].text),
            Cell(text=" + ".join(sensors), below=row.cells["modality"].text),
            Cell(text=f"{ours.active_power_w:g}", below="" if watts is None else f"{watts:g}", numbers=numbers),
        ),
    )


def _row(experiment: Experiment, paper: Paper, label: str, columns: Sequence[Column]) -> Row:
    comparison = experiment.main
    method = None if comparison is None else comparison.row(label)
    if comparison is None or method is None:
        return Row(name=label, cells=tuple(gaps(experiment, label, [(c, None) for c in columns])))
    stats = {**method.stats, **_weakest(comparison, label)}
    cells = _cells(experiment, paper, label, columns, stats)
    return Row(name=name_of(method), cells=(runs_cell(method, experiment), *cells))


def _cells(
    experiment: Experiment, paper: Paper, label: str, columns: Sequence[Column], stats: Mapping[str, Stat]
) -> Iterator[Cell]:
    as_many = experiment.is_two_boards or not (experiment.text("fleet.counts") or experiment.text("data.num_clients"))
    here = as_many and (experiment.backbone, experiment.dataset) in _PLACES
    row = f"{PREFIX.get(experiment.backbone, 'B1')} {paper_row(label)}"
    clock = "" if experiment.main is None else experiment.main.clock
    for column in columns:
        cell = paper["testbed"].get(row, column.paper)
        origin: Origin = "simulated" if column.figure != "f1_percent" and clock != "measured" else "measured"
        if column.figure == "f1_percent" and not experiment.is_real:
            origin = "SYNTHETIC"
        figure = stats.get(column.figure)
        num = 0 if figure is None else figure.num
        yield figure_cell(figure, column, origin=origin, paper=cell if here else None, num_runs=num)


def _weakest(comparison: Comparison, label: str) -> dict[str, Stat]:
    """A Type-C device's mean round under a method: over the rounds of a run, then over runs."""
    runs = [r for r in comparison.runs_of(label) if not is_pooled(r) and _WEAKEST in types_of(r).values()]
    shares = [s for r in runs for s in device_shares([r], label, comparison.clock) if s.kind == _WEAKEST]
    if not shares:
        return {}
    fields = {"compute_s": "compute_s", "wait_s": "wait_s", "device_j": "energy_j"}
    return {name: stat([getattr(s, field) for s in shares]) for name, field in fields.items()}
