"""Sections of the page: rounds without training, records and MLflow, limits, a GPU, predictions."""

from __future__ import annotations

from typing import get_args

from benchmarks.engine.missed import START
from benchmarks.engine.noop import KINDS
from benchmarks.engine.predict import ASSIGNMENTS, CLOCKS
from benchmarks.engine.recording import NUM_CLIENTS
from benchmarks.engine.start import HELD_WINDOWS, MANY, NUM_WINDOWS
from benchmarks.engine.tables import Found, Row, number, table, value_of
from relief_ray.core.stages import Engine

NAMES = {
    "everything": "everything",
    "own_sensors": "all of its own sensors' groups, bias, head",
    "blocks": "own column blocks",
    "blocks_bias_head": "own column blocks, bias, head",
    "blocks_upper_layer": "own column blocks, one encoder's upper layer",
    "head": "head",
    "absent_encoder": "a sensor that it lacks: block, first encoder layer; head",
}


def noop(figures: Found) -> str:
    """Section on rounds without training (part 3)."""
    sizes = [n for n in (8, 20, 50, 100) if f"noop_n{n}_ours_s" in figures]
    names = (
        *("ours_s", "host_s", "arithmetic_s", "wire_s", "server_s", "plain_ray_s", "vs_plain_ray"),
        *("exact_ray_s", "vs_exact_ray", "moved_bytes", "unsummed_bytes"),
    )
    rows = [[str(n), *(_noop_cell(figures.get(f"noop_n{n}_{name}"), name) for name in names)] for n in sizes]
    header = (
        *("clients", "ours, s", "hosts, s", "of that, at least, s", "wire, s", "server, s"),
        *("minimal Ray loop, s", "ratio", "exact loop, s", "ratio to it", "moved, MB", "unsummed, MB"),
    )
    slope = ""
    if "noop_ours_slope_s_per_client" in figures:
        ours, plain = (1e3 * value_of(figures, f"noop_{k}_slope_s_per_client") for k in ("ours", "plain_ray"))
        slope = f" Each client more costs {number(ours)} ms (ours) and {number(plain)} ms (minimal loop)."
    start = _start(figures)
    note = (
        "Weights out, nothing trained, weights back, summed, recorded and checkpointed, 1.26 M parameters; beside it "
        "`benchmarks/engine/plain_ray.py`, which neither checks nor records; ratio: ours over it, the median of the "
        "turns' ratios. Unsummed: what would move if the model went out once per node and every client's update came "
        "back by itself; ours are summed where they arise, so less moves. Hosts: load, subtract, measure and add in "
        "float64. At least: these four by torch's own operations for half of the clients, piece by piece in the "
        "cache, in one process while the other core is idle; the minimal loop copies and adds in float32 and does no "
        "more. Exact loop: the minimal loop again, with hosts that do these four and return float64 sums; beyond it "
        "ours checks, keeps sums by block, records, hashes and checkpoints. Wire: packing, shared memory, calls and "
        "the driver's own additions. Server: aggregation, divergence, "
        f"the model's hash, record and checkpoint.{slope}"
    )
    body = f"{note}\n\n{table(header, rows)}" if rows else ""
    return f"## Rounds in which nothing is trained\n\n{body}{start}" if body or start else ""


def _spread(figures: Found, key: str) -> str:
    """Seconds, and half the range of the turns over their median."""
    return f"{number(figures[f'{key}_s'])} s ± {number(100 * value_of(figures, f'{key}_spread'), ' %')}"


