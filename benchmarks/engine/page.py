"""The page about speed, made from the figures alone: nothing in it is written by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.engine.missed import missed, time_goes
from benchmarks.engine.page_about import environment, head
from benchmarks.engine.page_rounds import gpu, limits, noop, predictions, recording
from benchmarks.engine.tables import Found, Row, number, table, targets, value_of

FLOWER_GUIDE = "https://flower.ai/docs/framework/how-to-run-simulations.html"
PFL_SITE = "https://github.com/apple/pfl-research"
SCRIPTS = "../benchmarks/engine"
# Why a peer, or a case, has no figures.
NOTE = re.compile(r"(full_.*|flower|pfl)_note")
VARIANTS = (
    ("eager_full", "everything, eager PyTorch"),
    ("own_full_all_sensors", "everything, our engine, all sensors present"),
    ("own_full", "everything, our engine"),
    ("blocks_naive", "own column blocks, naive freezing"),
    ("blocks_reuse", "own column blocks, reuse"),
    ("shared_naive", "blocks, bias and head, naive freezing"),
    ("reuse", "blocks, bias and head, reuse"),
)


def render(found: Found) -> str:
    """The whole page."""
    first = [head(found), targets(found), missed(found), full(found), local(found), fleet(found)]
    last = [
        noop(found),
        recording(found),
        time_goes(found),
        limits(found),
        gpu(found),
        predictions(found),
        environment(found),
    ]
    return "\n\n".join(part for part in [*first, *last] if part) + "\n"


def full(found: Found) -> str:
    """Part 1."""
    cases = [(p, n) for p in ("full_n", "full_dsa_n") for n in (8, 100) if f"{p}{n}_ours_samples_per_s" in found]
    rows = [_full_row(found, prefix, n) for prefix, n in cases]
    header = ("data, clients x windows", "ours, samples/s", "PyTorch x 2", "Flower", "pfl", "equal again")
    note = (
        "One epoch a round, batch 32, fresh Adam; the same windows in the same batches: clients of 32 windows take one "
        "step, and ours keeps no moments of large tensors then ([ADR 17](adr/0017-avoid-materialising-updates.md)). ±: half "
        "the range of the turns over their median. PyTorch x 2: bare eager PyTorch in two processes. All keep freed "
        "memory as ours do: by glibc's defaults their time is a matter of chance, and mostly longer. In brackets: how "
        "many times faster ours is. Equal again: a second run of ours "
        f"gave the same bits. [Flower's settings]({FLOWER_GUIDE}): one core per client app; [pfl]({PFL_SITE}): two "
        f"processes. Scripts: [Flower]({SCRIPTS}/flower_peer.py) with its [app]({SCRIPTS}/flower_app.py), "
        f"[pfl]({SCRIPTS}/pfl_peer.py)."
    )
    said = {k: " ".join(str(v).split()) for k, v in found.items() if NOTE.fullmatch(k)}
    notes = "".join(f"\n\n{k}: {text}" for k, text in said.items())
    parts = [note, table(header, rows), *_deviations(found, cases)]
    if not rows:
        return f"## Full training through Ray{notes}" if notes else ""
    return "## Full training through Ray\n\n" + "\n\n".join(parts) + notes


def _deviations(found: Found, cases: Sequence[tuple[str, int]]) -> list[str]:
    """How far everybody's weights are from the sequential reference's, beside what rounding alone comes to."""
    rounds = {value for key, value in found.items() if key.endswith("deviation_rounds")}
    note = (
        "Deviation: relative L2 distance of an update from that of the sequential eager reference, after "
        f"{', '.join(str(r) for r in sorted(rounds, key=str))} rounds. Last column: of that same reference, begun from "
        "a model whose every weight is one rounding away. Random windows and labels amplify rounding as far as this; "
        "PyTorch x 2, Flower and pfl train by the reference's own operations and add up otherwise at most."
    )
    names = ("", "torch2_", "flower_", "pfl_", "nudged_")
    rows = [
        (_case(found, prefix, n), *(number(found.get(f"{prefix}{n}_{name}deviation")) for name in names))
        for prefix, n in cases
    ]
    header = ("deviation", "ours", "PyTorch x 2", "Flower", "pfl", "the reference, nudged")
    return [note, table(header, rows)]


def _case(found: Found, prefix: str, clients: int) -> str:
    data = "dsa" if "dsa" in prefix else "PAMAP2"
    return f"{data}, {clients} x {found[f'{prefix}{clients}_windows']}"


def _full_row(found: Found, prefix: str, clients: int) -> Row:
    key = f"{prefix}{clients}"

    def rate(name: str) -> str:
        value = found.get(f"{key}_{name}_samples_per_s")
        if value is None:
            return "–"
        ratio = "" if name == "ours" else f" ({number(found[f'{key}_vs_{name}'])})"
        return f"{number(value)} ± {number(100 * value_of(found, f'{key}_{name}_spread'), ' %')}{ratio}"

    return (
        _case(found, prefix, clients),
        rate("ours"),
        rate("torch2"),
        rate("flower"),
        rate("pfl"),
        number(found[f"{key}_run_to_run_equal"]),
    )


def local(found: Found) -> str:
    """Part 2, single clients."""
    parts = []
    for prefix, data in (("", "PAMAP2"), ("dsa_", "dsa")):
        if f"{prefix}local_windows" not in found:
            continue
        rows = [_local_row(found, prefix, name, text) for name, text in VARIANTS]
        header = ("trained, and by what", "type C, s", "times faster", "type B, s", "times faster")
        parts.append(f"{_local_note(found, prefix, data)}\n\n{table(header, rows)}")
    note = (
        "Type C trains with one of the data set's sensors, type B with two. Own column blocks: the fusion blocks of "
        "its "
        "sensors; bias and head: what all clients share. Naive freezing runs the whole forward pass in every step; "
        "reuse computes once a round what no trained group can change. Times faster: than the first row, the median "
        "of the turns' ratios."
    )
    return f"## One client's local round\n\n{note}\n\n" + "\n\n".join(parts) if parts else ""


def _local_note(found: Found, prefix: str, data: str) -> str:
    prepare = " and ".join(
        f"{number(found[f'{prefix}type_{kind}_prepare_s'], ' s')} (type {kind.upper()})" for kind in ("c", "b")
    )

    def both(what: str) -> str:
        values = (number(found[f"{prefix}type_{kind}_{what}_deviation"]) for kind in ("c", "b"))
        return "{} (type C) and {} (type B)".format(*values)

    return (
        f"{data}, {found[f'{prefix}local_windows']} windows, {found[f'{prefix}local_epochs']} epochs, "
        f"{found[f'{prefix}local_turns']} turns. Relative L2 distance of two updates: blocks, bias and head by the "
        f"naive engine and with reuse {both('reuse')}; everything by eager PyTorch and by our engine {both('full')}, "
        "where rounding is amplified (see the section before). Not in the rounds: what our engine prepares once for a "
        f"client and a whole run, {prepare}."
    )


def _local_row(found: Found, prefix: str, name: str, text: str) -> Row:
    cells = [text]
    for kind in ("c", "b"):
        key = f"{prefix}type_{kind}_{name}"
        cells += [number(found[f"{key}_s"]), number(found.get(f"{key}_vs_eager_full", 1.0))]
    return cells


def fleet(found: Found) -> str:
    """Part 2, a mixed fleet."""
    if "fleet_relief_vs_fedavg" not in found:
        return ""
    rows = [
        (f"{text}", number(found[f"fleet_{name}_round_s"]))
        for name, text in (
            ("fedavg_naive", "FedAvg, naive engine"),
            ("fedavg", "FedAvg, our engine"),
            ("relief", "RELIEF, our engine"),
        )
    ]
    ratios = [
        number(found[f"fleet_{scope}relief_vs_{other}"])
        for scope in ("", "straggler_")
        for other in ("fedavg", "fedavg_naive")
    ]
    text = (
        f"{found['fleet_clients']} clients, three of type A, three of B, two of C; {found['fleet_windows']} windows "
        f"each, 5 epochs, {found['fleet_turns']} turns, packed on two hosts: FedAvg's rounds take {ratios[0]} times "
        f"as long as RELIEF's with the same engine, {ratios[1]} times with the naive one. The slowest client alone: "
        f"{ratios[2]} and {ratios[3]} times. Here every client computes at this machine's speed, so the slowest is one "
        "of type A; what it trains, T* decides, which is the simulated type C's: with many windows a type A trains "
        "everything within it, and its round is as long as FedAvg's. A real fleet's slowest device is the type C above."
    )
    return f"## A mixed fleet's round, measured\n\n{text}\n\n{table(('method and engine', 'wall, s'), rows)}"
