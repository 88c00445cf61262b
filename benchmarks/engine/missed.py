"""Explains missed targets: the largest shares of the profile in words, and the reason as far as figures show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from benchmarks.engine.noop import KINDS
from benchmarks.engine.tables import TARGETS, Found, beside, is_met, number, percent, table

Parts = Sequence[tuple[str, str]]
PHASES: Parts = (
    ("encoder_forward", "encoders forward"),
    ("fusion_forward", "fusion and head forward"),
    ("backward", "backward"),
    ("optimizer", "Adam"),
    ("overhead", "batches, loss and Python around the steps"),
)
WHOLE: Parts = (
    ("hosts", "hosts at work"),
    ("wire", "packing, calls, shared memory and waiting for the slower host"),
    ("server", "the driver: aggregation, hash, record"),
)
HOSTS: Parts = (
    ("host_forward", "forward"),
    ("host_backward", "backward"),
    ("host_adam", "Adam"),
    ("host_clear", "clearing Adam's moments for the next client"),
    ("host_around", "batches, loss and Python around the steps"),
    ("host_load", "loading the model"),
    ("host_delta", "subtracting: the delta of every client, and Python around it"),
    ("host_measure", "checking and measuring deltas"),
    ("host_sum", "adding up in float64"),
    ("host_pack", "packing and unpacking"),
    ("host_other", "the rest of the hosts' call"),
)
ORCHESTRATION: Parts = (
    ("host_load", "hosts load the model"),
    ("host_delta", "hosts subtract: the delta of every client"),
    ("host_measure", "hosts check and measure deltas"),
    ("host_sum", "hosts add up in float64"),
    ("host_pack", "hosts pack and unpack"),
    ("host_other", "the rest of the hosts' call"),
    ("wire_put", "the model into shared memory"),
    ("wire_add", "the driver takes and adds up the hosts' sums"),
    ("wire_other", "calls, the way through shared memory, waiting for the slower host"),
    ("server_aggregation", "aggregation"),
    ("server_hash", "the model's hash"),
    ("server_record", "the record: divergence and a line in the ledger"),
    ("server_bill", "clocks and joules"),
    ("server_checkpoint", "waiting for the last checkpoint"),
    ("server_other", "the rest of the driver"),
)
START: Parts = (
    ("imports_s", "starting Python, importing"),
    ("setup_s", "data and set-up"),
    ("ray_s", "Ray and hosts until round 1"),
)
RECORDS: Parts = (("records_cost_s", "hash, record and checkpoint"), ("checkpoint_cost_s", "of these, the checkpoint"))
RATES: Parts = (
    ("stacked_samples_per_s", "eight clients in one stack"),
    ("single_samples_per_s", "one after the other"),
)
ROUNDS = (("full", "type A, everything"), ("type_c_full", "type C, everything"), ("type_c_reuse", "type C with reuse"))
MOST = 4


def missed(figures: Found) -> str:
    """Markdown list of the missed targets, each with its reason and the largest shares; empty if all are met."""
    lines = []
    for key, text, bound in TARGETS:
        value = figures.get(key)
        if isinstance(value, (int, float)) and not is_met(value, bound):
            aim = f"at least {bound:g}" if bound > 0 else f"at most {-bound:g}"
            left = what_is_left(figures, key) or "not profiled"
            reason = why(figures, key)
            reason = f" ({reason})" if reason else ""
            lines.append(
                f"- **{text}**: missed: found {beside(value, bound)}, target {aim}{reason}; what is left: {left}."
            )
    if not lines:
        return ""
    note = (
        f"Of rounds: the {MOST} largest shares of their wall time; all stand in "
        "[Where the time goes](#where-the-time-goes)."
    )
    return f"## Missed aims, and what is left\n\n{note}\n\n" + "\n".join(lines)


def what_is_left(figures: Found, key: str) -> str:
    """The largest shares of the profile behind a target; empty if it was not profiled."""
    case = "_".join(key.split("_")[:2])
    if key.startswith("full_"):
        return largest(figures, key.split("_vs_")[0], (*HOSTS, *WHOLE[1:]))
    if key.startswith("recording_"):
        return amounts(figures, case, RECORDS, " s")
    if key.startswith("type_c_"):
        return largest(figures, "profile_type_c_reuse", PHASES)
    if key.startswith("noop_"):
        return largest(figures, case, ORCHESTRATION)
    if key.startswith("formats_"):
        return f"not profiled; half the range of the turns is {percent(figures.get(f'{case}_spread'))}"
    if key.startswith("gpu_"):
        return amounts(figures, "gpu", RATES, " samples/s")
    if key.startswith("pss_"):
        return amounts(figures, key.removesuffix("_gib"), [(f"{kind}_gib", kind) for kind in KINDS], " GiB")
    start = "" if key == "start_command_s" else amounts(figures, "start_n100", START, " s")
    least = figures.get("start_floor_s")
    bare = "" if least is None else f"a bare Ray program alone takes {number(least, ' s')}"
    return "; ".join(part for part in (start, bare) if part)


def time_goes(figures: Found) -> str:
    """Tables of all profiled shares, whether a target is missed or not."""
    parts = [part for part in (_training(figures), _whole(figures), _orchestration(figures)) if part]
    return "## Where the time goes\n\n" + "\n\n".join(parts) if parts else ""


# Key of a share, what is counted, and how.
_INSIDE = (
    ("kernel_share", "kernels in C", "that times each of their calls"),
    ("gemm_share", "matrix products", "under torch's profiler"),
)


def _training(figures: Found) -> str:
    if "profile_full_s" not in figures:
        return ""
    names = [f"profile_{name}" for name, _ in ROUNDS]
    rows = [(text, *(percent(figures[f"{name}_{key}_share"]) for name in names)) for key, text in PHASES]
    key, text, how = next(row for row in _INSIDE if f"{names[0]}_{row[0]}" in figures)
    rows.append((f"*of all this: {text}*", *(percent(figures[f"{name}_{key}"]) for name in names)))
    rows.append(("a step, ms", *(number(figures[f"{name}_step_ms"]) for name in names)))
    note = (
        f"One client's local round by our engine, {figures['profile_windows']} windows, {figures['profile_epochs']} "
        "epochs. Phases are measured in plain rounds; encoders and fusion split the forward phase as rounds with "
        f"timed stages do, and {text} are those of a round {how}. No round here is "
        "evaluated: testing as many windows once, through all sensors and through each alone, would add "
        f"{percent(figures['profile_full_test_vs_round'])} to the first column."
    )
    return f"{note}\n\n{table(('share of the wall time', *(text for _, text in ROUNDS)), rows)}"


def _whole(figures: Found) -> str:
    """Table of full training: a column per case, rows for hosts, their activities, wire and driver."""
    cases = [
        (f"full_{data}n{n}", f"{name}, {n} clients")
        for data, name in (("", "PAMAP2"), ("dsa_", "dsa"))
        for n in (8, 100)
        if f"full_{data}n{n}_hosts_share" in figures
    ]
    parts = (WHOLE[0], *((key, f"*hosts:* {text}") for key, text in HOSTS), *WHOLE[1:])
    rows = [(text, *(percent(figures.get(f"{case}_{key}_share")) for case, _ in cases)) for key, text in parts]
    note = (
        "Full rounds: hosts, wire and driver are measured in the rounds; what hosts do (*hosts:*, which add up to the "
        "first line) is the split of one host's call under a profile, where training goes by the clients' own clocks."
    )
    return f"{note}\n\n{table(('share of a full round', *(text for _, text in cases)), rows)}" if cases else ""


def _orchestration(figures: Found) -> str:
    cases = [n for n in (8, 20, 50, 100) if f"noop_n{n}_wire_other_share" in figures]
    rows = [(text, *(percent(figures[f"noop_n{n}_{key}_share"]) for n in cases)) for key, text in ORCHESTRATION]
    note = (
        "Rounds in which nothing is trained: hosts, wire and driver are measured in the rounds; what hosts and "
        "driver do "
        "in their time is a profile's split."
    )
    header = ("share of a round without training", *(f"{n} clients" for n in cases))
    return f"{note}\n\n{table(header, rows)}" if cases else ""


def largest(figures: Found, prefix: str, parts: Parts) -> str:
    """The largest shares as text."""
    known = _known(figures, prefix, [(f"{key}_share", text) for key, text in parts])
    return "; ".join(f"{text} ({percent(value)})" for value, text in known[:MOST])


def amounts(figures: Found, prefix: str, parts: Parts, unit: str) -> str:
    """Amounts as text."""
    return ", ".join(f"{text} {number(value, unit)}" for value, text in _known(figures, prefix, parts))


def _known(figures: Found, prefix: str, parts: Parts) -> list[tuple[float, str]]:
    values = [(figures.get(f"{prefix}_{key}"), text) for key, text in parts]
    return sorted(((float(v), text) for v, text in values if isinstance(v, (int, float))), reverse=True)


# What a host does once for a client, whether that takes one step or many.
ONCE = ("clear", "load", "delta", "measure", "sum")
_ABSENT = (
    'our engine computes a sensor that a client lacks on one window of zeros, so that its "everything" is already much '
    "less than the paper's, whose client computes zeros like any other windows"
)
_RECORDED = (
    "a round counts once its model is hashed and its line is on disk, so both stay on its way; the checkpoint's thread "
    "takes what two hosts leave of the cores"
)
_SAID: Mapping[str, str] = MappingProxyType({"recording_n8_recorded_vs_bare": _RECORDED})


def why(figures: Found, key: str) -> str:
    """The reason for a missed target as text; empty if there is none beyond the shares."""
    if key in _SAID:
        return _SAID[key]
    if key == "pss_n100_held_gib":
        return _held(figures)
    if key.startswith("full_"):
        return _once_a_client(figures, key.split("_vs_")[0])
    if key.startswith("type_c_"):
        return "; ".join(t for t in (_ABSENT if key == "type_c_reuse_vs_own_full" else "", _roof(figures)) if t)
    if key.startswith("noop_"):
        return _arithmetic(figures, "_".join(key.split("_")[:2]))
    return ""


def _once_a_client(figures: Found, case: str) -> str:
    """The share of the work that a host does once per client, however many steps the client takes."""
    shares = _all_known(figures, *(f"{case}_host_{name}_share" for name in ONCE))
    if not shares:
        return ""
    return (
        f"clearing Adam's moments, loading the model, subtracting, measuring and adding, once a client however few its "
        f"steps, take {percent(sum(shares))} of the round"
    )


def _held(figures: Found) -> str:
    known = _all_known(figures, "pss_n100_held_cache_mib")
    if not known:
        return ""
    return (
        f"prepared windows take {number(known[0])} MiB a host, which `runtime.cache_mib` lowers; what is let go is "
        "prepared again in every round"
    )


def _roof(figures: Found) -> str:
    known = _all_known(figures, "type_c_bound_ms", "type_c_ms", "profile_type_c_reuse_step_ms")
    if not known:
        return ""
    bound, alone, step = known
    return (
        f"products and Adam of the client's one block take {number(alone)} ms by themselves, {number(bound)} ms by the "
        f"roofline, of {number(step)} ms a step"
    )


def _arithmetic(figures: Found, case: str) -> str:
    """Two factors: the arithmetic that the minimal loop leaves out, and the product's work beyond it."""
    names = ("plain_ray_s", "exact_ray_s", "vs_exact_ray", "wire_s", "server_s")
    known = _all_known(figures, *(f"{case}_{name}" for name in names))
    if not known:
        return ""
    plain, exact, beyond, wire, server = known
    return (
        "the minimal loop copies and adds in float32 and records nothing: checking, measuring and adding exactly makes "
        f"it {number(exact / plain)} times as long, and ours is {number(beyond)} times that; beyond its hosts' work "
        f"ours spends {number(wire)} s on the wire and {number(server)} s on aggregation, hash and record"
    )


def _all_known(figures: Found, *keys: str) -> list[float]:
    """All of these figures, or none where one was not measured."""
    values = [figures.get(key) for key in keys]
    known = [float(value) for value in values if isinstance(value, (int, float))]
    return known if len(known) == len(keys) else []
