"""The warning that a deadline leaves nobody a choice, held against what is then really allocated."""

import pytest

from relief_ray.core.federated import PlannedRun
from relief_ray.core.messages import ServerState
from relief_ray.experiment.recording import run_record
from relief_ray.experiment.setup import context_of, deadline_s, prepare
from relief_ray.server.aggregation import to_tensor
from relief_ray.strategies.relief import PRESETS, Relief
from relief_ray.strategies.relief.budget import D_BAR
from relief_ray.strategies.relief.strategy import allocate, fleet_loads, further_slot_s, rounded_up
from relief_ray.support.errors import in_python
from tests.conformance.cases import config_of
from tests.strategies.relief.test_relief import CNN, PAPER, TAUS
from tests.toy import LinearPlanner
from tests.toy import context_of as toy_context

CROWDED = LinearPlanner(tau_s={n: 1.0 for n in range(8)})
TIGHT = ("relief", "v2", "v3", "v2_mandatory", "v3_mandatory")


def warnings(config, context):
    return config.build().insight.warnings(PlannedRun(context=context, clock="toy", participation=1.0))


def further(config, context):
    """Groups that are no fusion block, over all clients."""
    state = state_of(context.layout, {})
    return [j for task in allocate(config, state, context) for j in task.train if not j.startswith("fusion.A.")]


@pytest.mark.parametrize("fill", ["count", "time"])
@pytest.mark.parametrize("name", TIGHT)
@pytest.mark.parametrize("planner", [TAUS, CROWDED], ids=["paper", "equal"])
def test_it_warns_exactly_where_nobody_may_train_more(name, planner, fill):
    context = toy_context(CNN, PAPER, 1, planner)
    config = PRESETS[name].config.model_copy(update={"fill": fill})
    loads = fleet_loads(config, context)
    needed = min(further_slot_s(config, loads[c.id]) for c in context.fleet.clients)
    if not config.mandatory and fill == "count":
        assert needed == 0.0 and warnings(config, context) == (), "no block is forced: every slot is free"
        return
    for deadline in (0.5 * needed, 0.999 * needed, needed, float(rounded_up(needed)), 2 * needed):
        given = config.model_copy(update={"deadline_s": deadline})
        # V2 and V3 need no block, and their ranking may prefer one; who offers the others first finds a place for them.
        more = further(given, context) if given.mandatory else offered(given, context)
        assert bool(more) == (warnings(given, context) == ()), deadline


def offered(config, context):
    others = [j for j in context.layout.ids if not j.startswith("fusion.A.")]
    state = state_of(context.layout, {j: 1.0 for j in others})
    first = config.model_copy(update={"select": "divergence"})
    return [j for t in allocate(first, state, context) for j in t.train if j in others]


def state_of(layout, d_bar):
    return ServerState(models={"global": {}}, tensors={D_BAR: to_tensor(d_bar, layout)})


def test_those_without_a_deadline_and_those_that_want_none_are_not_warned():
    context = toy_context(CNN, PAPER, 1, CROWDED)
    assert warnings(Relief(budget="none"), context) == ()
    assert warnings(Relief(select="none", deadline_s=1e-6), context) == ()


@pytest.mark.parametrize(("seconds", "text"), [(0.386_4, "0.387"), (0.25, "0.250"), (12.341, "12.4"), (1234.5, "1240")])
def test_the_deadline_to_set_is_short_and_never_too_small(seconds, text):
    assert rounded_up(seconds) == text and float(text) >= seconds


def test_a_run_says_it_in_its_record_and_the_advice_helps(run_cache):
    setup = prepare(config_of("relief", strategy={"name": "relief", "deadline_s": 1e-6}))
    (warning,) = setup.warnings
    assert f"T* = {deadline_s(setup):.4g} s" in warning and f"clock {setup.config.costs.planning_time}" in warning
    assert run_record(setup).warnings == (warning,)
    assert further(setup.config.strategy, context_of(setup, 1)) == []
    advised = float(warning.split("--set strategy.deadline_s=")[1].split()[0])
    assert "--set strategy.cover=true" in warning
    with in_python():
        (said,) = prepare(setup.config).warnings
    assert f"{{'name': 'relief', 'deadline_s': {advised}}}" in said and "{'name': 'relief', 'cover': True}" in said
    helped = prepare(config_of("relief", strategy={"name": "relief", "deadline_s": advised}))
    assert helped.warnings == () and further(helped.config.strategy, context_of(helped, 1))
    paper = {"strategy": "relief", "costs": {"planning_time": "flop_proportional"}}
    assert prepare(config_of("relief", **paper)).warnings == (), "the least T* leaves a choice"
