"""Which models an evaluation tests: the strategy's plan, with the parts that clients keep laid over what it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from relief_ray.groups import Params
from relief_ray.messages import ClientId, ClientState, EvalPlan, EvalTarget, ServerState
from relief_ray.server.aggregation import mean_personal
from relief_ray.setup import Setup


@dataclass(frozen=True, kw_only=True, slots=True)
class Tested:
    """Arguments of ``Executor.evaluate``; ``targets`` begins with the canonical model, where there is one."""

    plan: EvalPlan
    models: Mapping[str, Params]
    targets: tuple[EvalTarget, ...]
    states: Mapping[ClientId, ClientState]


def tested(setup: Setup, state: ServerState, known: Mapping[ClientId, ClientState]) -> Tested:
    """What the strategy wants tested after a round; ``known``: clients' personal state by then."""
    plan = setup.strategy.evaluate(state, setup.fleet)
    models, canonical = dict(state.models), plan.canonical
    if canonical and canonical.client is None and canonical.keep:
        # Under a name of its own: clients that keep nothing yet are tested on the view as it is.
        view = models[canonical.view]
        models["mean"] = mean_personal(view, known, canonical.keep, setup.layout, canonical.mean_of)
        canonical = replace(canonical, view="mean", keep={})
    targets = (*((canonical,) if canonical else ()), *plan.clients)
    states = {t.client: known[t.client] for t in targets if t.client is not None and t.client in known}
    return Tested(plan=plan, models=models, targets=targets, states=states)