def _start(figures: Found) -> str:
    if "start_n100_s" not in figures:
        return ""
    spent = ", ".join(f"{text} {number(figures[f'start_n100_{key}'])}" for key, text in START)
    held = ", ".join(f"{kind} {number(figures[f'pss_n100_{kind}_gib'])}" for kind in KINDS)
    least = ""
    if "start_floor_s" in figures:
        least = (
            f" The least, in the same turns: a bare program whose two Ray actors have imported torch is there after "
            f"{_spread(figures, 'start_floor')}. Ray waits for its node in steps of a second, which all of these "
            "contain."
        )
    few = ""
    if "pss_n8_gib" in figures:
        few = f" 8 clients with as many windows in all take {number(figures['pss_n8_gib'])} GiB."
    if "pss_n100_held_gib" in figures:
        few += (
            f" 100 clients of {HELD_WINDOWS} windows, which fill what hosts may keep of them "
            f"({number(figures['pss_n100_held_cache_mib'])} MiB each), take {number(figures['pss_n100_held_gib'])} GiB."
        )
    if None not in (figures.get("pss_n100_gib"), figures.get(f"pss_n{MANY}_gib")):
        keys = "last_round_s", "gib"
        ratios = [value_of(figures, f"pss_n{MANY}_{key}") / value_of(figures, f"pss_n100_{key}") for key in keys]
        few += (
            f" {MANY:,} clients of {NUM_WINDOWS} windows take {number(figures[f'pss_n{MANY}_last_round_s'])} s a round "
            f"and {number(figures[f'pss_n{MANY}_gib'])} GiB, {' and '.join(map(number, ratios))} times what 100 take."
        )
    command = (
        f" `relief-ray run` itself, with its command line, real data from the cache and MLflow: "
        f"{_spread(figures, 'start_command')}."
    )
    return (
        f"\n\nA run of 100 clients of {NUM_WINDOWS} windows, of its own: {_spread(figures, 'start_n100')} "
        f"from the start of the process until round 1 ({spent}; byte code is kept, as of what is installed), at most "
        f"{number(figures['pss_n100_gib'])} GiB (PSS in one run, all processes and shared memory: {held})."
        f"{few}{least}{command}"
    )


def _noop_cell(value: object, name: str) -> str:
    return number(value / 1e6 if isinstance(value, (int, float)) and name.endswith("bytes") else value)


def limits(figures: Found) -> str:
    """Section on the machine's limits (part 4)."""
    if "gemm_peak_fraction" not in figures:
        return ""
    text = (
        f"One thread multiplies matrices at {number(figures['gemm_peak_gflops_per_s'])} GFLOP/s and copies at "
        f"{number(figures['memory_gb_per_s'])} GB/s ({number(figures['near_memory_gb_per_s'])} GB/s within fusion's "
        f"working set). Full training runs at {number(figures['training_gflops_per_s'])} GFLOP/s: "
        f"{number(100 * value_of(figures, 'gemm_peak_fraction'))} % of the peak, eager PyTorch "
        f"{number(100 * value_of(figures, 'gemm_peak_fraction_eager'))} %.\n\n"
        f"Fusion, {number(figures['fusion_mbytes'])} MB, batch 32, "
        f"{number(figures['fusion_flops_per_byte'])} FLOP per byte: "
        f"{number(figures['fusion_ms'])} ms a step, "
        f"where the roofline allows {number(figures['fusion_bound_ms'])} ms "
        f"({number(100 * value_of(figures, 'fusion_roofline_fraction'))} % of what it takes). Phase by phase: in "
        "training a block's step is taken as soon as its gradient is there. Near memory's bandwidth is the better one "
        "of a copy's and that of an update in place. One block alone on features that nobody trains, as type C has "
        f"it: {number(figures['type_c_ms'])} ms, at least {number(figures['type_c_bound_ms'])} ms."
    )
    rows = [
        (n.replace("adam", "Adam"), *(number(figures[f"fusion_{n}_{k}"]) for k in ("ms", "bound_ms", "limit")))
        for n in ("forward", "backward", "adam")
    ]
    header = ("fusion's pass", "measured, ms", "at least, ms", "limited by")
    return f"## Where the limit is\n\n{text}\n\n{table(header, rows)}"


def recording(figures: Found) -> str:
    """Section on records and MLflow (part 7)."""
    key = f"recording_n{NUM_CLIENTS}"
    if f"{key}_run_s" not in figures:
        return ""
    has_mlflow = figures[f"{key}_run_mlflow_s"] is not None
    rows = [
        ("two hosts, the driver in this process; nothing hashed, recorded or saved", figures[f"{key}_bare_s"]),
        ("the same with hash and record, no checkpoint", figures[f"{key}_unsaved_s"]),
        ("the same with hash, record and checkpoint", figures[f"{key}_recorded_s"]),
        ("`run_experiment`, as `relief-ray run` has it; MLflow off", figures[f"{key}_run_s"]),
        ("`run_experiment`, MLflow on (a SQLite store)", figures[f"{key}_run_mlflow_s"]),
    ]
    text = (
        f"{NUM_CLIENTS} clients, nothing trained, means over {figures[f'{key}_rounds']} rounds, medians of "
        f"{figures[f'{key}_turns']} turns. Records cost "
        f"{number(1e3 * value_of(figures, f'{key}_records_cost_s'))} ms a "
        f"round ({number(figures[f'{key}_recorded_vs_bare'])} times the bare round); costs are differences inside a "
        "turn, and what is below zero is noise. A round waits for its hash and its line in the ledger; its checkpoint "
        "is written by a thread while the next round runs, which costs "
        f"{number(1e3 * value_of(figures, f'{key}_checkpoint_cost_s'))} ms of these, since hosts use both cores. "
    )
    if has_mlflow:
        text += (
            f"MLflow costs {number(1e3 * value_of(figures, f'{key}_mlflow_cost_s'))} ms a round while it goes on "
            f"({number(figures[f'{key}_run_mlflow_vs_run'])} times the round without): a thread of the driver's "
            "process "
            "tells the store, no round waits for it. After the last round the command waits "
            f"{number(figures[f'{key}_export_after_s'])} s more until everything is told; what a `sync` then found "
            f"untold: {number(figures[f'{key}_points_left'])} values."
        )
    else:
        text += "MLflow is not installed: not measured."
    table_ = table(("a round of", "s"), [(name, number(value)) for name, value in rows])
    return f"## What records and MLflow cost\n\n{text}\n\n{table_}"


