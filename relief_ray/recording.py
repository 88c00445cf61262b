"""What a run leaves behind, in words and numbers: the record of the run, and of each of its rounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from time import perf_counter, time

from pydantic import JsonValue

from relief_ray import __version__
from relief_ray.extensions import digests
from relief_ray.federated import RoundContext, RoundResult
from relief_ray.messages import RoundCost
from relief_ray.process import device_name
from relief_ray.records.capture import capture_round
from relief_ray.records.checkpoint import Binding
from relief_ray.records.identity import cell_id, config_hash, layout_digest, machine_facts, source_digest
from relief_ray.records.schema import FedAvgRecord, Metrics, RoundRecord, RunRecord, Totals
from relief_ray.server.divergence import D_BAR, divergence, from_tensor
from relief_ray.server.pairwise import pairwise_cosine
from relief_ray.setup import Setup, deadline_s, fedavg_costs


def binding_of(setup: Setup) -> Binding:
    """What a checkpoint of this run belongs to."""
    return Binding(
        config_hash=config_hash(setup.config.hashed()),
        layout_digest=layout_digest(setup.layout),
        engine=setup.engine,
    )


def round_record(
    setup: Setup,
    context: RoundContext,
    result: RoundResult,
    *,
    metrics: Mapping[str, Metrics],
    began_s: float,
    before: Mapping[str, Totals],
    target_s: float | None,
) -> RoundRecord:
    """The record of a round that began at ``perf_counter() == began_s``; ``before``: the last record's totals.

    ``target_s``: ``T*`` where the strategy has one.
    """
    everyone = len(context.participants) == len(setup.fleet)
    reference = fedavg_costs(setup, context.participants)
    record = capture_round(
        result,
        round_=context.round,
        phase=result.tasks[0].phase if result.tasks else "idle",
        wall_s=perf_counter() - began_s,
        ended_unix_s=time(),
        before=before,
    )
    sums, tensors = result.trained.reduced.sums.get("global", {}), result.state.tensors
    return record.model_copy(
        update={
            "metrics": metrics.get("test"),
            "validation": metrics.get("validation"),
            "divergence": {j: d for j, part in sums.items() if (d := divergence(part)) is not None},
            "d_bar": from_tensor(tensors[D_BAR], setup.layout) if D_BAR in tensors else {},
            "pairwise": pairwise_cosine(result.trained.pairwise),
            "silhouettes": result.state.facts.get("silhouettes", {}),
            "deadline_s": target_s,
            "speedup": speedup(setup, result, reference),
            "fedavg": {} if everyone else fedavg_records(reference),
            "trained_fraction": trained_fraction(setup, result),
        }
    )


def speedup(setup: Setup, result: RoundResult, reference: Mapping[str, RoundCost]) -> float | None:
    """FedAvg's round over this round, by the planning clock; none for pooled data or a round in which nobody worked."""
    round_s, fedavg_s = (costs[setup.config.costs.planning_time].round_s for costs in (result.costs, reference))
    return None if setup.strategy.pooled or not round_s else fedavg_s / round_s


def trained_fraction(setup: Setup, result: RoundResult) -> float:
    """Mean over the round's clients of trained values over all of the plain backbone (above 1 with additions)."""
    values = [setup.layout.num_values(r.assignment.train) for r in result.trained.worked]
    return sum(values) / len(values) / setup.num_own_values if values else 0.0


def fedavg_records(reference: Mapping[str, RoundCost]) -> dict[str, FedAvgRecord]:
    """The reference without its clients, as it is stored."""
    return {name: FedAvgRecord(round_s=c.round_s, energy_j=c.energy_j) for name, c in reference.items()}


def now() -> str:
    """UTC to the second."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def as_json(facts: Mapping[str, object]) -> dict[str, JsonValue]:
    """Facts as the JSON that will be stored; anything else in them is refused by the serialiser."""
    found: dict[str, JsonValue] = json.loads(json.dumps(facts))
    return found


def run_record(setup: Setup, parent: str | None = None) -> RunRecord:
    """What is known of a run before its first round."""
    config = setup.config
    reference = {name: c.model_dump() for name, c in fedavg_records(setup.reference).items()}
    return RunRecord(
        cell=cell_id(config.hashed(), setup.data.digest),
        name=config.name,
        strategy=config.label(),
        created=now(),
        config=config.model_dump(mode="json"),
        config_hash=config_hash(config.hashed()),
        data_digest=setup.data.digest,
        data_origin=setup.data.origin,
        code_version=__version__,
        source_digest=source_digest(),
        own_sources=digests(config.modules()),
        machine=machine_facts().model_copy(update={"device": device_name(setup.job.trainer.device)}),
        engine=setup.engine,
        planning_model=config.costs.planning_time,
        coverage=as_json(setup.data.coverage),
        budget=as_json({"deadline_s": deadline_s(setup), "fedavg_reference": reference}),
        calibration=calibration_of(setup),
        backbone=dict(setup.frozen),
        warnings=setup.warnings,
        parent=parent,
    )


def calibration_of(setup: Setup) -> dict[str, JsonValue]:
    """The parameters of every clock, a device profile in full, and whether they were fitted or given."""
    clocks = {name: clock.model.model_dump(mode="json") for name, clock in setup.accountant.clocks.items()}
    return as_json({"origin": "given" if setup.config.costs.utilisation else "FITTED", "clocks": clocks})
