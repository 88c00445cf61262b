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
    if key == "pss_n100_held_gib":
        return _held(found)
    if key.startswith("full_"):
        return _once_a_client(found, key.split("_vs_")[0])
    if key.startswith("type_c_"):
        return "; ".join(t for t in (_ABSENT if key == "type_c_reuse_vs_own_full" else "", _roof(found)) if t)
    if key.startswith("noop_"):
        return _arithmetic(found, "_".join(key.split("_")[:2]))
    return ""


def _once_a_client(found: Found, case: str) -> str:
    """Work that many steps would share."""
    shares = _known(found, *(f"{case}_host_{name}_share" for name in ONCE))
    if not shares:
        return ""
    return (
        f"clearing Adam's moments, loading the model, subtracting, measuring and adding, once a client however few its "
        f"steps, take {percent(sum(shares))} of the round"
    )


def _held(found: Found) -> str:
    known = _known(found, "pss_n100_held_cache_mib")
    if not known:
        return ""
    return (
        f"prepared windows take {number(known[0])} MiB a host, which `runtime.cache_mib` lowers; what is let go is "
        "prepared again in every round"
    )


def _roof(found: Found) -> str:
    known = _known(found, "type_c_bound_ms", "type_c_ms", "profile_type_c_reuse_step_ms")
    if not known:
        return ""
    bound, alone, step = known
    return (
        f"products and Adam of the client's one block take {number(alone)} ms by themselves, {number(bound)} ms by the "
        f"roofline, of {number(step)} ms a step"
    )


def _arithmetic(found: Found, case: str) -> str:
    """Two factors: the arithmetic that the minimal loop leaves out, and what a round has beside it."""
    names = ("plain_ray_s", "exact_ray_s", "vs_exact_ray", "wire_s", "server_s")
    known = _known(found, *(f"{case}_{name}" for name in names))
    if not known:
        return ""
    plain, exact, beyond, wire, server = known
    return (
        "the minimal loop copies and adds in float32 and records nothing: checking, measuring and adding exactly makes "
        f"it {number(exact / plain)} times as long, and ours is {number(beyond)} times that; beyond its hosts' work "
        f"ours spends {number(wire)} s on the wire and {number(server)} s on aggregation, hash and record"
    )


def _known(found: Found, *keys: str) -> list[float]:
    """All of these figures, or none where one was not measured."""
    values = [found.get(key) for key in keys]
    known = [float(value) for value in values if isinstance(value, (int, float))]
    return known if len(known) == len(keys) else []
