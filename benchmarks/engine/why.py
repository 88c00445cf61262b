"""Why an aim is missed, as far as figures can say: what the compared harness does less, or what the machine allows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.engine.tables import Found, number, percent

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


def why(found: Found, key: str) -> str:
    """The reason in words, empty where there is none beyond the shares."""
    if key in _SAID:
        return _SAID[key]
    if key.startswith("full_"):
        return _once_a_client(found, key.split("_vs_")[0])
    if key.startswith("type_c_"):
        return "; ".join(t for t in (_ABSENT if key == "type_c_reuse_vs_own_full" else "", _roof(found)) if t)
    if key.startswith("noop_"):
        return _arithmetic(found, "_".join(key.split("_")[:2]))
    return ""


def _once_a_client(found: Found, case: str) -> str:
    """Work that many steps would share."""
    shares = [_float(found, f"{case}_host_{name}_share") for name in ONCE]
    known = [s for s in shares if s is not None]
    if len(known) < len(ONCE):
        return ""
    return (
        f"clearing Adam's moments, loading the model, subtracting, measuring and adding, once a client however few its "
        f"steps, take {percent(sum(known))} of the round"
    )


def _roof(found: Found) -> str:
    bound, alone, step = (_float(found, k) for k in ("type_c_bound_ms", "type_c_ms", "profile_type_c_reuse_step_ms"))
    if bound is None or alone is None or step is None:
        return ""
    return (
        f"products and Adam of the client's one block take {number(alone)} ms by themselves, {number(bound)} ms by the "
        f"roofline, of {number(step)} ms a step"
    )


def _arithmetic(found: Found, case: str) -> str:
    """Two factors: the arithmetic that the minimal loop leaves out, and what a round has beside it."""
    plain, exact, beyond = (_float(found, f"{case}_{k}") for k in ("plain_ray_s", "exact_ray_s", "vs_exact_ray"))
    wire, server = (_float(found, f"{case}_{k}_s") for k in ("wire", "server"))
    if plain is None or exact is None or beyond is None or wire is None or server is None:
        return ""
    return (
        "the minimal loop copies and adds in float32 and records nothing: checking, measuring and adding exactly makes "
        f"it {number(exact / plain)} times as long, and ours is {number(beyond)} times that; beyond its hosts' work "
        f"ours spends {number(wire)} s on the wire and {number(server)} s on aggregation, hash and record"
    )


def _float(found: Found, key: str) -> float | None:
    value = found.get(key)
    return float(value) if isinstance(value, (int, float)) else None
