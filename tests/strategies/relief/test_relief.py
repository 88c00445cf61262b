"""RELIEF and its variants: who trains what, how it is averaged, what diverges (Algorithm 1)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relief_ray.core.codec import encoded_nbytes
from relief_ray.core.groups import Part
from relief_ray.core.messages import ServerState
from relief_ray.models.backbone import InputShape
from relief_ray.models.cnn import CnnConfig
from relief_ray.server.aggregation import from_tensor, to_tensor
from relief_ray.strategies.relief import PRESETS, Relief
from relief_ray.strategies.relief.budget import D_BAR
from relief_ray.strategies.relief.strategy import (
    BOOTSTRAP,
    fleet_loads,
    plan,
    planned_round_s,
    role_weight,
    target_s,
)
from tests.toy import (
    ACC,
    EQUAL,
    FOUR,
    FULL,
    LinearPlanner,
    bench,
    build,
    context_of,
    fleet_of,
    reduced_of,
    task_of,
    update_of,
)

MODALITIES = ("acc", "gyro", "mag", "hr")
SHAPE = InputShape(channels=tuple((m, 1) for m in MODALITIES), window=32, num_classes=3)
CNN = CnnConfig(conv1=2, conv2=2, steps=2, fusion=3).build(SHAPE, 0).layout
PAPER = fleet_of(*[MODALITIES] * 3, *[MODALITIES[:2]] * 3, *[MODALITIES[:1]] * 2, modalities=MODALITIES)
TAUS = LinearPlanner(tau_s={n: (0.1, 0.1, 0.1, 1.3, 1.3, 1.3, 5.5, 5.5)[n] for n in range(8)})
FORCED = ("relief", "v2_mandatory", "v3_mandatory", "mandatory_only")
D = {j: float(i) for i, j in enumerate(CNN.ids)}


def state_with(d_bar, layout=CNN):
    return ServerState(models={"global": {}}, tensors={D_BAR: to_tensor(d_bar, layout)})


def assignments(name, round_=2, d_bar=None, seed=0, participants=None):
    """Tasks of a round after the bootstrap; ``d_bar`` of None: nothing is known of any group."""
    context = context_of(CNN, PAPER, round_, TAUS, participants, seed=seed)
    state = state_with(d_bar or {})
    return PRESETS[name].config.build().allocate(state, context)


# Blue box -----------------------------------------------------------------------------------------------------------


def test_t_star_is_set_by_the_slowest_devices_mandatory_block():
    assert target_s(Relief(), context_of(CNN, PAPER, 1, TAUS)) == 6.5


def test_t_star_looks_at_the_whole_fleet_not_at_the_participants():
    assert target_s(Relief(), context_of(CNN, PAPER, 1, TAUS, participants=[0, 1])) == 6.5


def test_deadlines_by_hand_and_as_a_fraction_of_fedavg():
    context = context_of(CNN, PAPER, 1, TAUS)
    assert target_s(Relief(deadline_s=3.0), context) == 3.0
    assert target_s(Relief(deadline_fraction=0.5), context) == 0.5 * (1.0 + 14 * 5.5)


def test_full_devices_train_everything_and_the_bottleneck_its_block_alone():
    tasks = assignments("relief", d_bar=D)
    assert [len(t.train) for t in tasks] == [14, 14, 14, 4, 4, 4, 1, 1]
    assert set(tasks[7].train) == {"fusion.A.acc"}


def test_free_slots_go_to_the_most_divergent_groups():
    """Client 3 (acc, gyro) has k = 4: its two blocks and the two of highest d_bar among its eight groups."""
    layout_rank = {j: 0.0 for j in CNN.ids} | {"encoder.gyro.2": 9.0, "fusion.B": 8.0, "encoder.hr.1": 99.0}
    task = assignments("relief", d_bar=layout_rank)[3]
    assert set(task.train) == {"fusion.A.acc", "fusion.A.gyro", "encoder.gyro.2", "fusion.B"}


def test_without_any_divergence_ties_fall_in_layout_order():
    task = assignments("relief")[3]
    free = [g.id for g in CNN.accessible(MODALITIES[:2]) if g.role != "fusion_a"]
    assert set(task.train) == {"fusion.A.acc", "fusion.A.gyro", *free[:2]}


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_before_any_divergence_everybody_trains_all_within_reach(name):
    """That is the bootstrap, but for V1 and RELIEF+, which rank nothing: there it is a round like the others."""
    ranks = name not in ("v1", "relief_plus")
    strategy, state = PRESETS[name].config.build(), ServerState(models={"global": {}})
    for round_ in (1, 7):
        tasks = strategy.allocate(state, context_of(CNN, PAPER, round_, TAUS))
        for task, client in zip(tasks, PAPER.clients, strict=True):
            assert set(task.train) == {g.id for g in CNN.accessible(client.modalities)}
            assert task.phase == (BOOTSTRAP if ranks else "train")
    assert strategy.everybody(state) == ranks and not strategy.everybody(state_with({}))
    assert PRESETS[name].config.rounds_needed(1.0) == 1 + ranks, "a search judges no bootstrap"


@pytest.mark.parametrize("name", FORCED)
@settings(max_examples=25, deadline=None)
@given(round_=st.integers(1, 500), seed=st.integers(0, 50), data=st.data())
def test_mandatory_blocks_are_always_trained(name, round_, seed, data):
    d_bar = {j: data.draw(st.floats(0, 10)) for j in CNN.ids}
    for task, client in zip(assignments(name, round_, d_bar, seed), PAPER.clients, strict=True):
        assert {f"fusion.A.{m}" for m in client.modalities} <= set(task.train)
        assert set(task.train) <= {g.id for g in CNN.accessible(client.modalities)}


@pytest.mark.parametrize("name", ["v2", "v3"])
def test_v2_and_v3_force_nothing_but_keep_the_budget(name):
    low = {j: (0.0 if j.startswith("fusion.A") else 5.0) for j in CNN.ids}
    seen = []
    for round_ in range(1, 9):
        tasks = assignments(name, round_, low)
        assert [len(t.train) for t in tasks] == [14, 14, 14, 4, 4, 4, 1, 1]
        seen.append("fusion.A.acc" in tasks[7].train)
    assert not all(seen)
    if name == "v2":
        assert not any(seen), "every other group diverges more"


def test_v2_takes_the_top_k_of_all_its_groups():
    d_bar = {j: 0.0 for j in CNN.ids} | {"head.1": 4.0, "fusion.A.gyro": 3.0, "encoder.acc.1": 2.0, "fusion.B": 1.0}
    assert set(assignments("v2", d_bar=d_bar)[3].train) == {"head.1", "fusion.A.gyro", "encoder.acc.1", "fusion.B"}


@pytest.mark.parametrize("name", ["v3", "v3_mandatory"])
def test_random_choice_differs_by_round_and_client_and_repeats(name):
    rounds = [tuple(frozenset(t.train) for t in assignments(name, r, D)) for r in range(1, 13)]
    again = [tuple(frozenset(t.train) for t in assignments(name, r, D)) for r in range(1, 13)]
    assert rounds == again
    assert len({r[3] for r in rounds}) > 3, "client 3's choice changes from round to round"
    assert any(r[3] != r[4] for r in rounds), "two clients of one type draw for themselves"
    assert rounds != [tuple(frozenset(t.train) for t in assignments(name, r, D, seed=1)) for r in range(1, 13)]


def test_random_choice_does_not_look_at_divergence_nor_at_who_else_takes_part():
    alone = assignments("v3", 4, participants=[3])[0]
    assert alone.train == assignments("v3", 4, D)[3].train


def test_mandatory_only_fills_nothing():
    for task, client in zip(assignments("mandatory_only", d_bar=D), PAPER.clients, strict=True):
        assert set(task.train) == {f"fusion.A.{m}" for m in client.modalities}


def test_v1_trains_all_accessible_groups_every_round():
    for round_ in (1, 2, 7):
        tasks = assignments("v1", round_, D)
        assert [len(t.train) for t in tasks] == [14] * 3 + [8] * 3 + [5] * 2
    assert [t.phase for t in tasks] == ["train"] * 8


def test_plan_explains_the_choice():
    context = context_of(CNN, PAPER, 1, TAUS)
    load = fleet_loads(Relief(), context)[3]
    allocation = plan(Relief(), state_with(D), context, PAPER[3], load, 6.5)
    assert allocation.budget == 4 and len(allocation.groups) == 4
    refused = [o for o in allocation.offers if o.verdict != "chosen"]
    assert len(allocation.offers) == 6 and {o.verdict for o in refused} == {"budget"} and len(refused) == 4
    assert {o.seconds for o in refused} == {1.0 + 5 * 1.3}


class Dear(LinearPlanner):
    """The head takes 50 s more than any other group."""

    def times(self, client, assignment):
        plain = super().times(client, assignment)
        return plain.__class__(backward_s=plain.backward_s + 50.0 * ("head.1" in assignment.train), up_s=plain.up_s)


HEAD_FIRST = state_with({"head.1": 9.0})


def test_a_count_lets_a_dear_group_pass_t_star():
    """|S_n| <= k_n alone: C's two groups are its block and the dear head, 50 s beyond T* (tau = (5 x 5.5 + 50) / 5)."""
    context = context_of(CNN, PAPER, 1, Dear(tau_s=TAUS.tau_s))
    config = Relief(slots_slowest=2)
    assert target_s(config, context) == 1.0 + 2 * 15.5
    tasks = {t.client: t for t in config.build().allocate(HEAD_FIRST, context)}
    assert set(tasks[6].train) == {"fusion.A.acc", "head.1"}
    assert planned_round_s(config, context) == 1.0 + 2 * 5.5 + 50.0


