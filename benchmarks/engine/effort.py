"""Amounts of measurement: whole, quick, or just enough to see that it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dataset = Literal["pamap2", "dsa"]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """The amount of measurement: clients and windows per case, turns, rounds per turn.

    ``peers``: frameworks that are installed and compared; ``all_memory``: of few clients and with full caches too.
    """

    full: tuple[tuple[int, int], ...]
    full_dsa: tuple[tuple[int, int], ...]
    full_turns: int
    full_rounds: int
    peers: tuple[str, ...]
    peer_turns: int
    peer_datasets: tuple[Dataset, ...]
    local_datasets: tuple[Dataset, ...]
    local_windows: int
    local_turns: int
    fleet_windows: int
    fleet_turns: int
    noop_turns: int
    noop_rounds: int
    noop_sizes: tuple[int, ...]
    waits: tuple[str, ...]
    waits_turns: int
    start_turns: int
    all_memory: bool
    recording_turns: int
    recording_rounds: int
    predict_windows: int
    predict_turns: int
    predict_profile_turns: int


WHOLE = Effort(
    full=((8, 256), (100, 32)),
    full_dsa=((8, 256), (100, 32)),
    full_turns=5,
    full_rounds=4,
    peers=("flower", "pfl"),
    peer_turns=3,
    peer_datasets=("pamap2", "dsa"),
    local_datasets=("pamap2", "dsa"),
    local_windows=512,
    local_turns=5,
    fleet_windows=256,
    fleet_turns=5,
    noop_turns=5,
    noop_rounds=50,
    noop_sizes=(8, 20, 50, 100),
    waits=("help", "quick", "quick_gemm", "demo", "demo_gemm"),
    waits_turns=2,
    start_turns=5,
    all_memory=True,
    recording_turns=5,
    recording_rounds=50,
    predict_windows=256,
    predict_turns=5,
    predict_profile_turns=5,
)
QUICK = Effort(
    full=((8, 128), (100, 16)),
    full_dsa=((8, 64),),
    full_turns=2,
    full_rounds=1,
    peers=("flower",),
    peer_turns=1,
    peer_datasets=("pamap2",),
    local_datasets=("pamap2",),
    local_windows=128,
    local_turns=2,
    fleet_windows=32,
    fleet_turns=1,
    noop_turns=2,
    noop_rounds=5,
    noop_sizes=(8, 100),
    waits=("help", "quick"),
    waits_turns=1,
    start_turns=1,
    all_memory=False,
    recording_turns=1,
    recording_rounds=10,
    predict_windows=64,
    predict_turns=2,
    predict_profile_turns=1,
)
TINY = Effort(
    full=((8, 32), (100, 1)),
    full_dsa=((8, 8),),
    full_turns=1,
    full_rounds=1,
    peers=("flower", "pfl"),
    peer_turns=1,
    peer_datasets=("pamap2",),
    local_datasets=("pamap2",),
    local_windows=32,
    local_turns=1,
    fleet_windows=8,
    fleet_turns=1,
    noop_turns=1,
    noop_rounds=2,
    noop_sizes=(8, 100),
    waits=("help",),
    waits_turns=1,
    start_turns=1,
    all_memory=True,
    recording_turns=1,
    recording_rounds=2,
    predict_windows=32,
    predict_turns=2,
    predict_profile_turns=1,
)
EFFORTS = {"whole": WHOLE, "quick": QUICK, "tiny": TINY}
