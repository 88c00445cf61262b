"""Formats figures: numbers, Markdown tables, and the targets that they are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Found = Mapping[str, object]
Row = Sequence[str]
ADR = "adr/0020-what-a-round-keeps.md"
# Key, what it is, at least (or at most, with a minus) what.
TARGETS: tuple[tuple[str, str, float], ...] = (
    ("full_n8_vs_torch2", "full training, 8 clients, against PyTorch in two processes", 1.5),
    ("full_n100_vs_torch2", "full training, 100 clients, against PyTorch in two processes", 1.5),
    ("full_dsa_n8_vs_torch2", "full training on dsa's shapes, 8 clients, against PyTorch in two processes", 1.5),
    ("full_dsa_n100_vs_torch2", "full training on dsa's shapes, 100 clients, against PyTorch in two processes", 1.5),
    ("full_n8_vs_flower", "full training, 8 clients, against Flower", 1.8),
    ("full_n100_vs_flower", "full training, 100 clients, against Flower", 3.0),
    ("full_dsa_n8_vs_flower", "full training on dsa's shapes, 8 clients, against Flower", 1.8),
    ("full_dsa_n100_vs_flower", "full training on dsa's shapes, 100 clients, against Flower", 3.0),
    ("type_c_reuse_vs_eager_full", "type C with reuse, against everything in eager PyTorch", 15.0),
    # The paper's client without a sensor computes zeros with it; ours computes one window of them.
    ("type_c_reuse_vs_own_full_all_sensors", "type C with reuse, against a client with all sensors in our engine", 9.4),
    ("type_c_reuse_vs_own_full", "type C with reuse, against its own everything in our engine", 9.4),
    ("noop_n8_vs_plain_ray", "no-op round, 8 clients, over the minimal Ray loop", -1.0),
    ("noop_n100_vs_plain_ray", "no-op round, 100 clients, over the minimal Ray loop", -1.5),
    ("noop_n8_ours_s", "no-op round, 8 clients, s", -0.05),
    ("noop_n100_ours_s", "no-op round, 100 clients, s", -0.1),
    ("noop_n8_vs_exact_ray", "no-op round, 8 clients, over the minimal loop with the same arithmetic", -2.5),
    ("noop_n100_vs_exact_ray", "no-op round, 100 clients, over the minimal loop with the same arithmetic", -2.5),
    ("formats_n8_cost", "int8 up and float16 down, 8 clients: full round over one in float32", -1.03),
    ("formats_n100_cost", "int8 up and float16 down, 100 clients: full round over one in float32", -1.05),
    ("recording_n8_recorded_vs_bare", "hash, record and checkpoint off the way: no-op round over one without", -1.05),
    ("recording_n8_run_mlflow_vs_run", "MLflow off the way: no-op round over one without", -1.05),
    ("pss_n100_gib", "memory of all processes, 100 clients, GiB", -2.0),
    ("pss_n100_held_gib", "memory of all processes, 100 clients, caches of prepared windows full, GiB", -2.0),
    ("start_n100_s", "seconds until round 1, 100 clients", -8.0),
    ("start_command_s", "seconds until round 1, `relief-ray run`, 100 clients", -8.0),
    ("gpu_table_1_h", "Table I whole on one GPU, hours (at least; computed)", -1.0),
)
# What the project holds itself to beside the aims that were set for it.
OWN = frozenset(
    {
        "type_c_reuse_vs_own_full_all_sensors",
        "noop_n8_vs_exact_ray",
        "noop_n100_vs_exact_ray",
        "recording_n8_recorded_vs_bare",
        "recording_n8_run_mlflow_vs_run",
        "pss_n100_held_gib",
        "start_command_s",
    }
)


def number(value: object, unit: str = "") -> str:
    """Three significant digits, or a dash where nothing was measured."""
    if value is None or isinstance(value, str):
        return str(value) if value else "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    assert isinstance(value, (int, float))
    size = abs(float(value))
    shown = f"{value:,.0f}" if size >= 100 else f"{value:.3g}" if size >= 1e-3 or not size else f"{value:.1e}"
    return shown + unit


def percent(share: object) -> str:
    """A share in whole per cent, or a dash where it was not measured."""
    return f"{100 * share:.0f} %" if isinstance(share, (int, float)) else "–"


def table(header: Row, rows: Iterable[Row]) -> str:
    """A Markdown table, numbers to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def targets(figures: Found) -> str:
    """Each aim with what was reached."""
    rows = [_target(figures, *target) for target in TARGETS if target[0] in figures]
    note = (
        "\\*: what the project holds itself to beside the aims that were set for it. Those for rounds without training "
        f"are given up in their letter; what is held instead, and why, is in [ADR 20]({ADR})."
    )
    return f"## Aims\n\n{table(('what', 'aim', 'measured', 'met'), rows)}\n\n{note}" if rows else ""


def _target(figures: Found, key: str, text: str, bound: float) -> Row:
    value = figures[key]
    text += r" \*" if key in OWN else ""
    aim = f"≥ {bound:g}" if bound > 0 else f"≤ {-bound:g}"
    if not isinstance(value, (int, float)):
        return (text, aim, "–", "not measured")
    if is_met(value, bound):
        return (text, aim, number(value), "yes")
    return (text, aim, beside(value, bound), "**no**")


def beside(value: float, bound: float) -> str:
    """A figure that misses its aim, with digits enough to tell it from the aim."""
    shown = number(value)
    return f"{value:.5g}" if shown == number(abs(bound)) else shown


def is_met(value: float, bound: float) -> bool:
    """Whether a figure reaches its aim: at least ``bound``, or at most ``-bound`` where that is negative."""
    return value >= bound if bound > 0 else value <= -bound


def value_of(figures: Found, key: str) -> float:
    """The figure of that name."""
    value = figures[key]
    assert isinstance(value, (int, float)), key
    return float(value)