def test_time_can_refuse_what_the_count_allows():
    """k_n comes from the mean time per group; a dearer group is still priced as itself."""
    config = Relief(fill="time")
    context = context_of(CNN, PAPER, 1, Dear(tau_s=TAUS.tau_s))
    allocation = plan(config, HEAD_FIRST, context, PAPER[0], fleet_loads(config, context)[0], 30.0)
    assert "head.1" not in allocation.groups
    assert [o.verdict for o in allocation.offers if o.group == "head.1"] == ["time"]


def test_t_star_within_time_is_the_slowest_mandatory_round():
    """C: 1 + 5.5; the dear head does not matter, no device has to train it."""
    assert target_s(Relief(fill="time"), context_of(CNN, PAPER, 1, Dear(tau_s=TAUS.tau_s))) == 6.5


class Links(LinearPlanner):
    """Client 3's link takes 4 s each way for the whole model."""

    def times(self, client, assignment):
        plain = super().times(client, assignment)
        share = 4.0 if client == 3 else 0.5
        return plain.__class__(backward_s=plain.backward_s, up_s=share, down_s=share)


def test_the_overhead_is_one_constant_the_slowest_link_of_the_fleet():
    context = context_of(CNN, PAPER, 1, Links(tau_s=TAUS.tau_s))
    assert {load.overhead_s for load in fleet_loads(Relief(), context).values()} == {8.0}
    assert target_s(Relief(), context) == 8.0 + 5.5
    assert {load.overhead_s for load in fleet_loads(Relief(fill="time"), context).values()} == {1.0, 8.0}


