"""One run in numbers, for tables, curves and verdicts.

Means are over rounds 1..R; cumulative seconds and joules include the bootstrap. F1 values are shares (0..1), bytes are
encoded payloads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from relief_ray.core.messages import RoundCost
from relief_ray.records.committed import mean_fedavg, means_of
from relief_ray.records.metrics import extra_columns
from relief_ray.records.schema import ClientRecord, Metrics, RoundRecord
from relief_ray.report.budgets import equal_cost_scores
from relief_ray.report.runs import Loaded, Repetition, Replicate, config_text, is_pooled, run_value
from relief_ray.strategies import REFERENCE

FUSION_BLOCK = "fusion.A."
MIB = 2**20
# Headline F1 whose first appearance is timed: a fixed one, and a share of FedAvg's last.
_TTA_TARGET = 0.85
_TTA_SHARE = 0.95
Point = tuple[int, Metrics]
Values = Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotCounts:
    """Counts of slots over clients and rounds 1..R; a slot is a group that a client trained in a round.

    Attributes:
        mandatory: slots of the client's own fusion blocks ``A_m``, unless the method drops that rule.
        free: the others.
        chosen: free slots in client-rounds in which an accessible group got none: elsewhere the budget alone decided,
            whatever the ranking.
        client_rounds: number of clients summed over rounds.
    """

    mandatory: int
    free: int
    chosen: int
    client_rounds: int


def accessible(loaded: Loaded) -> dict[int, frozenset[str]]:
    """Groups ``G_n`` by client, as the bootstrap trained them; empty for methods without a bootstrap."""
    return {c.client: frozenset(c.trained) for r in loaded.rounds if r.round == 0 for c in r.clients}


def count_slots(loaded: Loaded) -> SlotCounts | None:
    """Counts of one run; None for a method that has no bootstrap or offers everything."""
    reach = accessible(loaded)
    if not reach or run_value(loaded.run, "strategy.select") == "all":
        return None
    forced = run_value(loaded.run, "strategy.mandatory") is not False
    rows = [_count(c, reach[c.client], forced) for r in loaded.trained for c in r.clients if c.client in reach]
    return SlotCounts(
        mandatory=sum(row[0] for row in rows),
        free=sum(row[1] for row in rows),
        chosen=sum(row[2] for row in rows),
        client_rounds=len(rows),
    )


def _count(client: ClientRecord, reach: frozenset[str], forced: bool) -> tuple[int, int, int]:
    mandatory = {j for j in reach if forced and j.startswith(FUSION_BLOCK)}
    free = set(client.trained) - mandatory
    is_choice = 0 < len(free) < len(reach - mandatory)
    return len(mandatory & set(client.trained)), len(free), len(free) if is_choice else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """First evaluation that reached a target F1: rounds from 1; seconds and joules include the bootstrap."""

    rounds: int
    time_s: float
    energy_j: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockSummary:
    """A run under one time model.

    Speedups and ``energy_saved`` are None where they are undefined (pooled data).

    Attributes:
        round_s: mean seconds of a round.
        energy_j: mean joules of a round, of the whole fleet.
        total_s: seconds of all rounds, the bootstrap included.
        total_j: joules of all rounds.
        speedup: FedAvg's round over the mean round.
        speedup_compute: the same without links: the longest compute times of both.
        speedup_total: R FedAvg rounds over everything that was spent.
        link_share: share of the slowest client's busy time that is link, on average over rounds; None where only the
            committed form of an earlier version is there.
        fedavg_link_share: the same in FedAvg's round.
        energy_saved: 1 - joules per round over FedAvg's.
    """

    round_s: float
    energy_j: float
    total_s: float
    total_j: float
    speedup: float | None
    speedup_compute: float | None
    speedup_total: float | None
    link_share: float | None
    fedavg_link_share: float | None
    energy_saved: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """Figures of one run; F1 values are shares, bytes are means per client and round unless they say otherwise.

    Attributes:
        label: name of the method.
        replicate, repetition: (fold, rotation, seed), and what all folds of a replicate share.
        dataset, split: names of the data set and of the split.
        rounds: number of the last round.
        last: test metrics of the last evaluated round.
        shown: headline F1: ``f1_fleet`` where clients have models of their own, else ``f1``.
        personalised: clients have models of their own.
        best: headline F1 of ``best_round``; None without validation.
        best_round: round with the highest validation F1.
        last10: mean headline F1 of the evaluations in the last ten rounds.
        clocks: costs by time model.
        up_bytes: sent by a client in a round; None for pooled data, like the next three.
        up_max_bytes: the largest of these.
        down_bytes: received by a client in a round.
        fleet_up_bytes: sent by the whole fleet in a round.
        trained_fraction: mean share of the trainable values that a client trained.
        speedup_paper: mean speedup of the same allocations at the paper's protocol, by the planning clock.
        wall_s: mean seconds of a round on this machine.
        slots: free and chosen slots; None for methods that offer everything.
        model_sha256: of the last canonical model.
    """

    label: str
    replicate: Replicate
    repetition: Repetition
    dataset: str
    split: str
    rounds: int
    last: Metrics
    shown: float | None
    personalised: bool
    best: float | None
    best_round: int | None
    last10: float | None
    clocks: Mapping[str, ClockSummary]
    up_bytes: float | None
    up_max_bytes: int | None
    down_bytes: float | None
    fleet_up_bytes: float | None
    trained_fraction: float | None
    speedup_paper: float | None
    wall_s: float | None
    slots: SlotCounts | None
    model_sha256: str

    @property
    def by_subject(self) -> Mapping[str, float]:
        """The headline F1 of each test subject."""
        return _headline_by_subject(self.last)


def _headline_by_subject(metrics: Metrics) -> Mapping[str, float]:
    """``Metrics.headline`` on one test subject's windows."""
    return metrics.f1_by_subject if metrics.f1_fleet is None else metrics.f1_fleet_by_subject


