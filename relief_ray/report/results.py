"""Results of runs as tables: ``run_table`` a row per run, ``round_table`` a row per run and round, ``client_table``.

Made of run folders and of committed cells alike. Means and sums are over all rounds, a bootstrap included. Names of
figures end with their unit; F1 is in percent, bytes are encoded payloads. Pandas is loaded where one of these tables is
made: a client's node and ``--help`` never do that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, isnan
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np

from relief_ray.core.messages import BOOTSTRAP
from relief_ray.records.metrics import extra_columns
from relief_ray.records.schema import Metrics
from relief_ray.report.runs import UNTESTED, Loaded, Replicate, choice_kind, condensed
from relief_ray.strategies import PROPOSED, REFERENCE

if TYPE_CHECKING:
    from pandas import DataFrame

Curve = Mapping[str, np.ndarray]

FUSION_BLOCK = "fusion.A."
MIB = 2**20
# What two methods' runs share that are compared as a pair.
KEY = ["fold", "rotation", "seed"]
# The first column of ``run_table`` that is a figure; those before it are facts.
FIRST_FIGURE = "f1_percent"
# Columns of ``run_table`` with the budget, and of ``round_table`` with what was spent and the score, for a figure at
# equal cost.
COSTS = {
    "f1_at_seconds": ("total_s", "time_s", "f1_percent"),
    "f1_own_sensors_at_seconds": ("total_s", "time_s", "f1_own_sensors_percent"),
    "f1_at_joules": ("energy_total_j", "energy_j", "f1_percent"),
}
_CURVE = tuple(dict.fromkeys(column for _, *columns in COSTS.values() for column in columns))
# Headline F1 whose first appearance is timed: a fixed one, and a share of FedAvg's last.
_TTA_PERCENT, _TTA_SHARE = 85.0, 0.95
# The two whose cheaper one sets the budget of a table's columns; where one is missing, all methods but the bounds do.
_ANCHORS = {REFERENCE, PROPOSED}


def run_table(runs: Sequence[Loaded], rounds: DataFrame, clock: str | None = None) -> DataFrame:
    """A row per run, under its number: facts and every figure, by a clock or by the one that planned it.

    What needs FedAvg is taken from its run of the same fold, rotation and seed. ``rounds``: the runs' ``round_table``.
    """
    import pandas as pd

    small = [condensed(run) for run in runs]
    facts = pd.DataFrame(map(_facts, small, range(len(runs))))
    usual = {run.replicate: run for run in small if run.label == REFERENCE}
    table = pd.DataFrame([_beside(run, usual, clock) for run in small]).astype(float)
    replicates = pd.MultiIndex.from_frame(facts[KEY])
    fedavg = table.set_axis(replicates)[(facts["method"] == REFERENCE).to_numpy()]
    theirs = fedavg[~fedavg.index.duplicated()].reindex(replicates).set_axis(table.index)
    table["up_saved_percent"] = (100 * (1 - table["up_mib"] / theirs["up_mib"])).where(theirs["up_mib"] > 0)
    tested = list(map(curves(rounds).get, range(len(runs))))
    for name, targets in {
        "tta85": np.full(len(runs), _TTA_PERCENT),
        "tta95": _TTA_SHARE * theirs["f1_percent"],
    }.items():
        table[[f"{name}_rounds", f"{name}_s", f"{name}_j"]] = list(map(_first, tested, targets))
    budgets = _budgets(facts, table)
    for name, (_, cost, score) in COSTS.items():
        table[f"{name}_percent"] = [
            score_at(curve, cost, b, score) for curve, b in zip(tested, budgets[cost], strict=True)
        ]
    return facts.join(table)


def _beside(loaded: Loaded, usual: Mapping[Replicate, Loaded], clock: str | None) -> dict[str, float | None]:
    """Every figure of a run; a grid's level may change FedAvg's own round, so that its speed is over the usual run."""
    clock = clock or loaded.run.planning_model
    found = figures(loaded, clock)
    if choice_kind(loaded.run.config) != "level":
        return found
    costs = cost_figures(loaded, clock, usual.get(loaded.replicate))
    return found | costs | {"speedup_paper": None}


def curves(rounds: DataFrame) -> dict[int, Curve]:
    """The evaluations of each run, by its number: columns of ``round_table`` as arrays."""
    tested = rounds[rounds["f1_percent"].notna()].groupby("run")
    return {int(run): {name: own[name].to_numpy(dtype=float) for name in ("round", *_CURVE)} for run, own in tested}


def _first(tested: Curve | None, target: float) -> list[float]:
    """Round, seconds and joules of the first evaluation that reached the target, else NaN."""
    if tested is None or not (reached := tested["f1_percent"] >= target).any():
        return [float("nan")] * 3
    return [float(tested[name][reached.argmax()]) for name in ("round", "time_s", "energy_j")]


def _budgets(facts: DataFrame, table: DataFrame) -> dict[str, np.ndarray]:
    """By cost, for each run: what the cheaper of FedAvg and RELIEF of its replicate spent in all.

    Without both of them it is the cheapest method but bounds. NaN where nothing is compared.
    """
    found = {cost: np.full(len(facts), np.nan) for _, cost, _ in COSTS.values()}
    for places in facts.groupby(KEY).indices.values():
        group = facts.iloc[places]
        anchors = places[group["method"].isin(_ANCHORS)]
        used = anchors if len(anchors) >= len(_ANCHORS) else places[~group["is_bound"]]
        for total, cost, _ in COSTS.values() if len(used) > 1 else ():
            found[cost][places] = table[total].iloc[used].min()
    return found


def score_at(tested: Curve | None, cost: str, budget: float, score: str = "f1_percent") -> float:
    """A score in percent when so much was spent, between the two evaluations around it; NaN before the first one.

    A run that ended earlier keeps its last F1. NaN for a budget of NaN.
    """
    # For a curve of one evaluation, `np.interp` answers NaN with that one.
    if tested is None or isnan(budget):
        return float("nan")
    return float(np.interp(budget, tested[cost], tested[score], left=np.nan))


def _facts(loaded: Loaded, number: int) -> dict[str, object]:
    first, second = loaded.repetition
    replicate = loaded.value("replicate")
    return {
        "run": number,
        "method": loaded.label,
        "is_bound": loaded.run.method.is_bound,
        "personalised": loaded.tested.f1_fleet is not None,
        "pooled": loaded.pooled,
        **dict(zip(KEY, loaded.replicate, strict=True)),
        # One number per replicate, in the order of the pairs.
        "repetition": first * 10**6 + second + 1,
        "replicate": replicate if isinstance(replicate, int) else None,
        "rounds": loaded.rounds[-1].round,
        "model_sha256": loaded.rounds[-1].model_sha256,
        "data_origin": loaded.run.data_origin,
        "clock": loaded.run.planning_model,
        "program": loaded.run.source_digest[:8],
        "strategy": loaded.value("strategy.name"),
    }


def figures(loaded: Loaded, clock: str) -> dict[str, float | None]:
    """Every figure of one run that needs no other run."""
    return {**_scores(loaded), **cost_figures(loaded, clock, loaded), **_work(loaded, clock)}


def _scores(loaded: Loaded) -> dict[str, float | None]:
    """Scores; the test part has no say in which round is the best one, the first of equals by validation."""
    tested = [(r.round, r.metrics.headline) for r in loaded.rounds if r.metrics is not None]
    validated = [(r.round, r.validation.headline) for r in loaded.rounds if r.validation is not None]
    best = max(((f1, -n) for n, f1 in validated if f1 is not None), default=(0.0, 1))[1]
    tail = [f1 for n, f1 in tested if f1 is not None and n > tested[-1][0] - 10]
    last = loaded.tested
    clients = sorted(last.f1_by_client.values())
    shares = {
        "f1_percent": last.headline,
        "f1_best_percent": dict(tested).get(-best),
        "f1_last10_percent": mean(tail) if tail else None,
        "f1_canonical_percent": last.f1,
        "f1_fleet_percent": last.f1_fleet,
        "f1_own_sensors_percent": _through_own(last),
        "f1_own_subjects_percent": last.f1_own_subjects,
        "f1_worst_client_percent": clients[0] if clients else None,
        "f1_worst_tenth_percent": mean(clients[: ceil(len(clients) / 10)]) if clients else None,
        "f1_rare_percent": last.f1_rare,
        "accuracy_percent": last.accuracy,
        **{f"f1_{sensor}_percent": f1 for sensor, f1 in last.f1_by_modality.items()},
    }
    return {name: _percent(share) for name, share in shares.items()} | extra_columns(last)


def _through_own(metrics: Metrics) -> float | None:
    """F1 through every client's own sensors, a share; of clients with models of their own, these models'."""
    return metrics.f1_own_sensors if metrics.f1_fleet is None else metrics.f1_fleet


def cost_figures(loaded: Loaded, clock: str, over: Loaded | None) -> dict[str, float | None]:
    """Costs by a clock; speedups and savings are None where they are undefined (pooled data).

    ``over``: the run whose FedAvg rounds the speed is over, usually the same; None: there is none.

    ``speedup``: FedAvg's round over the mean round, a bootstrap included; ``speedup_round``: over a mean round after
    the bootstrap; ``speedup_compute``: without links, the longest compute times of both; ``link_percent``: share of
    the slowest client's busy time that is link; ``energy_saved_percent``: of FedAvg's joules.
    """
    costs, total = [r.costs[clock] for r in loaded.rounds], loaded.rounds[-1].totals[clock]
    round_s, energy_j = mean(c.round_s for c in costs), mean(c.energy_j for c in costs)
    means, fedavg = loaded.means(clock), None if over is None else over.means(clock).fedavg
    later_s = round_s
    if means.bootstrap_s and len(costs) > 1:
        later_s = (sum(c.round_s for c in costs) - means.bootstrap_s) / (len(costs) - 1)
    return {
        "round_s": round_s,
        "speedup": None if fedavg is None else _ratio(fedavg.round_s, round_s),
        "speedup_round": None if fedavg is None else _ratio(fedavg.round_s, later_s),
        "speedup_compute": None if fedavg is None else _ratio(fedavg.compute_s, means.compute_s),
        "link_percent": _percent(means.link_share),
        "fedavg_link_percent": None if fedavg is None else _percent(fedavg.link_share),
        "total_s": total.time_s,
        "energy_j": energy_j,
        "energy_total_j": total.energy_j,
        "energy_saved_percent": None if fedavg is None else 100 * (1 - energy_j / fedavg.energy_j),
    }


def _work(loaded: Loaded, clock: str) -> dict[str, float | None]:
    """Bytes, trained values and seconds on this machine, means over clients and rounds; free slots."""
    means, last = loaded.means(clock), loaded.rounds[-1].totals[clock].bytes_up
    most = max((c.bytes_up for r in loaded.rounds for c in r.clients), default=None)
    slots, pooled = count_slots(loaded), loaded.pooled
    return {
        "up_mib": _mib(means.client_bytes_up),
        "up_max_mib": None if pooled else _mib(most),
        "up_fleet_mib": None if pooled else _mib(last / len(loaded.rounds)),
        "down_mib": _mib(means.client_bytes_down),
        "up_saved_percent": None,
        "trained_percent": _percent(means.trained_fraction),
        "speedup_paper": means.speedup_paper,
        "wall_s": means.wall_s,
        "free_slots": mean(free for free, _ in slots) if slots else None,
        "chosen_slots": mean(chosen for _, chosen in slots) if slots else None,
        **{f"sent_{kind}_percent": _percent(share) for kind, share in means.sent.items()},
    }


def count_slots(loaded: Loaded) -> list[tuple[int, int]] | None:
    """Free and chosen slots of every client and round after the bootstrap; a slot is a group trained there.

    Free: not of the client's own fusion blocks ``A_m``, which are mandatory unless the method drops that rule. Chosen:
    free ones where an accessible group got none: elsewhere the budget alone decided, whatever the ranking. None for a
    method that has no bootstrap, whose round shows the accessible groups.
    """
    reach = {c.client: frozenset(c.trained) for r in loaded.rounds if r.phase == BOOTSTRAP for c in r.clients}
    if not reach:
        return None
    is_forced, slots = loaded.value("strategy.mandatory") is not False, []
    for client in (c for r in loaded.rounds if r.phase != BOOTSTRAP for c in r.clients if c.client in reach):
        mandatory = {group for group in reach[client.client] if is_forced and group.startswith(FUSION_BLOCK)}
        num_free, num_offered = len(set(client.trained) - mandatory), len(reach[client.client] - mandatory)
        slots.append((num_free, num_free if num_free < num_offered else 0))
    return slots


def round_table(runs: Iterable[Loaded], clock: str | None = None) -> DataFrame:
    """A row per run and round; costs are the fleet's sums so far, F1 is empty untested.

    ``loss`` and ``wall_s``, real seconds, are empty in committed results, which do not keep them. A method's
    diagnostics have a column each, ``warmth.head.1`` for row ``head.1`` of table ``warmth``, and so have metrics that
    were computed beside F1, which committed results keep of the last round alone.
    """
    import pandas as pd

    rows = [row for number, run in enumerate(map(condensed, runs)) for row in _rounds(run, number, clock)]
    table = pd.DataFrame(rows)
    numeric = ["f1_percent", "f1_rare_percent", "f1_own_sensors_percent", "loss", "wall_s"]
    return table.astype(dict.fromkeys(numeric, float)) if rows else table


def _rounds(loaded: Loaded, number: int, clock: str | None) -> Iterable[dict[str, object]]:
    clock = clock or loaded.run.planning_model
    is_full = loaded.committed is None
    for r in loaded.rounds:
        total, metrics = r.totals[clock], r.metrics or UNTESTED
        yield {
            "run": number,
            "method": loaded.label,
            "round": r.round,
            "f1_percent": _percent(metrics.headline),
            "f1_rare_percent": _percent(metrics.f1_rare),
            "f1_own_sensors_percent": _percent(_through_own(metrics)),
            "loss": r.loss if is_full else None,
            "time_s": total.time_s,
            "energy_j": total.energy_j,
            "bytes_up": total.bytes_up,
            "bytes_down": total.bytes_down,
            "wall_s": r.wall_s if is_full else None,
            **extra_columns(metrics),
            **{f"{name}.{key}": value for name, values in r.diagnostics.items() for key, value in values.items()},
        }


def client_table(runs: Iterable[Loaded], clock: str) -> DataFrame:
    """A row per run, round and client: its device's type, seconds and joules; none of committed cells."""
    import pandas as pd

    rows = (
        (run, r.round, c.client, types.get(c.client, "?"), c.times.compute_s, c.times.link_s, c.wait_s, c.energy_j)
        for run, loaded in enumerate(runs)
        for types in (loaded.types,)
        for r in loaded.rounds
        for c in r.costs[clock].clients
    )
    names = ["run", "round", "client", "type", "compute_s", "link_s", "wait_s", "energy_j"]
    return pd.DataFrame(rows, columns=names)


def _ratio(above: float, below: float) -> float | None:
    return above / below if above and below else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _mib(num_bytes: float | None) -> float | None:
    return None if num_bytes is None else num_bytes / MIB