def test_cover_raises_t_star_until_each_group_has_a_client_for_it():
    """A client of type A trains all 14 for 1 + 14 x 2 = 29 s; the least is 1 + 4 x 2 = 9 s for its blocks."""
    even = LinearPlanner(tau_s=dict.fromkeys(range(8), 2.0))
    context = context_of(CNN, PAPER, 1, even)
    assert target_s(Relief(), context) == 9.0 and target_s(Relief(cover=True), context) == 29.0
    state = state_with({"fusion.B": 9.0})
    trained = {j for t in Relief(cover=True).build().allocate(state, context) for j in t.train}
    assert trained == set(CNN.ids)


@pytest.mark.parametrize("values", [{"slots_slowest": 3}, {"cover": True}, {"deadline_s": 1.0}])
def test_what_raises_or_sets_t_star_is_not_described_as_the_least(values):
    assert "mandatory number of groups" in Relief().build().insight.deadline_text
    assert Relief(**values).build().insight.deadline_text == ""


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"fill": "time", "cover": True}, "cover = True with fill = 'time', which does not read it"),
        ({"fill": "time", "slots_slowest": 2}, "slots_slowest = 2 with fill = 'time', which does not read it"),
        ({"slots_slowest": 2, "deadline_s": 1.0}, "slots_slowest = 2 and deadline_s = 1.0, expected one of them"),
        ({"cover": True, "deadline_fraction": 0.5}, "cover = True beside a given deadline, expected one of them"),
        ({"slots_slowest": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(values, error):
    with pytest.raises(ValueError, match=error):
        Relief(**values)


@given(
    st.sampled_from(["relief", "v2", "v3", "v2_mandatory", "v3_mandatory", "mandatory_only"]),
    st.permutations(CNN.ids),
    st.one_of(st.none(), st.integers(1, 5)),
)
@settings(max_examples=60, deadline=None)
def test_no_round_is_longer_than_the_planned_one(name, ranking, slots):
    """The planned round holds the dearest groups, whatever the divergences turn out to be."""
    context = context_of(CNN, PAPER, 1, Dear(tau_s=TAUS.tau_s))
    config = PRESETS[name].config.model_copy(update={"slots_slowest": slots})
    tasks = config.build().allocate(state_with({j: float(i) for i, j in enumerate(ranking)}), context)
    longest = max(context.planner.times(t.client, t).busy_s for t in tasks)
    assert longest <= planned_round_s(config, context) * (1 + 1e-12)


def test_participants_only():
    assert [t.client for t in assignments("relief", d_bar=D, participants=[2, 6])] == [2, 6]


# Eq. (8) ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_eq_8_only_the_trained_groups_go_up(name):
    for task in assignments(name, d_bar=D):
        assert task.up == task.train and set(task.down) == set(CNN.ids) and not task.keep
        assert all(part == Part() for part in task.up.values())


def test_eq_8_bytes_on_the_wire(tmp_path):
    """Upload = the codec's length for S_n, in receipts of the real trainer; values alone are 4 |S_n|."""
    planner = LinearPlanner(tau_s={0: 0.1, 1: 0.1, 2: 5.0, 3: 5.0})
    run = bench(Relief().build(), tmp_path, planner=planner, build_args={"b_zero": False})
    run.round(0)
    receipts = run.round(1).trained.reduced.receipts
    layout = run.backbone.layout
    assert [len(r.assignment.up) for r in receipts] == [6, 6, 1, 1]
    for r in receipts:
        values = sum(layout[j].numel for j in r.assignment.train)
        assert r.bytes_up == encoded_nbytes(layout, r.assignment.up)
        assert 0 < r.bytes_up - 4 * values - 8 < 40 * len(r.assignment.up)
    assert receipts[2].bytes_up < receipts[0].bytes_up == receipts[0].bytes_down


def test_untrained_groups_move_by_exactly_nothing(tmp_path):
    planner = LinearPlanner(tau_s=dict.fromkeys(range(4), 5.0))
    run = bench(PRESETS["mandatory_only"].config.build(), tmp_path, planner=planner, build_args={"b_zero": False})
    run.round(0)
    before = run.state.models["global"]
    run.round(1)
    after = run.state.models["global"]
    assert {j for j in after if not torch.equal(before[j], after[j])} == {"fusion.A.acc", "fusion.A.hr"}


# Orange box ---------------------------------------------------------------------------------------------------------

LAYOUT = build().layout
ZERO = {g.id: torch.zeros(g.numel) for g in LAYOUT}


def aggregated(name, deltas, fleet=FOUR, d_bar=None, phase="train"):
    """New model and d_bar after ``{client: {group: value}}``; every entry of a group moves by ``value``."""
    strategy = PRESETS[name].config.build()
    sent = [
        update_of(
            task_of(LAYOUT, n, list(groups), phase), {j: torch.full((LAYOUT[j].numel,), v) for j, v in groups.items()}
        )
        for n, groups in deltas.items()
    ]
    tensors = {} if phase == BOOTSTRAP else {D_BAR: to_tensor(d_bar or {}, LAYOUT)}
    state = ServerState(models={"global": ZERO}, tensors=tensors, facts={"kept": True})
    reduced = reduced_of(sent, strategy.reduction, LAYOUT, fleet)
    after = strategy.aggregate(state, reduced, context_of(LAYOUT, fleet, 2))
    assert after.facts == {"kept": True}
    values = {j: v.unique().tolist() for j, v in after.models["global"].items()}
    assert all(len(v) == 1 for v in values.values())
    return {j: v[0] for j, v in values.items()}, from_tensor(after.tensors[D_BAR], LAYOUT)


DELTAS = {
    0: {"fusion.A.hr": 8.0, "fusion.A.acc": 1.0, "fusion.B": 3.0, "head.1": 4.0},
    1: {"fusion.A.acc": 3.0},
    2: {"fusion.A.acc": 5.0, "fusion.B": 6.0},
    3: {"fusion.A.acc": 7.0, "head.1": 2.0},
}


def test_cohort_average_by_hand():
    """A_acc (1+3+5+7)/4, A_hr 8, B (2*3 + 1*6)/3 = 4, head (4+2)/2 = 3, encoders untouched."""
    values, d_bar = aggregated("relief", DELTAS)
    trained = {"fusion.A.acc": 4.0, "fusion.A.hr": 8.0, "fusion.B": 4.0, "head.1": 3.0}
    assert values == {"encoder.acc.1": 0.0, "encoder.hr.1": 0.0, **trained}
    sizes = {j: LAYOUT[j].numel for j in LAYOUT.ids}
    assert d_bar == {
        "fusion.A.acc": pytest.approx(5.0 * sizes["fusion.A.acc"]),
        "fusion.B": pytest.approx(2.25 * sizes["fusion.B"]),
        "head.1": pytest.approx(1.0 * sizes["head.1"]),
    }, "A_hr had one member: no divergence yet"


@pytest.mark.parametrize("name", ["v2", "v2_mandatory"])
def test_v2_dilutes_exactly_absent_members_count_as_zero(name):
    """All over four participants, B without modality weights: 16/4, 8/4, 9/4, 6/4."""
    values, _ = aggregated(name, DELTAS)
    moved = {j: values[j] for j in ("fusion.A.acc", "fusion.A.hr", "fusion.B", "head.1")}
    assert moved == {"fusion.A.acc": 4.0, "fusion.A.hr": 2.0, "fusion.B": 2.25, "head.1": 1.5}


def test_v2s_bootstrap_is_v0s():
    v0, v2 = (aggregated(name, DELTAS, phase=BOOTSTRAP)[0] for name in ("relief", "v2"))
    assert v2 == v0 != aggregated("v2", DELTAS)[0]


@pytest.mark.parametrize("name", ["v1", "v3", "v3_mandatory", "mandatory_only"])
def test_the_other_variants_average_like_v0(name):
    assert aggregated(name, DELTAS) == aggregated("relief", DELTAS)


@settings(max_examples=60)
@given(st.data())
def test_dilution_is_the_members_share_of_the_cohort_mean(data):
    """Lemma 1, term I, for any fleet: V2's step = |trained| / |participants| times V0's, but for B's weights."""
    owned = data.draw(st.lists(st.sampled_from([FULL, ACC]), min_size=2, max_size=10))
    fleet = fleet_of(*owned)
    who = data.draw(st.sets(st.sampled_from(range(len(owned))), min_size=1))
    moves = {n: {"head.1": float(data.draw(st.integers(-8, 8)))} if n in who else {} for n in range(len(owned))}
    diluted, mean = (aggregated(name, moves, fleet=fleet)[0]["head.1"] for name in ("v2", "relief"))
    assert diluted == pytest.approx(mean * len(who) / len(owned), abs=1e-6)


def test_smoothing_goes_on_from_the_stored_average():
    _, d_bar = aggregated("relief", DELTAS, d_bar={"head.1": 10.0, "fusion.A.hr": 6.0})
    assert d_bar["head.1"] == pytest.approx(0.9 * LAYOUT["head.1"].numel + 0.1 * 10.0)
    assert d_bar["fusion.A.hr"] == 6.0


@pytest.mark.parametrize(
    ("name", "group", "client", "phase", "expected"),
    [
        ("relief", "fusion.B", 0, "train", 2.0),
        ("relief", "fusion.B", 2, "train", 1.0),
        ("relief", "fusion.A.acc", 0, "train", 1.0),
        ("relief", "head.1", 0, "train", 1.0),
        ("v2", "fusion.B", 0, "train", 1.0),
        ("v2", "fusion.B", 0, BOOTSTRAP, 2.0),
    ],
)
def test_weights_by_role(name, group, client, phase, expected):
    task = task_of(LAYOUT, client, [group], phase)
    weight = role_weight(PRESETS[name].config, lambda group, client, task: 1.0, LAYOUT[group], FOUR[client], task)
    assert weight == expected


# Whole rounds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_after_the_bootstrap_every_cohort_of_two_has_a_divergence(tmp_path, name):
    planner = LinearPlanner(tau_s={0: 0.1, 1: 0.1, 2: 2.0, 3: 2.0})
    run = bench(PRESETS[name].config.build(), tmp_path, planner=planner, build_args={"b_zero": False})
    for round_ in range(3):
        run.round(round_)
    assert bool(torch.isfinite(run.state.tensors[D_BAR]).all())


def test_equal_devices_and_v1_give_the_same_as_relief(tmp_path):
    """Where time is no constraint (a long deadline), RELIEF trains all accessible groups: V1."""
    finals = []
    for config in (Relief(deadline_s=1e9), PRESETS["v1"].config):
        run = bench(config.build(), tmp_path, planner=EQUAL)
        for round_ in range(3):
            run.round(round_)
        finals.append(run.state.models["global"])
    assert all(torch.equal(finals[0][j], finals[1][j]) for j in LAYOUT.ids)


@pytest.mark.parametrize("field", [{"gamma": 0.0}, {"gamma": 1.0}, {"deadline_s": 0.0}, {"select": "best"}, {"k": 3}])
def test_bad_configuration_is_refused(field):
    with pytest.raises(ValueError, match=next(iter(field))):
        Relief(**field)
