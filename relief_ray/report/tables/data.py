"""Data that a setting's F1 rests on: windows of each part and fold, people held out, and what each client has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from relief_ray.data.registry import get_spec
from relief_ray.records.facts import ClientData, DataFacts, data_facts
from relief_ray.report.comparison import Experiment
from relief_ray.report.runs import Loaded, fleet_of, has_folds, is_pooled, run_value, split_name
from relief_ray.support.errors import UserError, listed
from relief_ray.support.table import NONE, Table, word_table

# Clients up to which their table stands open on the page.
MOST_OPEN = 12
# Share of a window that two neighbours may have in common without a word.
_FEW_SHARED = 0.05


def data_tables(experiment: Experiment, slug: str) -> tuple[Table, ...]:
    """Windows by fold and part, and a row per client; empty where no run is done."""
    runs = _one_of_each(experiment.runs)
    if not runs:
        return ()
    facts = [_facts(loaded) for loaded in runs]
    lacking = dict(pair for f in facts for pair in f.lacking)
    clients = _clients_table(experiment, f"{slug}-clients", [row for f in facts for row in f.clients], lacking)
    return (_windows_table(experiment, f"{slug}-windows", runs, facts), *([] if clients is None else [clients]))


def _one_of_each(runs: Sequence[Loaded]) -> list[Loaded]:
    """A run of every fold and rotation, which decide windows and devices; pooled ones only in want of others."""
    kinds: dict[tuple[int, int], Loaded] = {}
    for loaded in sorted(runs, key=is_pooled):
        kinds.setdefault(loaded.replicate[:2], loaded)
    return [kinds[kind] for kind in sorted(kinds)]


def _facts(loaded: Loaded) -> DataFacts:
    """The run's facts; of cells that an earlier version committed, what configuration and metrics still tell."""
    kept = loaded.committed.data if loaded.committed is not None else data_facts(loaded.run)
    if kept is None:
        test = next((r.metrics.num_windows for r in reversed(loaded.trained) if r.metrics is not None), 0)
        kept = DataFacts(window_s=None, num_classes=0, train=0, validation=0, test=test, clients=())
    fleet = fleet_of(loaded)
    rows = {} if fleet is None else {c.id: c for c in fleet.clients}
    known = kept.clients or tuple(ClientData(number, "", "", (), 0) for number in rows)
    clients = (
        c._replace(device=rows[c.client].device, sensors=rows[c.client].modalities) if c.client in rows else c
        for c in known
    )
    window_s = _window_s(loaded) if kept.window_s is None else kept.window_s
    return kept.model_copy(update={"clients": () if is_pooled(loaded) else tuple(clients), "window_s": window_s})


def _window_s(loaded: Loaded) -> float | None:
    """Seconds of a window: as configured, else the data set's own where its code is here."""
    if isinstance(set_s := run_value(loaded.run, "data.window_s"), int | float):
        return float(set_s)
    try:
        return get_spec(str(run_value(loaded.run, "data.name"))).window_s
    except UserError:
        return None


def _windows_table(experiment: Experiment, slug: str, runs: Sequence[Loaded], facts: Sequence[DataFacts]) -> Table:
    """A row per fold: who is tested on, and how many windows each part has."""
    rows = []
    for loaded, known in zip(runs, facts, strict=True):
        place = str(loaded.replicate[0]) if has_folds(loaded.run.config) else split_name(experiment.text("data.split"))
        numbers = (known.test, known.train, known.validation, len(known.clients))
        row = [place, _sorted(_tested(loaded)), *(f"{n:,}" if n else NONE for n in numbers)]
        rows += [] if row in rows else [row]
    first = "fold" if has_folds(runs[0].run.config) else "split"
    head = [first, "tested on subjects", "test windows", "training windows", "validation windows", "clients"]
    return word_table(head, rows, slug, _caption(experiment, facts[0])).without_blanks()


def _caption(experiment: Experiment, facts: DataFacts) -> str:
    """``Data: DSA; windows of 5.12 s, one every 5 s; 19 classes. F1 is taken over the test windows.``."""
    stride = experiment.text("data.stride_s") or "1"
    parts = [f"windows of {facts.window_s:g} s" if facts.window_s else "windows", f"one every {stride} s"]
    classes = f"; {facts.num_classes} classes" if facts.num_classes else ""
    shared = 0.0 if not facts.window_s else 1 - float(stride) / facts.window_s
    alike = f" Neighbouring windows share {shared:.0%} of their samples." if shared > _FEW_SHARED else ""
    return f"Data: {experiment.title}; {', '.join(parts)}{classes}. F1 is taken over the test windows.{alike}"


def _tested(loaded: Loaded) -> Iterable[str]:
    """The test subjects of the last evaluation."""
    last = next((r.metrics for r in reversed(loaded.trained) if r.metrics is not None), None)
    return () if last is None else last.f1_by_subject or last.f1_fleet_by_subject


def _clients_table(
    experiment: Experiment, slug: str, clients: Sequence[ClientData], lacking: Mapping[str, Sequence[str]]
) -> Table | None:
    """A row per client; where folds or rotations change what a client is, its values stand side by side.

    ``lacking``: sensors that people lack, by subject, those who are only tested too.
    """
    rows = [
        _client_row(number, [c for c in clients if c.client == number])
        for number in sorted({c.client for c in clients})
    ]
    if not rows:
        return None
    head = ["client", "subject", "device type", "sensors", "training windows"]
    is_varied = any(" / " in cell for row in rows for cell in row)
    changes = "; a / stands between values of folds or rotations that differ" if is_varied else ""
    lacks = "".join(f" Subject {s} lacks {listed(names)}." for s, names in lacking.items())
    return word_table(head, rows, slug, f"Clients: {experiment.title}{changes}.{lacks}").without_blanks()


def _client_row(number: int, same: Sequence[ClientData]) -> list[str]:
    windows = sorted({c.windows for c in same if c.windows})
    spread = f"{windows[0]:,}" if len(windows) == 1 else f"{windows[0]:,} to {windows[-1]:,}" if windows else NONE
    return [
        str(number),
        _side_by_side(c.subject for c in same),
        _side_by_side(c.device for c in same),
        _side_by_side(" + ".join(c.sensors) for c in same),
        spread,
    ]


def _side_by_side(texts: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(t for t in texts if t)) or NONE


def _sorted(names: Iterable[str]) -> str:
    return ", ".join(sorted(names, key=lambda name: (len(name), name))) or NONE
