"""Section VII: the testbed's devices; what the paper measured there stands in its text, not in a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

from relief_ray.data.registry import get_spec
from relief_ray.devices.fleet import FleetConfig, device_types, owned_modalities
from relief_ray.devices.types import DeviceType
from relief_ray.report.captions import own_models
from relief_ray.report.comparison import Comparison, Stat, stat
from relief_ray.report.document import Entry, Line, Number, Origin, Sheet
from relief_ray.report.experiments import Experiment
from relief_ray.report.figures.devices import shares
from relief_ray.report.findings import runs_of
from relief_ray.report.paper import Paper, PaperRow, paper_row
from relief_ray.report.runs import Loaded, at, is_pooled
from relief_ray.report.runs import device_types as types_of
from relief_ray.report.tables.ablation import PREFIX
from relief_ray.report.tables.cells import Column, entry, gap, open_states, runs_entry
from relief_ray.report.tables.comparison import NONE, name_of
from relief_ray.report.tables.main import labels_of
from relief_ray.report.tables.notes import clock_note, protocol
from relief_ray.report.tables.sensitivity import FIVE

WEAKEST = "C"
# What the paper measured on two boards, one client each, and what it gives for the fleet over 200 rounds.
DEVICE_COLUMNS = (
    Column(head="Type C computes, s", figure="compute_s", decimals=2, paper="Type-C compute (s)"),
    Column(head="Type C waits, s", figure="wait_s", decimals=2, paper="Type-C idle (s)"),
    Column(head="round, s", figure="round_s", decimals=2, paper="round (s)"),
    Column(head="speedup", figure="speedup", decimals=2, paper="speedup"),
    Column(head="Type C, J", figure="device_j", decimals=0, paper="Type-C energy (J)"),
)
FLEET_COLUMNS = (
    Column(head="fleet, J per round", figure="energy_j", decimals=0, paper="fleet energy (J)"),
    Column(head="F1 %", figure="f1_percent", decimals=1, paper="final F1 (%)"),
    Column(head="kJ until then", figure="energy_total_j", decimals=1, paper="energy to it (kJ)", scale=1e-3),
)
PLACES = {("cnn", "pamap2"), ("moment_lora", "mhealth")}


def testbed_table(experiment: Experiment, paper: Paper, slug: str) -> Sheet | None:
    """Our clock's figures over the paper's measurements; none for a fleet that is not the testbed's."""
    if experiment.text("fleet.preset") != "testbed":
        return None
    wanted = [v for v in labels_of(experiment) if v in FIVE or any(s.label == v for s in experiment.slots)]
    columns = DEVICE_COLUMNS if experiment.is_two_boards else FLEET_COLUMNS
    lines = tuple(_line(experiment, paper, label, columns) for label in wanted)
    measured = experiment.main is not None and experiment.main.clock == "measured"
    note = "The paper's figures were measured on two Jetson boards. Ours are " + (
        "computed from a measured device profile." if measured else "simulated: no deviation is computed."
    )
    note += "" if experiment.main is None else own_models(experiment.main)
    title = f"Testbed (the paper's Section VII-D and Fig. 8): {experiment.title}."
    head = ("method", "runs", *(c.head for c in columns))
    notes = (protocol(experiment), *clock_note(experiment.main), note)
    return Sheet(slug=slug, caption=title, head=head, lines=lines, notes=notes, second="second line: paper")


def device_table(experiment: Experiment, paper: Paper, slug: str) -> Sheet | None:
    """Table VI: the testbed's devices, ours below the paper's names; none for another fleet."""
    if experiment.text("fleet.preset") != "testbed":
        return None
    fleet = FleetConfig.model_validate(at(experiment.slots[0].config, "fleet"))
    owned = owned_modalities(fleet, get_spec(experiment.dataset).names)
    lines = [_device(row, kind, device_types(fleet)[kind], owned[kind]) for row, kind in _kinds(paper)]
    head = ("device", "power mode", "sensors", "power, W")
    note = "Ours are the power and the sensors that the fleet of these runs was given; one type stands for its devices."
    title = f"Table VI of the paper (the testbed's devices) with ours: {experiment.title}."
    return Sheet(
        slug=slug,
        caption=title,
        head=head,
        lines=tuple(lines),
        notes=(note,),
        second="second line: paper",
        is_text=True,
    )


def _kinds(paper: Paper) -> Iterator[tuple[PaperRow, str]]:
    """Each row with the device type that its name ends with."""
    yield from ((row, row.name[-1]) for row in paper["VI"].rows)


def _device(row: PaperRow, kind: str, ours: DeviceType, owned: Sequence[str]) -> Line:
    watts = row.cells["power (W)"].value
    numbers: dict[str, Number] = {"mean": ours.active_power_w, "paper": watts}
    return Line(
        name=f"Type {kind} ({row.name})",
        entries=(
            Entry(text=NONE, below=row.cells["power mode"].text),
            Entry(text=" + ".join(owned), below=row.cells["modality"].text),
            Entry(text=f"{ours.active_power_w:g}", below="" if watts is None else f"{watts:g}", numbers=numbers),
        ),
    )


def _line(experiment: Experiment, paper: Paper, label: str, columns: Sequence[Column]) -> Line:
    row = None if experiment.main is None else experiment.main.row(label)
    if experiment.main is None or row is None:
        holes = (gap(open_states(experiment, label)), *(Entry(text="", tone="gap") for _ in columns))
        return Line(name=label, entries=holes)
    found = {**row.stats, **weakest(experiment.main, label)}
    cells = _cells(experiment, paper, label, columns, found)
    return Line(name=name_of(row), entries=(runs_entry(row, experiment), *cells))


def _cells(
    experiment: Experiment, paper: Paper, label: str, columns: Sequence[Column], found: Mapping[str, Stat]
) -> Iterator[Entry]:
    as_many = experiment.is_two_boards or not (experiment.text("fleet.counts") or experiment.text("data.num_clients"))
    here = as_many and (experiment.backbone, experiment.dataset) in PLACES
    row = f"{PREFIX.get(experiment.backbone, 'B1')} {paper_row(label)}"
    clock = "" if experiment.main is None else experiment.main.clock
    for column in columns:
        cell = paper["testbed"].get(row, column.paper)
        origin: Origin = "simulated" if column.figure != "f1_percent" and clock != "measured" else "measured"
        if column.figure == "f1_percent" and not experiment.is_real:
            origin = "SYNTHETIC"
        num = 0 if column.figure not in found else found[column.figure].num
        yield entry(found.get(column.figure), column, origin=origin, paper=cell if here else None, num_runs=num)


def weakest(comparison: Comparison, label: str) -> dict[str, Stat]:
    """A Type-C device's mean round under a method: over the rounds of a run, then over runs."""
    runs = [r for r in runs_of(comparison, label) if not is_pooled(r) and WEAKEST in types_of(r).values()]
    found = [s for r in runs for s in shares([r], label, comparison.clock) if s.kind == WEAKEST]
    if not found:
        return {}
    fields = {"compute_s": "compute_s", "wait_s": "wait_s", "device_j": "energy_j"}
    return {name: stat([getattr(s, field) for s in found]) for name, field in fields.items()}


def mean_cosine(runs: Sequence[Loaded], block: str, kinds: tuple[str, str]) -> float | None:
    """Mean cosine of the block's updates between two clients of these device types."""
    values = [
        value
        for loaded in runs
        for types in (types_of(loaded),)
        for record in loaded.trained
        for a, b, value in record.pairwise.get(block, ())
        if tuple(sorted((types.get(a, "?"), types.get(b, "?")))) == kinds
    ]
    return mean(values) if values else None
