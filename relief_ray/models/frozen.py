"""Whether two processes hold the same frozen part of a backbone: updates of different models cannot be averaged."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

from relief_ray.errors import UserError
from relief_ray.models.backbone import Backbone

SHA256 = "weights_sha256"
Facts = Mapping[str, str | int]


def differing(expected: Mapping[str, object], found: Mapping[str, object]) -> tuple[str, ...]:
    """The facts in which two frozen parts differ: the hash of the weights where both have one, else all that is known.

    Where weights came from is no difference: the same bits may lie in two folders.
    """
    names = [SHA256] if SHA256 in expected and SHA256 in found else sorted(expected.keys() | found.keys())
    return tuple(name for name in names if expected.get(name) != found.get(name))


def other_frozen(recorded: Mapping[str, object], here: Facts) -> str | None:
    """In what a run's frozen part is not the one that lies ``here`` today (``BackboneConfig.frozen_here``); else None.

    ``weights_sha256 1a2b3c4d5e6f there, 6f5e4d3c2b1a here``.
    """
    names = differing(recorded, here) if here else ()
    return "; ".join(f"{n} {str(recorded.get(n))[:12]} there, {str(here.get(n))[:12]} here" for n in names) or None


def build_same(build: Callable[[], Backbone], expected: Facts) -> Backbone:
    """The backbone, if what is frozen in it is what the run began with; an empty ``expected`` compares nothing.

    Raises:
        UserError: another frozen part; the host is named.
    """
    backbone = build()
    if expected and (names := differing(expected, backbone.facts)):
        here, there = (", ".join(f"{n} {str(f.get(n))[:20]}" for n in names) for f in (backbone.facts, expected))
        raise UserError(
            f"host {socket.gethostname()} (process {os.getpid()}): holds another frozen encoder than the run: found "
            f"{here} (weights: {backbone.facts.get('weights')}), expected {there}; {_fix(expected)}"
        )
    return backbone


def _fix(expected: Facts) -> str:
    if str(expected.get("weights")).startswith("random"):
        return (
            "remove the folder `moment` from that host's cache (RELIEF_CACHE), so that it is drawn anew, or copy the "
            "driver's there"
        )
    return "copy the driver's files of backbone.weights to that host, or name a folder that all share"
