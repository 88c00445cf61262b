"""Generates docs/performance.md from the figures alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.engine.machine import QUIET_LOAD
from benchmarks.engine.missed import missed, time_goes
from benchmarks.engine.page_rounds import gpu, limits, noop, predictions, recording
from benchmarks.engine.recording import NUM_CLIENTS
from benchmarks.engine.tables import Found, Row, number, table, targets, value_of

FLOWER_GUIDE = "https://flower.ai/docs/framework/how-to-run-simulations.html"
PFL_SITE = "https://github.com/apple/pfl-research"
SCRIPTS = "../benchmarks/engine"
# Why a peer, or a case, has no figures.
NOTE = re.compile(r"(full_.*|flower|pfl)_note")
VARIANTS = (
    ("eager_full", "everything, eager PyTorch"),
    ("gemm_full_all_sensors", "everything, the engine `gemm`, all sensors present"),
    ("own_full_all_sensors", "everything, our engine, all sensors present"),
    ("own_full", "everything, our engine"),
    ("blocks_naive", "own column blocks, naive freezing"),
    ("blocks_reuse", "own column blocks, reuse"),
    ("shared_naive", "blocks, bias and head, naive freezing"),
    ("reuse", "blocks, bias and head, reuse"),
)


def render(figures: Found) -> str:
    """Render the page from the figures."""
    first = [head(figures), waits(figures), targets(figures), missed(figures)]
    first += [full(figures), local(figures), fleet(figures)]
    last = [
        noop(figures),
        recording(figures),
        time_goes(figures),
        limits(figures),
        gpu(figures),
        predictions(figures),
        environment(figures),
    ]
    return "\n\n".join(part for part in [*first, *last] if part) + "\n"


# What is waited for, key of the figure.
WAITS = (
    ("`relief-ray --help`", "waits_help"),
    ("`relief-ray run quick --strategies fedavg`: two rounds", "waits_quick"),
    ("`relief-ray run demo --folds 0`: a fold of the demo", "waits_demo"),
    ("round 1 of 100 clients begins, `relief-ray run`", "start_command"),
)


def waits(figures: Found) -> str:
    """Section on whole commands, from their start to their end."""
    rows = [
        (text, *(number(figures.get(f"{key}{name}")) for name in ("_s", "_gemm_s", "_gemm_ratio")))
        for text, key in WAITS
        if f"{key}_s" in figures
    ]
    if not rows:
        return ""
    note = (
        "From Enter to the prompt, or to what is named, once kernels are built and data are in the cache. Medians of "
        "the turns; each command is a process of its own."
    )
    return f"## What you wait for\n\n{note}\n\n{table(('what', 's', 'with engine `gemm`, s', 'times as long'), rows)}"


def full(figures: Found) -> str:
    """Section on full training (part 1)."""
    cases = [(p, n) for p in ("full_n", "full_dsa_n") for n in (8, 100) if f"{p}{n}_ours_samples_per_s" in figures]
    rows = [_full_row(figures, prefix, n) for prefix, n in cases]
    header = ("data, clients x windows", "ours, samples/s", "PyTorch x 2", "Flower", "pfl", "equal again")
    note = (
        "One epoch a round, batch 32, fresh Adam; the same windows in the same batches: clients of 32 windows take one "
        "step, and ours keeps no moments of large tensors then ([ADR 17](adr/0017-avoid-materialising-updates.md)). ±: "
        "half the range of the turns over their median. PyTorch x 2: bare eager PyTorch in two processes. All keep "
        "freed memory as ours do: by glibc's defaults their time is a matter of chance, and mostly longer. "
        "In brackets: how many times faster ours is. Equal again: a second run of ours "
        f"gave the same bits. [Flower's settings]({FLOWER_GUIDE}): one core per client app; [pfl]({PFL_SITE}): two "
        f"processes. Scripts: [Flower]({SCRIPTS}/flower_peer.py) with its [app]({SCRIPTS}/flower_app.py), "
        f"[pfl]({SCRIPTS}/pfl_peer.py)."
    )
    said = {k: " ".join(str(v).split()) for k, v in figures.items() if NOTE.fullmatch(k)}
    notes = "".join(f"\n\n{k}: {text}" for k, text in said.items())
    parts = [note, table(header, rows), *_deviations(figures, cases)]
    if not rows:
        return f"## Full training through Ray{notes}" if notes else ""
    return "## Full training through Ray\n\n" + "\n\n".join(parts) + notes


def _deviations(figures: Found, cases: Sequence[tuple[str, int]]) -> list[str]:
    """Distances of all harnesses' weights from the sequential reference's, beside the effect of rounding alone."""
    rounds = {value for key, value in figures.items() if key.endswith("deviation_rounds")}
    note = (
        "Deviation: relative L2 distance of an update from that of the sequential eager reference, after "
        f"{', '.join(str(r) for r in sorted(rounds, key=str))} rounds. Last column: of that same reference, begun from "
        "a model whose every weight is one rounding away. Random windows and labels amplify rounding as far as this; "
        "PyTorch x 2, Flower and pfl train by the reference's own operations and add up otherwise at most."
    )
    names = ("", "torch2_", "flower_", "pfl_", "nudged_")
    rows = [
        (_case(figures, prefix, n), *(number(figures.get(f"{prefix}{n}_{name}deviation")) for name in names))
        for prefix, n in cases
    ]
    header = ("deviation", "ours", "PyTorch x 2", "Flower", "pfl", "the reference, nudged")
    return [note, table(header, rows)]


def _case(figures: Found, prefix: str, clients: int) -> str:
    data = "dsa" if "dsa" in prefix else "PAMAP2"
    return f"{data}, {clients} x {figures[f'{prefix}{clients}_windows']}"


def _full_row(figures: Found, prefix: str, clients: int) -> Row:
    key = f"{prefix}{clients}"

    def rate(name: str) -> str:
        value = figures.get(f"{key}_{name}_samples_per_s")
        if value is None:
            return "–"
        ratio = "" if name == "ours" else f" ({number(figures[f'{key}_vs_{name}'])})"
        return f"{number(value)} ± {number(100 * value_of(figures, f'{key}_{name}_spread'), ' %')}{ratio}"

    return (
        _case(figures, prefix, clients),
        rate("ours"),
        rate("torch2"),
        rate("flower"),
        rate("pfl"),
        number(figures[f"{key}_run_to_run_equal"]),
    )


def local(figures: Found) -> str:
    """Section on single clients' local rounds (part 2)."""
    parts = []
    for prefix, data in (("", "PAMAP2"), ("dsa_", "dsa")):
        if f"{prefix}local_windows" not in figures:
            continue
        rows = [
            _local_row(figures, prefix, name, text) for name, text in VARIANTS if f"{prefix}type_c_{name}_s" in figures
        ]
        header = ("trained, and by what", "type C, s", "times faster", "type B, s", "times faster")
        parts.append(f"{_local_note(figures, prefix, data)}\n\n{table(header, rows)}")
    note = (
        "Type C trains with one of the data set's sensors, type B with two. Own column blocks: the fusion blocks of "
        "its "
        "sensors; bias and head: what all clients share. Naive freezing runs the whole forward pass in every step; "
        "reuse computes once a round what no trained group can change. Times faster: than the first row, the median "
        "of the turns' ratios."
    )
    return f"## One client's local round\n\n{note}\n\n" + "\n\n".join(parts) if parts else ""


