"""Eqs. (3) and (4), the reduction tree, and what must never be summed."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relief_ray.core.groups import WHOLE, GroupLayout, ParamGroup, Part, pack
from relief_ray.core.messages import Assignment, Reduced, WeightedSum
from relief_ray.server import aggregation as agg
from relief_ray.server import reduction as red
from relief_ray.strategies.relief import Relief
from tests.toy import FOUR, build, fleet_of, reduced_of, sum_block, sum_of, task_of, update_of

UNIFORM = WeightedSum(weight=agg.uniform, bucket=agg.one_bucket)
BY_SAMPLES = WeightedSum(weight=agg.by_samples, bucket=agg.one_bucket)


def group(name, role, modality=None, numel=2):
    tensors = pack([("w", (1, numel), "weight")])
    return ParamGroup(id=name, role=role, modality=modality, layer=None, tensors=tensors)


TINY = GroupLayout(
    [group("A.acc", "fusion_a", "acc"), group("A.hr", "fusion_a", "hr"), group("B", "fusion_b"), group("H", "head")]
)


def updates(layout, deltas):
    """``{client: {group: values}}`` as sound updates."""
    sent = []
    for client, groups in deltas.items():
        task = task_of(layout, client, groups)
        sent.append(update_of(task, {j: torch.tensor(v, dtype=torch.float32) for j, v in groups.items()}))
    return sent


def random_updates(layout, fleet, seed, groups_of=lambda n: None):
    make = torch.Generator().manual_seed(seed)
    sent = []
    for client in fleet.clients:
        task = task_of(layout, client.id, groups_of(client.id))
        delta = {j: torch.randn(layout[j].numel, generator=make) * 10.0 ** (3 * (client.id % 9) - 12) for j in task.up}
        sent.append(update_of(task, delta))
    return sent


# Eqs. (3) and (4) by hand -------------------------------------------------------------------------------------------


def test_eq_3_mean_over_the_active_cohort():
    """A_acc trained by clients 0 and 2: (2 + 4) / 2 and (-1 + 3) / 2; A_hr by client 1 alone: its own update."""
    deltas = {0: {"A.acc": [2.0, -1.0]}, 1: {"A.hr": [5.0, 7.0]}, 2: {"A.acc": [4.0, 3.0]}}
    reduced = reduced_of(updates(TINY, deltas), UNIFORM, TINY, FOUR)
    step = agg.mean_step(reduced.sums["global"], agg.over_members, TINY)
    assert step["A.acc"].tolist() == [3.0, 1.0]
    assert step["A.hr"].tolist() == [5.0, 7.0]
    assert set(step) == {"A.acc", "A.hr"}


def test_eq_4_b_weighs_by_number_of_modalities_over_those_that_trained_it():
    """Clients 0 (2 sensors), 2 (1 sensor) trained B; client 1 did not: weights 2/3 and 1/3."""
    deltas = {0: {"B": [3.0, 0.0]}, 1: {"H": [1.0, 1.0]}, 2: {"B": [0.0, 6.0]}}
    relief = Relief().build()
    reduced = reduced_of(updates(TINY, deltas), relief.reduction, TINY, FOUR)
    step = agg.mean_step(reduced.sums["global"], agg.over_members, TINY)
    assert step["B"].tolist() == pytest.approx([2.0, 2.0], abs=1e-15)
    assert reduced.sums["global"]["B"].weight == 3.0, "|M_0| + |M_2|; the common 1/M cancels"
    assert step["H"].tolist() == [1.0, 1.0]


def test_eq_4_common_factor_one_over_m_cancels():
    """The paper writes |M_n|/M on both sides of the fraction; any M gives the same w_n."""
    sizes = [4, 4, 2, 1]
    for num_modalities in (4, 7):
        paper = [(s / num_modalities) / sum(k / num_modalities for k in sizes) for s in sizes]
        assert paper == pytest.approx([s / sum(sizes) for s in sizes], abs=1e-15)
    fleet = fleet_of(*(("a", "b", "c", "d")[:s] for s in sizes), modalities=("a", "b", "c", "d"))
    deltas = {n: {"B": [float(n == 0), float(n == 3)]} for n in range(4)}
    reduced = reduced_of(updates(TINY, deltas), Relief().build().reduction, TINY, fleet)
    assert agg.mean_step(reduced.sums["global"], agg.over_members, TINY)["B"].tolist() == [4 / 11, 1 / 11]


def test_collected_updates_have_the_mean_of_their_sums_and_weight_zero_is_left_out():
    """(1 * 2 + 3 * 4) / 4; a group that only clients of weight 0 sent is no step at all."""
    given = {0: {"A.acc": [2.0, -1.0]}, 1: {"A.hr": [5.0, 7.0]}, 2: {"A.acc": [4.0, 3.0], "B": [1.0, 1.0]}}
    step = agg.mean_of(updates(TINY, given), [1.0, 0.0, 3.0])
    assert {j: x.tolist() for j, x in step.items()} == {"A.acc": [3.5, 2.0], "B": [1.0, 1.0]}
    everyone = random_updates(TINY, FOUR, 3)
    summed = reduced_of(everyone, BY_SAMPLES, TINY, FOUR)
    expected = agg.mean_step(summed.sums["global"], agg.over_members, TINY)
    mean = agg.mean_of(everyone, [float(c.num_windows) for c in FOUR.clients])
    for j in TINY.ids:
        torch.testing.assert_close(mean[j], expected[j])
    assert agg.mean_of([], [1.0] * 4) == {}


def test_samples_weights_count_windows():
    """Clients have 6, 7, 8, 9 windows."""
    deltas = {0: {"H": [1.0, 0.0]}, 3: {"H": [0.0, 1.0]}}
    reduced = reduced_of(updates(TINY, deltas), BY_SAMPLES, TINY, FOUR)
    assert agg.mean_step(reduced.sums["global"], agg.over_members, TINY)["H"].tolist() == [6 / 15, 9 / 15]


def test_over_participants_counts_the_absent_as_zero_change():
    """Lemma 1, term I: two of four trained A_acc, so the mean halves."""
    deltas = {0: {"A.acc": [2.0, 2.0]}, 1: {"H": [1.0, 1.0]}, 2: {"A.acc": [6.0, 0.0]}, 3: {"H": [3.0, 1.0]}}
    reduced = reduced_of(updates(TINY, deltas), UNIFORM, TINY, FOUR)
    total = agg.over_participants(UNIFORM, reduced, FOUR)
    step = agg.mean_step(reduced.sums["global"], total, TINY)
    assert step["A.acc"].tolist() == [2.0, 0.5]
    assert {j: part.members for j, part in reduced.sums["global"].items()} == {"A.acc": (0, 2), "H": (1, 3)}


# Weights sum to one -------------------------------------------------------------------------------------------------

owned = st.lists(st.sets(st.sampled_from("abcd"), min_size=1), min_size=1, max_size=12)


@given(owned, st.sampled_from(["uniform", "samples"]), st.data())
def test_weights_of_every_group_sum_to_one(sets, weighting, data):
    """If all members moved by exactly 1, the mean step is 1, whoever they are; B to 1e-12."""
    fleet = fleet_of(*(sorted(s) for s in sets), modalities=tuple("abcd"))
    who = data.draw(st.sets(st.sampled_from(range(len(sets))), min_size=1))
    deltas = {n: {"B": [1.0, 1.0], "H": [1.0, 1.0]} for n in sorted(who)}
    for reduction in (Relief(weighting=weighting).build().reduction, UNIFORM, BY_SAMPLES):
        reduced = reduced_of(updates(TINY, deltas), reduction, TINY, fleet)
        for total in (agg.over_members, agg.over_participants(reduction, reduced, fleet)):
            step = agg.mean_step(reduced.sums["global"], total, TINY)
            assert all(abs(v - 1.0) <= 1e-12 for j in ("B", "H") for v in step[j].tolist())


# apply_step ---------------------------------------------------------------------------------------------------------


def test_groups_nobody_trained_stay_the_very_same_tensor():
    theta = {"A.acc": torch.tensor([0.1, -0.0]), "B": torch.tensor([1.0, 2.0])}
    after = agg.apply_step(theta, {"B": torch.tensor([0.5, 0.5], dtype=torch.float64)})
    assert after["A.acc"] is theta["A.acc"]
    assert after["B"].tolist() == [1.5, 2.5] and after["B"].dtype == torch.float32


def test_the_step_is_added_in_float64_and_rounded_once():
    theta = {"H": torch.tensor([1.0], dtype=torch.float32)}
    step = torch.tensor([2.0**-24 + 2.0**-50], dtype=torch.float64)  # just above half a float32 ulp of 1
    assert agg.apply_step(theta, {"H": step})["H"].item() == 1.0 + 2.0**-23
    assert (theta["H"] + step.float()).item() == 1.0, "float32 arithmetic would have lost it"


def test_parts_are_added_where_they_belong_and_nowhere_else():
    """``A`` of encoder.acc.1 moves by 1; its B, and every other group, stays bit for bit."""
    layout = build(b_zero=False).layout
    theta = build(b_zero=False).params()
    only_a = {"encoder.acc.1": Part(kinds=frozenset({"lora_a"}))}
    step = {"encoder.acc.1": torch.ones(layout.num_values(only_a), dtype=torch.float64)}
    after = agg.apply_parts(theta, step, only_a, layout)
    before, moved = (layout.unflatten("encoder.acc.1", t["encoder.acc.1"]) for t in (theta, after))
    assert torch.equal(moved["b"], before["b"]) and torch.allclose(moved["a"], before["a"] + 1)
    assert all(after[j] is theta[j] for j in layout.ids if j != "encoder.acc.1")
    whole = agg.apply_parts(theta, {"head.1": step["encoder.acc.1"][:18]}, layout.select(["head.1"]), layout)
    assert torch.equal(whole["head.1"], agg.apply_step(theta, {"head.1": step["encoder.acc.1"][:18]})["head.1"])


# The reduction tree -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_clients", "sizes"),
    [
        (0, []),
        (1, [1]),
        (8, [1] * 8),
        (9, [1, 1, 1, 1, 1, 1, 1, 2]),
        (10, [1, 1, 1, 2, 1, 1, 1, 2]),
        (20, [2, 3, 2, 3, 2, 3, 2, 3]),
        (100, [12, 13, 12, 13, 12, 13, 12, 13]),
    ],
)
def test_block_sizes(num_clients, sizes):
    tasks = [Assignment(client=c, down={}, train={}, up={}, epochs=1) for c in range(num_clients)]
    assert [len(block) for block in red.blocks(tasks)] == sizes


@given(st.sets(st.integers(0, 60), min_size=1, max_size=40), st.randoms())
def test_blocks_are_consecutive_in_client_order_whatever_arrives(clients, shuffler):
    tasks = [Assignment(client=c, down={}, train={}, up={}, epochs=1) for c in clients]
    shuffler.shuffle(tasks)
    cut = red.blocks(tasks)
    assert [t.client for block in cut for t in block] == sorted(clients)
    sizes = [len(block) for block in cut]
    assert max(sizes) - min(sizes) <= 1 and len(cut) == min(len(clients), red.NUM_BLOCKS)
    if len(cut) == red.NUM_BLOCKS:
        assert sum(sizes[:4]) == len(clients) // 2 and sum(sizes[::2]) <= sum(sizes[1::2]) <= sum(sizes[::2]) + 4


def same_bits(first, second):
    assert first.keys() == second.keys()
    for bucket in first:
        assert first[bucket].keys() == second[bucket].keys()
        for j, a in first[bucket].items():
            b = second[bucket][j]
            assert torch.equal(a.weighted, b.weighted) and torch.equal(a.plain, b.plain)
            assert (a.weight, a.sq_norm, a.members) == (b.weight, b.sq_norm, b.members)


@settings(max_examples=40)
@given(st.integers(1, 14), st.integers(1, 5), st.integers(0, 99), st.randoms())
def test_the_sum_is_the_same_for_any_hosts_and_any_arrival(num_clients, num_hosts, seed, shuffler):
    """Blocks dealt to hosts at random, run and returned in any order, put back by block number: the same bits."""
    fleet = fleet_of(*[("acc", "hr"), ("acc",)][: num_clients % 2 + 1] * ((num_clients + 1) // 2 + 1))
    fleet = replace(fleet, clients=fleet.clients[:num_clients])
    reduction = Relief(weighting="samples").build().reduction
    sent = {u.receipt.assignment.client: u for u in random_updates(TINY, fleet, seed)}
    tasks = [u.receipt.assignment for u in sent.values()]
    expected = reduced_of(list(sent.values()), reduction, TINY, fleet).sums

    shuffler.shuffle(tasks)
    jobs = list(enumerate(red.blocks(tasks)))
    shuffler.shuffle(jobs)
    hosts = [jobs[h::num_hosts] for h in range(num_hosts)]
    shuffler.shuffle(hosts)
    done = {
        number: sum_block([sent[t.client] for t in block], reduction, TINY, fleet)
        for host in hosts
        for number, block in host
    }
    same_bits(red.merge_blocks(done[n] for n in sorted(done)), expected)


def test_order_matters_to_the_bits_so_the_tree_must_fix_it():
    """The guard of the test above: another order does give other bits, so equality there means something."""
    fleet = fleet_of(*[("acc", "hr")] * 9)
    sent = random_updates(TINY, fleet, 3)
    forward = sum_block(sent, UNIFORM, TINY, fleet)
    backward = sum_block(reversed(sent), UNIFORM, TINY, fleet)
    assert any(not torch.equal(forward["global"][j].plain, backward["global"][j].plain) for j in TINY.ids)


def test_one_pass_sums_are_the_direct_sums():
    fleet = fleet_of(*[("acc", "hr")] * 6)
    sent = random_updates(TINY, fleet, 1)
    part = sum_block(sent, BY_SAMPLES, TINY, fleet)["global"]["B"]
    stack = torch.stack([u.delta["B"].double() for u in sent])
    weights = torch.tensor([float(c.num_windows) for c in fleet.clients], dtype=torch.float64)
    torch.testing.assert_close(part.weighted, (weights[:, None] * stack).sum(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(part.plain, stack.sum(0), rtol=1e-12, atol=1e-300)
    assert part.sq_norm == pytest.approx(float(stack.square().sum()), rel=1e-12)
    assert part.members == tuple(range(6)) and part.weighted.dtype == torch.float64


def test_unit_weights_share_one_tensor():
    part = sum_block(random_updates(TINY, FOUR, 0), UNIFORM, TINY, FOUR)["global"]["H"]
    assert part.weighted is part.plain


def test_weights_of_one_among_others_are_not_confused_with_unit_weights():
    """Client 2 weighs 1 for B, client 0 weighs 2: the weighted sum is not the plain one."""
    deltas = {2: {"B": [1.0, 0.0]}, 0: {"B": [1.0, 0.0]}}
    part = reduced_of(updates(TINY, deltas), Relief().build().reduction, TINY, FOUR).sums["global"]["B"]
    assert part.weighted.tolist() == [3.0, 0.0] and part.plain.tolist() == [2.0, 0.0]


def test_buckets_are_kept_apart():
    by_parity = WeightedSum(weight=agg.uniform, bucket=lambda task: f"cluster.{task.client % 2}")
    sums = reduced_of(random_updates(TINY, FOUR, 0), by_parity, TINY, FOUR).sums
    assert {b: sums[b]["H"].members for b in sums} == {"cluster.0": (0, 2), "cluster.1": (1, 3)}


def test_different_parts_of_a_group_cannot_be_summed():
    layout = build().layout
    only_a = Part(kinds=frozenset({"lora_a"}))
    sent = []
    for client, part in ((0, Part()), (1, only_a)):
        up = {"encoder.acc.1": part}
        task = Assignment(client=client, down={}, train=up, up=up, epochs=1)
        sent.append(update_of(task, {"encoder.acc.1": torch.ones(layout.num_values(up))}))
    with pytest.raises(ValueError, match=r"'encoder.acc.1': clients \(0,\) and \(1,\).*use Collect"):
        sum_block(sent, UNIFORM, layout, FOUR)


def test_a_client_counts_once():
    sent = random_updates(TINY, FOUR, 0)
    with pytest.raises(AssertionError, match="counts twice"):
        sum_block([sent[0], sent[0]], UNIFORM, TINY, FOUR)


def test_nothing_to_merge():
    assert red.merge_blocks([]) == {}
    assert agg.mean_step({}, agg.over_members, TINY) == {}
    assert (
        agg.over_participants(UNIFORM, Reduced(sums={}, receipts=()), FOUR)(TINY["H"], sum_of(TINY, "H", [[1.0]])) == 0
    )


# check_update -------------------------------------------------------------------------------------------------------

LAYOUT = build().layout
PARTS = {"encoder.acc.1": Part(kinds=frozenset({"lora_a"})), "fusion.A.acc": Part(rank=1), "head.1": Part()}


def sound():
    task = Assignment(client=2, down={}, train=PARTS, up=PARTS, epochs=1)
    delta = {j: torch.linspace(-1, 1, LAYOUT.num_values({j: part})) for j, part in PARTS.items()}
    return update_of(task, delta)


def test_a_sound_update_passes():
    assert agg.check_update(sound(), LAYOUT) is None
    nothing = Assignment(client=0, down={}, train={}, up={}, epochs=1)
    assert agg.check_update(update_of(nothing, {}), LAYOUT) is None


positions = st.integers(0, 10**6)
bad_values = st.sampled_from([float("nan"), float("inf"), -float("inf")])
group_ids = st.sampled_from(sorted(PARTS))


@settings(max_examples=300)
@given(st.data())
def test_every_mutation_is_refused_and_named(data):
    update, j = sound(), data.draw(group_ids)
    delta, kind = dict(update.delta), data.draw(st.sampled_from(["missing", "extra", "dtype", "shape", "finite"]))
    if kind == "missing":
        del delta[j]
        named = j
    elif kind == "extra":
        named = data.draw(st.sampled_from([i for i in LAYOUT.ids if i not in PARTS] + ["nowhere"]))
        delta[named] = torch.zeros(data.draw(st.integers(0, 9)))
    elif kind == "dtype":
        delta[j] = delta[j].to(data.draw(st.sampled_from([torch.float64, torch.float16, torch.int64, torch.bool])))
        named = j
    elif kind == "shape":
        wrong = data.draw(st.integers(0, 40).filter(lambda n: n != len(delta[j])))
        delta[j] = data.draw(st.sampled_from([torch.zeros(wrong), delta[j][None], delta[j].reshape(-1, 1)]))
        named = j
    else:
        delta[j] = delta[j].clone()
        delta[j][data.draw(positions) % len(delta[j])] = data.draw(bad_values)
        named = j
    reason = agg.check_update(red.measured(replace(update, delta=delta)), LAYOUT)
    assert reason is not None and repr(named) in reason


@given(bad_values)
def test_statistics_that_are_not_finite_are_refused(value):
    update = sound()
    receipt = replace(update.receipt, stats={"label": torch.tensor([1]), "difficulty": torch.tensor([0.5, value])})
    assert agg.check_update(replace(update, receipt=receipt), LAYOUT) == "statistic 'difficulty' is not finite"


def test_the_mean_of_equal_models_is_that_model_to_the_bit():
    model = {"g": torch.randn(50, generator=torch.Generator().manual_seed(0))}
    assert all(torch.equal(agg.mean_models([model] * n)["g"], model["g"]) for n in range(1, 12))
    assert agg.mean_models([{"g": torch.tensor([1.0])}, {"g": torch.tensor([2.0])}])["g"].item() == 1.5


def test_a_model_of_weight_one_comes_back_to_the_bit_and_shares_are_normalised():
    third, five = torch.tensor([1.0 / 3.0]), torch.tensor([5.0])
    assert torch.equal(agg.mix([(1.0, third), (0.0, five)]), third) and torch.equal(agg.mix([(7.0, third)]), third)
    assert agg.mix([(3.0, torch.tensor([1.0])), (1.0, five)]).tolist() == [2.0]
    models = {"client.0": {"g": third, "h": torch.tensor([9.0])}, "client.2": {"g": five}}
    assert agg.mix_clients(models, [0, 2], [0.0, 8.0, 2.0], ["g"]) == {"g": five}


def test_a_weighted_mean_by_hand():
    parts = [(1.0, torch.tensor([0.0, 1.0])), (3.0, torch.tensor([4.0, 1.0]))]
    assert torch.equal(agg.weighted_mean(parts), torch.tensor([3.0, 1.0]))


@given(bad_values)
def test_personal_state_that_is_not_finite_is_refused(value):
    update = replace(sound(), state={"head.1": torch.tensor([0.0, value])})
    assert agg.check_update(update, LAYOUT) == "personal state 'head.1' is not finite"
    assert agg.check_update(replace(update, state={"head.1": torch.zeros(2), "n": torch.tensor(3)}), LAYOUT) is None


def test_means_go_over_the_members_of_several_buckets():
    layout = build().layout
    one = {"fusion.B": sum_of(layout, "fusion.B", [[1.0], [2.0]], [1.0, 3.0])}
    two = {"fusion.B": sum_of(layout, "fusion.B", [[9.0]]), "head.1": sum_of(layout, "head.1", [[5.0]])}
    mean = agg.means([one, two])
    assert mean["fusion.B"].tolist() == [(1.0 + 6.0 + 9.0) / 5.0] and mean["head.1"].tolist() == [5.0]
    assert agg.means([]) == {}


def test_a_mean_of_personal_parts_may_weigh_and_leave_out():
    layout = build().layout
    theta = {"head.1": torch.zeros(layout["head.1"].numel)}
    states = {n: {"head.1": torch.full((layout["head.1"].numel,), float(n))} for n in (1, 2, 9)}
    mean = agg.mean_personal(theta, states, {"head.1": WHOLE}, layout, {1: 3.0, 2: 1.0, 7: 5.0})
    assert bool((mean["head.1"] == 1.25).all())