def evaluations(loaded: Loaded) -> tuple[Point, ...]:
    """The rounds 1..R that were evaluated, with their test metrics."""
    return tuple((r.round, r.metrics) for r in loaded.trained if r.metrics is not None)


def _chosen_round(loaded: Loaded) -> int | None:
    """The round with the highest validation F1, the first of equals; the test part has no say in it."""
    seen = [(r.round, r.validation.headline) for r in loaded.trained if r.validation is not None]
    scored = [(n, f1) for n, f1 in seen if f1 is not None]
    return max(scored, key=lambda p: (p[1], -p[0]))[0] if scored else None


def summarise_run(loaded: Loaded) -> RunSummary:
    """All figures of one complete run.

    Raises:
        AssertionError: the run has no evaluated round (a complete run's last round always is).
    """
    points = evaluations(loaded)
    assert points, f"{loaded.where}: no evaluated round"
    last_round, last = points[-1]
    best_round = _chosen_round(loaded)
    tail = [v for n, m in points if n > last_round - 10 and (v := m.headline) is not None]
    work, has_fleet = _work_of(loaded), not is_pooled(loaded)
    return RunSummary(
        label=loaded.label,
        replicate=loaded.replicate,
        repetition=loaded.repetition,
        dataset=config_text(loaded.run, "data.name"),
        split=config_text(loaded.run, "data.split"),
        rounds=loaded.rounds[-1].round,
        last=last,
        shown=last.headline,
        personalised=last.f1_fleet is not None,
        best=next((m.headline for n, m in points if n == best_round), None),
        best_round=best_round,
        last10=mean(tail) if tail else None,
        clocks={name: _clock(loaded, name) for name in loaded.rounds[-1].costs},
        up_bytes=work.client_bytes_up,
        up_max_bytes=max((c.bytes_up for r in loaded.trained for c in r.clients), default=None) if has_fleet else None,
        down_bytes=work.client_bytes_down,
        fleet_up_bytes=_fleet_bytes(loaded) if has_fleet else None,
        trained_fraction=work.trained_fraction,
        speedup_paper=work.speedup_paper,
        wall_s=work.wall_s,
        slots=count_slots(loaded),
        model_sha256=loaded.rounds[-1].model_sha256,
    )


