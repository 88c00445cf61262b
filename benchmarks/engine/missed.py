"""What is left where an aim is missed: the profile's shares in words, the largest first."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.engine.noop import KINDS
from benchmarks.engine.tables import TARGETS, Found, is_met, number, percent, table
from benchmarks.engine.why import why

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
    ("ray_s", "Ray, hosts and coordinator until round 1"),
)
RECORDS: Parts = (("records_cost_s", "hash, record and checkpoint"), ("checkpoint_cost_s", "of these, the checkpoint"))
RATES: Parts = (
    ("stacked_samples_per_s", "eight clients in one stack"),
    ("single_samples_per_s", "one after the other"),
)
ROUNDS = (("full", "type A, everything"), ("type_c_full", "type C, everything"), ("type_c_reuse", "type C with reuse"))
MOST = 4


def missed(found: Found) -> str:
    """Every missed aim with what is left, or nothing where all that was measured is met."""
    lines = []
    for key, text, bound in TARGETS:
        value = found.get(key)
        if isinstance(value, (int, float)) and not is_met(value, bound):
            aim = f"at least {bound:g}" if bound > 0 else f"at most {-bound:g}"
            left = what_is_left(found, key) or "not profiled"
            reason = why(found, key)
            reason = f" ({reason})" if reason else ""
            lines.append(f"- **{text}**: missed: found {number(value)}, target {aim}{reason}; what is left: {left}.")
    if not lines:
        return ""
    note = (
        f"Of rounds: the {MOST} largest shares of their wall time; all stand in "
        "[Where the time goes](#where-the-time-goes)."
    )
    return f"## Missed aims, and what is left\n\n{note}\n\n" + "\n".join(lines)


def what_is_left(found: Found, key: str) -> str:
    """The profile behind an aim; empty where it was not taken."""
    case = "_".join(key.split("_")[:2])
    if key.startswith("full_"):
        return largest(found, key.split("_vs_")[0], (*HOSTS, *WHOLE[1:]))
    if key.startswith("recording_"):
        return amounts(found, case, RECORDS, " s")
    if key.startswith("type_c_"):
        return largest(found, "profile_type_c_reuse", PHASES)
    if key.startswith("noop_"):
        return largest(found, case, ORCHESTRATION)
    if key.startswith("gpu_"):
        return amounts(found, "gpu", RATES, " samples/s")
    if key.startswith("pss_"):
        return amounts(found, key.removesuffix("_gib"), [(f"{kind}_gib", kind) for kind in KINDS], " GiB")
    own = "" if key == "start_command_s" else amounts(found, "start_n100", START, " s")
    least = found.get("start_floor_s")
    bare = "" if least is None else f"a bare Ray program alone takes {number(least, ' s')}"
    return "; ".join(part for part in (own, bare) if part)


def time_goes(found: Found) -> str:
    """Every share that was profiled, whether an aim is missed or not."""
    parts = [part for part in (_training(found), _whole(found), _orchestration(found)) if part]
    return "## Where the time goes\n\n" + "\n\n".join(parts) if parts else ""


def _training(found: Found) -> str:
    if "profile_full_s" not in found:
        return ""
    names = [f"profile_{name}" for name, _ in ROUNDS]
    rows = [(text, *(percent(found[f"{name}_{key}_share"]) for name in names)) for key, text in PHASES]
    rows.append(("*of all this: matrix products*", *(percent(found[f"{name}_gemm_share"]) for name in names)))
    rows.append(("a step, ms", *(number(found[f"{name}_step_ms"]) for name in names)))
    note = (
        f"One client's local round by our engine, {found['profile_windows']} windows, {found['profile_epochs']} "
        "epochs. Phases are measured in plain rounds; encoders and fusion split the forward phase as rounds with "
        "timed stages do, and matrix products are those of a round under torch's profiler. No round here is "
        "evaluated: testing as many windows once, through all sensors and through each alone, would add "
        f"{percent(found['profile_full_test_vs_round'])} to the first column."
    )
    return f"{note}\n\n{table(('share of the wall time', *(text for _, text in ROUNDS)), rows)}"


def _whole(found: Found) -> str:
    """Every full case in a column: hosts, what they do, wire and driver."""
    cases = [
        (f"full_{data}n{n}", f"{name}, {n} clients")
        for data, name in (("", "PAMAP2"), ("dsa_", "dsa"))
        for n in (8, 100)
        if f"full_{data}n{n}_hosts_share" in found
    ]
    parts = (WHOLE[0], *((key, f"*hosts:* {text}") for key, text in HOSTS), *WHOLE[1:])
    rows = [(text, *(percent(found.get(f"{case}_{key}_share")) for case, _ in cases)) for key, text in parts]
    note = (
        "Full rounds: hosts, wire and driver are measured in the rounds; what hosts do (*hosts:*, which add up to the "
        "first line) is the split of one host's call under a profile, where training goes by the clients' own clocks."
    )
    return f"{note}\n\n{table(('share of a full round', *(text for _, text in cases)), rows)}" if cases else ""


def _orchestration(found: Found) -> str:
    cases = [n for n in (8, 20, 50, 100) if f"noop_n{n}_wire_other_share" in found]
    rows = [(text, *(percent(found[f"noop_n{n}_{key}_share"]) for n in cases)) for key, text in ORCHESTRATION]
    note = (
        "Rounds in which nothing is trained: hosts, wire and driver are measured in the rounds; what hosts and "
        "driver do "
        "in their time is a profile's split."
    )
    header = ("share of a round without training", *(f"{n} clients" for n in cases))
    return f"{note}\n\n{table(header, rows)}" if cases else ""


def largest(found: Found, prefix: str, parts: Parts) -> str:
    """The largest shares in words."""
    known = _known(found, prefix, [(f"{key}_share", text) for key, text in parts])
    return "; ".join(f"{text} ({percent(value)})" for value, text in known[:MOST])


def amounts(found: Found, prefix: str, parts: Parts, unit: str) -> str:
    """Amounts in words."""
    return ", ".join(f"{text} {number(value, unit)}" for value, text in _known(found, prefix, parts))


def _known(found: Found, prefix: str, parts: Parts) -> list[tuple[float, str]]:
    values = [(found.get(f"{prefix}_{key}"), text) for key, text in parts]
    return sorted(((float(v), text) for v, text in values if isinstance(v, (int, float))), reverse=True)