def _local_note(figures: Found, prefix: str, data: str) -> str:
    prepare = " and ".join(
        f"{number(figures[f'{prefix}type_{kind}_prepare_s'], ' s')} (type {kind.upper()})" for kind in ("c", "b")
    )

    def both(what: str) -> str:
        values = (number(figures[f"{prefix}type_{kind}_{what}_deviation"]) for kind in ("c", "b"))
        return "{} (type C) and {} (type B)".format(*values)

    return (
        f"{data}, {figures[f'{prefix}local_windows']} windows, {figures[f'{prefix}local_epochs']} epochs, "
        f"{figures[f'{prefix}local_turns']} turns. Relative L2 distance of two updates: blocks, bias and head by the "
        f"naive engine and with reuse {both('reuse')}; everything by eager PyTorch and by our engine {both('full')}, "
        "where rounding is amplified (see the section before). Not in the rounds: what our engine prepares once for a "
        f"client and a whole run, {prepare}."
    )


def _local_row(figures: Found, prefix: str, name: str, text: str) -> Row:
    cells = [text]
    for kind in ("c", "b"):
        key = f"{prefix}type_{kind}_{name}"
        cells += [number(figures[f"{key}_s"]), number(figures.get(f"{key}_vs_eager_full", 1.0))]
    return cells