def gpu(figures: Found) -> str:
    """Section on a GPU (part 8)."""
    if "gpu_name" not in figures:
        return ""
    if figures["gpu_name"] is None:
        text = (
            "There was no CUDA device: GPU figures (`gpu_*`) are null, and nothing here was measured on one. "
            "[On a GPU](gpu.md) has figures of another machine."
        )
    else:
        text = (
            f"{figures['gpu_name']}: matrix products at {number(figures['gpu_gemm_peak_gflops_per_s'])} GFLOP/s. Eight "
            f"clients (types 3/3/2, PAMAP2's shapes, {figures['gpu_windows']} windows, {figures['gpu_epochs']} epochs) "
            f"that train all of Backbone 1 there: {number(figures['gpu_eager_samples_per_s'])} samples/s by bare eager "
            f"PyTorch one after the other, {number(figures['gpu_single_samples_per_s'])} by our engine the same "
            f"way, {number(figures['gpu_stacked_samples_per_s'])} in one stack "
            f"(`training.stack=8`): {number(figures['gpu_stacked_vs_eager'])} and "
            f"{number(figures['gpu_stacked_vs_single'])} times as fast. At that rate Table I whole would take "
            f"{number(figures['gpu_table_1_h'])} h, not counting evaluation, methods that train clients alone, and "
            "clients with unlike numbers of windows (computed, not run)."
        )
    return f"## GPU\n\n{text} All other figures of this page are of the CPU (`training.device=cpu`)."


def predictions(figures: Found) -> str:
    """Section on predicted stage times (part 6)."""
    parts = []
    for engine in get_args(Engine):
        if f"predict_{engine}_everything_compute_s" not in figures:
            continue
        rows = [_prediction(figures, f"predict_{engine}_{name}", name) for name in ASSIGNMENTS]
        header = ("trained", "measured", "spread", "`split`", "ratio", "`measured` clock", "ratio")
        parts.append(f"Engine `{engine}`:\n\n{table(header, rows)}")
    if not parts:
        return ""
    note = (
        f"A type-B client, {figures['predict_windows']} windows, {figures['predict_epochs']} epochs, "
        f"{figures['predict_turns']} turns; cells are milliseconds, forward / backward / Adam. Both clocks "
        "bill the very "
        "receipts of these rounds, through the accountant that writes records. `split`: counted FLOPs of each phase "
        "over the device's one speed, fitted to the first row in every turn. `measured`: stage by stage at the paces "
        "of a profile made in between (as by `relief-ray device profile`), from other, shorter rounds: nothing is "
        "fitted to these rows. Ratio: predicted over measured seconds of all three phases, the median of the turns' "
        "ratios. Spread: the range between the quartiles over the median (every phase's own is in the JSON file)."
    )
    return f"## Predicted and measured stage times\n\n{note}\n\n" + "\n\n".join(parts)


def _prediction(figures: Found, key: str, name: str) -> Row:
    cells = [NAMES[name], _stages(figures, key), number(100 * value_of(figures, f"{key}_spread"), " %")]
    for clock in CLOCKS:
        cells += [_stages(figures, f"{key}_{clock}"), number(figures[f"{key}_{clock}_ratio"])]
    return cells


def _stages(figures: Found, key: str) -> str:
    return " / ".join(
        number(1e3 * value_of(figures, f"{key}_{phase}_s")) for phase in ("forward", "backward", "optimizer")
    )
