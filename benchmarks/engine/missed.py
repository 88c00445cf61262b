"""What is left where an aim is missed: the profile's shares in words, the largest first."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.engine.noop import KINDS
from benchmarks.engine.tables import TARGETS, Found, is_met, number

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
ORCHESTRATION: Parts = (
    ("host_load", "hosts load the model"),
    ("host_delta", "hosts subtract: the delta of every client"),
    ("host_measure", "hosts check and measure deltas"),
    ("host_sum", "hosts add up in float64"),
    ("host_pack", "hosts pack and unpack"),
    ("host_other", "the rest of the hosts' call"),
    ("wire", "wire: packing, calls, shared memory and waiting"),
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
SHORT = 0.01


def missed(found: Found) -> str:
    """Every missed aim with what is left, or nothing where all that was measured is met."""
    lines = []
    for key, text, bound in TARGETS:
        value = found.get(key)
        if isinstance(value, (int, float)) and not is_met(value, bound):
            aim = f"at least {bound:g}" if bound > 0 else f"at most {-bound:g}"
            left = what_is_left(found, key) or "not profiled"
            lines.append(f"- **{text}**: missed: found {number(value)}, target {aim}; what is left: {left}.")
    if not lines:
        return ""
    note = (
        "Shares of the wall time of a round, the largest first; those below 1 % are left out. Of rounds without "
        "training, hosts, wire and driver are measured in the rounds, and their inner split comes from a profile."
    )
    return f"## Missed aims, and what is left\n\n{note}\n\n" + "\n".join(lines)


def what_is_left(found: Found, key: str) -> str:
    """The profile behind an aim; empty where it was not taken."""
    case = "_".join(key.split("_")[:2])
    if key.startswith("full_"):
        inside = training(found, "profile_full")
        return "; ".join(
            part for part in (shares(found, case, WHOLE), inside and f"inside the hosts: {inside}") if part
        )
    if key.startswith("type_c_"):
        return training(found, "profile_type_c_reuse")
    if key.startswith("noop_"):
        return shares(found, case, ORCHESTRATION)
    if key.startswith("pss_"):
        return amounts(found, case, [(f"{kind}_gib", kind) for kind in KINDS], " GiB")
    return amounts(found, case, START, " s")


def training(found: Found, prefix: str) -> str:
    """Phases of a local round; matrix products and testing, which are not among them, behind."""
    text = shares(found, prefix, PHASES)
    if not text:
        return ""
    text += (
        f" ({number(found[f'{prefix}_step_ms'])} ms a step; matrix products: {percent(found[f'{prefix}_gemm_share'])}"
    )
    tested = found.get(f"{prefix}_test_vs_round")
    return text + (")" if tested is None else f"; testing as many windows would add {percent(tested)})")


def shares(found: Found, prefix: str, parts: Parts) -> str:
    """Shares in words."""
    known = _known(found, prefix, [(f"{key}_share", text) for key, text in parts])
    return ", ".join(f"{text} {percent(value)}" for value, text in known if abs(value) >= SHORT)


def amounts(found: Found, prefix: str, parts: Parts, unit: str) -> str:
    """Amounts in words."""
    return ", ".join(f"{text} {number(value, unit)}" for value, text in _known(found, prefix, parts))


def _known(found: Found, prefix: str, parts: Parts) -> list[tuple[float, str]]:
    values = [(found.get(f"{prefix}_{key}"), text) for key, text in parts]
    return sorted(((float(v), text) for v, text in values if isinstance(v, (int, float))), reverse=True)


def percent(share: object) -> str:
    """A share as a whole percentage."""
    assert isinstance(share, (int, float))
    return f"{100 * share:.0f} %"