def fleet(figures: Found) -> str:
    """Section on a mixed fleet's rounds (part 2)."""
    if "fleet_relief_vs_fedavg" not in figures:
        return ""
    rows = [
        (f"{text}", number(figures[f"fleet_{name}_round_s"]))
        for name, text in (
            ("fedavg_naive", "FedAvg, naive engine"),
            ("fedavg", "FedAvg, our engine"),
            ("relief", "RELIEF, our engine"),
        )
    ]
    ratios = [
        number(figures[f"fleet_{scope}relief_vs_{other}"])
        for scope in ("", "straggler_")
        for other in ("fedavg", "fedavg_naive")
    ]
    text = (
        f"{figures['fleet_clients']} clients, three of type A, three of B, two of C; "
        f"{figures['fleet_windows']} windows "
        f"each, 5 epochs, {figures['fleet_turns']} turns, packed on two hosts: FedAvg's rounds take {ratios[0]} times "
        f"as long as RELIEF's with the same engine, {ratios[1]} times with the naive one. The slowest client alone: "
        f"{ratios[2]} and {ratios[3]} times. Here every client computes at this machine's speed, so the slowest is one "
        "of type A; what it trains, T* decides, which is the simulated type C's: with many windows a type A trains "
        "everything within it, and its round is as long as FedAvg's. A real fleet's slowest device is the type C above."
    )
    return f"## A mixed fleet's round, measured\n\n{text}\n\n{table(('method and engine', 'wall, s'), rows)}"


# Where turns are counted: (key, what takes turns, key of the rounds in a turn).
TURNS = (
    ("full_n8_turns", "full training against PyTorch in two processes", "full_n8_rounds"),
    ("full_n8_peer_turns", "full training against Flower and pfl", "full_n8_rounds"),
    ("local_turns", "one client's local round", None),
    ("fleet_turns", "a mixed fleet's round", None),
    ("noop_turns", "rounds in which nothing is trained", "noop_rounds"),
    ("start_turns", "start-up", None),
    ("waits_turns", "whole commands", None),
    (f"recording_n{NUM_CLIENTS}_turns", "records and MLflow", f"recording_n{NUM_CLIENTS}_rounds"),
    ("predict_turns", "predictions", None),
    ("gpu_turns", "a fleet's round on a GPU", None),
)


def head(figures: Found) -> str:
    """The page's head: how to read it, with a warning if the machine was not quiet."""
    mode = figures.get("mode")
    less = "" if mode in (None, "whole") else f" Mode `{mode}`: less work, fewer turns, wider spread."
    text = (
        "# Performance\n\nGenerated by `python -m benchmarks.engine --json FILE --markdown docs/performance.md`; only "
        "ratios carry over to other machines. What is compared takes turns in one process tree; a ratio is taken "
        "inside each turn, and the median of these ratios is shown: not the ratio of the two medians beside it. Every "
        "figure is in the JSON file. The model is Backbone 1, a small CNN of 1.26 M parameters (PAMAP2's shapes: "
        "four sensors; "
        "`dsa`'s: three), on random windows, since speed does not depend on what was recorded. Clients are of type "
        "A (all "
        "sensors), B (two) or C (one)." + less
    )
    before = figures.get("load_before")
    if isinstance(before, (int, float)) and before > QUIET_LOAD:
        text += (
            f"\n\n**Warning: the machine was not quiet.** The load average was {number(before)} before anything was "
            f"measured (quiet: at most {QUIET_LOAD:g}); do not rely on the figures of this page."
        )
    return text


def environment(figures: Found) -> str:
    """Machine, versions, rules and turns; it names no host."""
    if "machine_cpu" not in figures:
        return ""
    versions = [f"{text} {figures[k]}" for k, text in (("python", "Python"), ("ray", "Ray")) if figures.get(k)]
    peers = [
        f"{text} {figures[k]}" for k, text in (("flower_version", "Flower"), ("pfl_version", "pfl")) if figures.get(k)
    ]
    rows = [
        ("commit, date", f"{figures['commit']}, {figures['date']}"),
        ("machine", f"{number(figures['machine_cores'])} cores, {figures['machine_cpu']}, {figures['machine_system']}"),
        ("PyTorch", f"{figures['torch']} ({figures['torch_build']})"),
        ("other versions", ", ".join([*versions, *peers])),
        ("threads", f"{number(figures['threads'])} per process, peers too (`OMP_NUM_THREADS`)"),
        (
            "niceness",
            f"{number(figures['niceness'])} for all: Ray's workers too (`RAY_worker_niceness=0`, by default 15), since "
            "on a machine that is not quite quiet bare processes would always come first",
        ),
        (
            "load average",
            f"{number(figures['load_before'])} at the beginning, {number(figures.get('load_after'))} at the end "
            "(of the last minute, our own work included)",
        ),
        ("turns (pairs)", "; ".join(_turns(figures))),
        ("took", f"{number(figures.get('seconds'), ' s')}, parts {figures.get('parts', 'unknown')}"),
    ]
    return f"## Where and how it was measured\n\n{table(('', ''), rows).replace('---:', '---')}"


def _turns(figures: Found) -> list[str]:
    return [
        f"{text} {figures[key]}" + (f" of {figures[rounds]} rounds each" if rounds and figures.get(rounds) else "")
        for key, text, rounds in TURNS
        if figures.get(key)
    ]