def _clock(loaded: Loaded, name: str) -> ClockSummary:
    costs = [r.costs[name] for r in loaded.trained]
    round_s, energy_j = mean(c.round_s for c in costs), mean(c.energy_j for c in costs)
    total = loaded.rounds[-1].totals[name]
    fedavg = None if is_pooled(loaded) else mean_fedavg(loaded.run, loaded.trained, name)
    reference_s = None if fedavg is None else fedavg.round_s
    compute_s, link_share, is_whole = _devices(loaded, costs)
    return ClockSummary(
        round_s=round_s,
        energy_j=energy_j,
        total_s=total.time_s,
        total_j=total.energy_j,
        speedup=_ratio(reference_s, round_s),
        speedup_compute=None if fedavg is None or compute_s is None else _ratio(fedavg.compute_s, compute_s),
        speedup_total=_ratio(reference_s and reference_s * len(costs), total.time_s),
        link_share=link_share,
        fedavg_link_share=None if fedavg is None or not is_whole else fedavg.link_share,
        energy_saved=None if fedavg is None else 1 - energy_j / fedavg.energy_j,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _MeanWork:
    """Means over rounds 1..R; None where they are undefined or a committed cell lacks them."""

    client_bytes_up: float | None = None
    client_bytes_down: float | None = None
    trained_fraction: float | None = None
    speedup_paper: float | None = None
    wall_s: float | None = None


def _work_of(loaded: Loaded) -> _MeanWork:
    means = means_of(loaded.run, loaded.trained) if loaded.committed is None else loaded.committed.means
    names = ("client_bytes_up", "client_bytes_down", "trained_fraction", "speedup_paper", "wall_s")
    return _MeanWork() if means is None else _MeanWork(**{name: getattr(means, name) for name in names})


def _fleet_bytes(loaded: Loaded) -> float | None:
    """Bytes that the whole fleet sends in a round, on average over rounds 1..R."""
    if loaded.committed is None:
        sent = [c.bytes_up for r in loaded.trained for c in r.clients]
        return sum(sent) / len(loaded.trained) if sent else None
    rows = loaded.committed.rounds
    before = next((r.bytes_up for r in rows if r.round == 0), 0)
    return (rows[-1].bytes_up - before) / len(loaded.trained)


def _devices(loaded: Loaded, costs: Sequence[RoundCost]) -> tuple[float | None, float | None, bool]:
    """Mean longest compute time and link share, and whether they are known: of a committed cell its means are."""
    if loaded.committed is None:
        return mean(c.compute_s for c in costs), mean(c.link_share for c in costs), True
    means = loaded.committed.means
    return (None, None, False) if means is None else (means.compute_s, means.link_share, True)


def _ratio(above: float | None, below: float) -> float | None:
    return above / below if above and below else None


def time_to(loaded: Loaded, clock: str, target: float) -> Reached | None:
    """The first evaluated round 1..R whose shown F1 is at least ``target``; None where it never is."""
    for record in loaded.trained:
        if _reaches(record, target):
            total = record.totals[clock]
            return Reached(rounds=record.round, time_s=total.time_s, energy_j=total.energy_j)
    return None


def _reaches(record: RoundRecord, target: float) -> bool:
    f1 = None if record.metrics is None else record.metrics.headline
    return f1 is not None and f1 >= target


def measures(runs: Sequence[Loaded], summaries: Sequence[RunSummary], clock: str) -> list[Values]:
    """Figures of each run; those that need FedAvg take the run of the same replicate (fold, rotation, seed)."""
    fedavg = {s.replicate: s for s in summaries if s.label == REFERENCE}
    equal = equal_cost_scores(runs, clock)
    return [
        {**values_of(loaded, summary, clock, fedavg.get(summary.replicate)), **at_cost}
        for loaded, summary, at_cost in zip(runs, summaries, equal, strict=True)
    ]


def values_of(loaded: Loaded, summary: RunSummary, clock: str, fedavg: RunSummary | None) -> Values:
    """One run's figures, their unit at the end of each name; undefined ones are absent."""
    targets = {"tta85": _TTA_TARGET}
    if fedavg is not None and fedavg.shown is not None:
        targets["tta95"] = _TTA_SHARE * fedavg.shown
    values: dict[str, float | None] = {**_scores(summary), **_costs(summary.clocks[clock]), **_work(summary, fedavg)}
    if loaded.committed is not None and values["speedup"] is None and fedavg is not None and not is_pooled(loaded):
        values |= _against(summary.clocks[clock], fedavg.clocks[clock])
    for name, target in targets.items():
        values |= _reached(name, time_to(loaded, clock, target))
    return {name: value for name, value in values.items() if value is not None}


def _scores(summary: RunSummary) -> dict[str, float | None]:
    last = summary.last
    shares = {
        "f1_percent": summary.shown,
        "f1_best_percent": summary.best,
        "f1_last10_percent": summary.last10,
        "f1_canonical_percent": last.f1,
        "f1_fleet_percent": last.f1_fleet,
        "f1_own_sensors_percent": last.f1_own_sensors if last.f1_fleet is None else last.f1_fleet,
        "f1_own_subjects_percent": last.f1_own_subjects,
        "f1_rare_percent": last.f1_rare,
        "accuracy_percent": last.accuracy,
        **{f"f1_{m}_percent": v for m, v in last.f1_by_modality.items()},
    }
    return {name: _percent(value) for name, value in shares.items()} | extra_columns(last)


def _costs(clock: ClockSummary) -> dict[str, float | None]:
    return {
        "round_s": clock.round_s,
        "speedup": clock.speedup,
        "speedup_compute": clock.speedup_compute,
        "speedup_total": clock.speedup_total,
        "link_percent": _percent(clock.link_share),
        "fedavg_link_percent": _percent(clock.fedavg_link_share),
        "total_s": clock.total_s,
        "energy_j": clock.energy_j,
        "energy_total_j": clock.total_j,
        "energy_saved_percent": _percent(clock.energy_saved),
    }


def _against(mine: ClockSummary, fedavg: ClockSummary) -> dict[str, float | None]:
    """Speed and joules beside those of FedAvg's run, for cells that keep no FedAvg round of their own."""
    saved = None if not fedavg.energy_j else 1 - mine.energy_j / fedavg.energy_j
    total = fedavg.total_s
    return {
        "speedup": _ratio(fedavg.round_s, mine.round_s),
        "speedup_total": _ratio(total, mine.total_s),
        "energy_saved_percent": _percent(saved),
    }


def _work(summary: RunSummary, fedavg: RunSummary | None) -> dict[str, float | None]:
    slots = summary.slots
    return {
        "up_mib": _mib(summary.up_bytes),
        "up_max_mib": _mib(summary.up_max_bytes),
        "up_fleet_mib": _mib(summary.fleet_up_bytes),
        "down_mib": _mib(summary.down_bytes),
        "up_saved_percent": _percent(_saved(summary, fedavg)),
        "trained_percent": _percent(summary.trained_fraction),
        "speedup_paper": summary.speedup_paper,
        "wall_s": summary.wall_s,
        "free_slots": None if slots is None else slots.free / slots.client_rounds,
        "chosen_slots": None if slots is None else slots.chosen / slots.client_rounds,
    }


def _saved(summary: RunSummary, fedavg: RunSummary | None) -> float | None:
    if fedavg is None or not fedavg.up_bytes or summary.up_bytes is None:
        return None
    return 1 - summary.up_bytes / fedavg.up_bytes


def _reached(name: str, first: Reached | None) -> dict[str, float | None]:
    if first is None:
        return {}
    return {f"{name}_rounds": first.rounds, f"{name}_s": first.time_s, f"{name}_j": first.energy_j}


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _mib(num_bytes: float | None) -> float | None:
    return None if num_bytes is None else num_bytes / MIB
