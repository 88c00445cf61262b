"""FedICU (reconstructed): what is sent, what it costs, what the server makes of it, what is frozen."""

from dataclasses import replace
from math import ceil, exp, hypot, log2

import pytest
import torch

from relief_ray.core.client import ClientContext
from relief_ray.core.codec import encoded_nbytes
from relief_ray.core.groups import GroupLayout, ParamGroup, pack
from relief_ray.core.messages import Reduced, ServerState
from relief_ray.core.streams import Streams
from relief_ray.server.aggregation import to_tensor
from relief_ray.strategies import PRESETS
from relief_ray.strategies.fedicu import (
    IMPORTANCE,
    FedICU,
    aggregate,
    choosing_flops,
    frozen,
    importance,
    send_important,
)
from tests.toy import FOUR, FULL, bench, build, context_of, fleet_of, task_of, update_of
from tests.training.scenario import build as build_cnn

LAYOUT, START = build(b_zero=False).layout, build(b_zero=False).params()
CNN = build_cnn()


def random_update(layout, client, seed, groups=None):
    make = torch.Generator().manual_seed(seed)
    task = task_of(layout, client, groups)
    return update_of(task, {j: torch.randn(layout[j].numel, generator=make) for j in task.up})


def collected(updates):
    return Reduced(sums={}, receipts=tuple(u.receipt for u in updates), updates=tuple(updates))


def merged(config, updates, layout=LAYOUT, start=START, fleet=FOUR):
    state = ServerState(models={"global": start})
    return aggregate(config, state, collected(updates), context_of(layout, fleet)).models["global"]


# The client ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["relative", "magnitude"])
@pytest.mark.parametrize("kappa", [0.25, 0.8])
def test_a_client_sends_the_top_of_every_tensor_and_pays_for_a_bit_per_value(kind, kappa):
    config, update = FedICU(kappa=kappa, importance=kind), random_update(LAYOUT, 0, 1)
    sent = send_important(config, client(), update)
    kept = {j: sent.delta[j] != 0 for j in LAYOUT.ids}
    assert all(torch.equal(sent.delta[j][kept[j]], update.delta[j][kept[j]]) for j in LAYOUT.ids)
    scored = {j: importance(kind, update.delta[j], START[j]) for j in LAYOUT.ids}
    tensors = [(scored[g.id], kept[g.id], t) for g in LAYOUT for t in g.tensors if g.role != "fusion_a"]
    pairs = [(s[t.offset : t.offset + t.numel], m[t.offset : t.offset + t.numel]) for s, m, t in tensors]
    blocks = [j for j in LAYOUT.ids if LAYOUT[j].role == "fusion_a"]
    pairs.append(tuple(torch.cat([values[j] for j in blocks]) for values in (scored, kept)))
    for scores, mask in pairs:
        assert int(mask.sum()) == ceil(kappa * len(scores))
        assert mask.all() or scores[mask].min() >= scores[~mask].max()
    assert all(torch.equal(sent.kept[j], kept[j]) for j in LAYOUT.ids)


def client():
    return ClientContext(info=FOUR[0], round=1, layout=LAYOUT, start=START, state={}, streams=Streams(seed=0))


def test_the_most_important_of_the_whole_fusion_matrix_is_sent_by_hand():
    """[4 3 | 2 1; 9 1 | 3 1]: half of it is 9, 4 and both 3, so one of A_hr's four."""
    layout = GroupLayout(
        ParamGroup(id=f"A.{m}", role="fusion_a", modality=m, layer=None, tensors=pack([("a", (2, 2), "weight")]))
        for m in FULL
    )
    moved = {"A.acc": torch.tensor([4.0, 3.0, 9.0, 1.0]), "A.hr": torch.tensor([2.0, 1.0, 3.0, 1.0])}
    seen = replace(client(), layout=layout, start={j: torch.zeros(4) for j in moved})
    config = FedICU(kappa=0.5, importance="magnitude")
    sent = send_important(config, seen, update_of(task_of(layout, 0, None), moved))
    assert sent.delta["A.acc"].tolist() == [4.0, 3.0, 9.0, 0.0] and sent.delta["A.hr"].tolist() == [0.0, 0.0, 3.0, 0.0]
    alone = update_of(task_of(layout, 0, ["A.hr"]), {"A.hr": moved["A.hr"]})
    assert send_important(config, seen, alone).delta["A.hr"].tolist() == [2.0, 0.0, 3.0, 0.0], "acc was not trained"


def test_equal_importance_is_cut_in_row_order_of_the_whole_matrix():
    layout = GroupLayout(
        ParamGroup(id=f"A.{m}", role="fusion_a", modality=m, layer=None, tensors=pack([("a", (2, 1), "weight")]))
        for m in FULL
    )
    update = update_of(task_of(layout, 0, None), {f"A.{m}": torch.ones(2) for m in FULL})
    seen = replace(client(), layout=layout, start={j: torch.zeros(2) for j in layout.ids})
    sent = send_important(FedICU(kappa=0.5, importance="magnitude"), seen, update)
    assert [sent.delta[j].tolist() for j in layout.ids] == [[1.0, 0.0], [1.0, 0.0]], "the first row"


def test_importance_is_relative_by_default():
    delta, origin = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0.1, 1.0, -6.0])
    assert importance("relative", delta, origin).tolist() == pytest.approx([10.0, 2.0, 0.5])
    assert importance("magnitude", delta, origin).tolist() == [1.0, 2.0, 3.0]


def test_upload_is_four_fifths_and_a_bit_per_value(tmp_path):
    run = bench(FedICU().build(), tmp_path)
    receipts = run.round(1).trained.reduced.receipts
    header = encoded_nbytes(LAYOUT, LAYOUT.select()) - 4 * LAYOUT.numel
    fusion = sum(g.numel for g in LAYOUT if g.role == "fusion_a")
    num_kept = sum(ceil(0.8 * t.numel) for g in LAYOUT for t in g.tensors if g.role != "fusion_a") + ceil(0.8 * fusion)
    bits = sum(ceil(g.numel / 8) for g in LAYOUT)
    assert {r.bytes_up for r in receipts} == {header + 4 * num_kept + bits}
    assert {r.bytes_down for r in receipts} == {header + 4 * LAYOUT.numel}
    whole = bench(FedICU(kappa=1.0).build(), tmp_path).round(1).trained.reduced.receipts
    assert {r.bytes_up for r in whole} == {r.bytes_down for r in whole}, "nothing is left out: no bits"


# The server ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["tensor", "global"])
def test_identical_clients_get_their_own_model_back(scope):
    one = random_update(LAYOUT, 0, 5)
    updates = [replace(one, receipt=random_update(LAYOUT, n, 5).receipt) for n in range(4)]
    after = merged(FedICU(kappa=1.0, alpha_scope=scope), updates)
    for j in LAYOUT.ids:
        torch.testing.assert_close(after[j], START[j] + one.delta[j], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("layout", [LAYOUT, CNN.layout], ids=["lora", "dense"])
def test_one_client_gets_its_own_model(layout):
    start = START if layout is LAYOUT else CNN.params()
    update = random_update(layout, 0, 6)
    after = merged(FedICU(kappa=1.0), [update], layout, start, fleet_of(FULL))
    for j in layout.ids:
        torch.testing.assert_close(after[j], start[j] + update.delta[j], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_columns_are_as_long_as_the_clients_on_average(weighting):
    """Of the whole factor where it is LoRA, of the update where it is dense; biases are averaged."""
    updates = [random_update(LAYOUT, n, 10 + n) for n in range(4)]
    weights = torch.tensor([float(c.num_windows) if weighting == "samples" else 1.0 for c in FOUR.clients])
    p = (weights / weights.sum()).double()
    after = merged(FedICU(weighting=weighting), updates)
    for group in LAYOUT:
        for t in group.tensors:
            span = slice(t.offset, t.offset + t.numel)
            base = START[group.id][span] if "lora" in t.kind else torch.zeros(t.numel)
            sent = torch.stack([(base + u.delta[group.id][span]).double() for u in updates])
            new = (after[group.id][span] - (START[group.id][span] - base)).double()
            if len(t.shape) == 1:
                torch.testing.assert_close(new, p @ sent, rtol=1e-4, atol=1e-6)
            else:
                lengths = p @ sent.view(4, *t.shape).norm(dim=1)
                torch.testing.assert_close(new.view(t.shape).norm(dim=0), lengths, rtol=1e-5, atol=1e-6)


def test_with_the_means_length_dense_steps_are_as_long_as_a_means():
    """Every dense matrix, column by column; the default's are longer, by up to the square root of three clients."""
    updates = [random_update(CNN.layout, n, 20 + n) for n in range(3)]
    start, ratios = CNN.params(), {}
    for length in ("mean_of_lengths", "length_of_mean"):
        after = merged(FedICU(length=length), updates, CNN.layout, start)
        for group in CNN.layout:
            for t in (t for t in group.tensors if len(t.shape) > 1 and group.role != "fusion_a"):
                span = slice(t.offset, t.offset + t.numel)
                step = (after[group.id] - start[group.id])[span].view(t.shape[0], -1).norm(dim=0)
                mean = torch.stack([u.delta[group.id][span] for u in updates]).mean(0).view(t.shape[0], -1)
                ratios.setdefault(length, []).append(step / mean.norm(dim=0))
    longer, equal = (torch.cat(ratios[length]) for length in ("mean_of_lengths", "length_of_mean"))
    torch.testing.assert_close(equal, torch.ones_like(equal), rtol=1e-4, atol=0)
    assert bool((longer > 1).all()) and 1.3 < float(longer.mean()) < 3


def test_a_convolution_is_split_by_input_channel_and_tap():
    updates = [random_update(CNN.layout, n, 20 + n) for n in range(3)]
    start = CNN.params()
    after = merged(FedICU(), updates, CNN.layout, start)
    spec = CNN.layout["encoder.acc.2"].tensors[0]
    moved = (after["encoder.acc.2"] - start["encoder.acc.2"])[: spec.numel].view(6, 20)
    sent = torch.stack([u.delta["encoder.acc.2"][: spec.numel].view(6, 20) for u in updates])
    torch.testing.assert_close(moved.norm(dim=0), sent.norm(dim=1).mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("scope", "temperature", "agreed"),
    [
        ("tensor", 1.0, ((0.5, 0.5, 0.0), (0.0, 0.5, 0.5))),
        ("global", 1.0, ((0.25, 0.5, 0.25), (0.25, 0.5, 0.25))),
        ("tensor", 0.1, ((5.0, 5.0, 0.0), (0.0, 5.0, 5.0))),
        ("global", 0.1, ((2.5, 5.0, 2.5), (2.5, 5.0, 2.5))),
    ],
)
def test_agreement_by_tensor_or_over_all_tensors_by_hand(scope, temperature, agreed):
    """Two matrices of one column: clients 0 and 1 agree on the first, 1 and 2 on the second; ``agreed`` is s / T."""
    layout = GroupLayout(
        ParamGroup(id=f"head.{i}", role="head", modality=None, layer=i, tensors=pack([("w", (2, 1), "weight")]))
        for i in (1, 2)
    )
    moved = {"head.1": ([1.0, 0.0], [1.0, 0.0], [0.0, 1.0]), "head.2": ([0.0, 1.0], [1.0, 0.0], [1.0, 0.0])}
    updates = [update_of(task_of(layout, n, None), {j: torch.tensor(x[n]) for j, x in moved.items()}) for n in range(3)]
    start = {j: torch.zeros(2) for j in layout.ids}
    after = merged(FedICU(alpha_scope=scope, temperature=temperature), updates, layout, start)
    for j, s in zip(layout.ids, agreed, strict=True):
        sums = [sum(exp(a) * x[i] for a, x in zip(s, moved[j], strict=True)) for i in (0, 1)]
        assert after[j].tolist() == pytest.approx([x / hypot(*sums) for x in sums], rel=1e-6), "of length 1 as all are"


def test_the_order_of_clients_does_not_matter():
    updates = [random_update(LAYOUT, n, 30 + n) for n in range(4)]
    shuffled = [replace(updates[i], receipt=u.receipt) for i, u in zip((2, 0, 3, 1), updates, strict=True)]
    a, b = merged(FedICU(), updates), merged(FedICU(), shuffled)
    for j in LAYOUT.ids:
        torch.testing.assert_close(a[j], b[j], rtol=1e-6, atol=1e-6)


def test_a_group_that_nobody_changed_stays():
    still = {j: torch.zeros(LAYOUT[j].numel) for j in LAYOUT.ids}
    after = merged(FedICU(), [update_of(task_of(LAYOUT, n, None), still) for n in range(4)])
    for j in LAYOUT.ids:
        torch.testing.assert_close(after[j], START[j], rtol=1e-6, atol=1e-7)


def test_a_client_that_lacks_a_sensor_gains_weight_on_the_fusion_matrix():
    """Masked features, 3 of 8 own the rare sensor, a third of the columns: unchanged LoRA columns agree perfectly."""
    from relief_ray.strategies.fedicu import agreement, split_columns

    make = torch.Generator().manual_seed(0)
    common, rare = torch.randn(8, 80, generator=make), torch.randn(8, 40, generator=make)
    moved = [common + 0.6 * torch.randn(8, 80, generator=make) for _ in range(8)]
    blocks = [rare + 0.6 * torch.randn(8, 40, generator=make) if n < 3 else rare for n in range(8)]
    for x, spread in ((blocks, 0.0), ([torch.cat(pair, 1) for pair in zip(moved, blocks, strict=True)], 0.02)):
        alpha = agreement([split_columns(torch.stack(x).double())[1]], 1.0)
        assert float(alpha[:3].max()) < 1 / 8 < float(alpha[3:].min())
        assert float(alpha[3:].max() - alpha[3:].min()) <= spread


# What it costs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "per_value"), [("relative", 5), ("magnitude", 2)])
def test_choosing_what_to_send_is_charged_once_a_round_by_hand(tmp_path, kind, per_value):
    """LoRA factors of acc (2 x 16, 6 x 2) and hr (2 x 8, 6 x 2), one fusion matrix 2 x 12, its B, the head."""
    sizes = (32, 12, 16, 12, 24, 10, 15, 3)
    assert sum(sizes) == LAYOUT.numel
    run = bench(FedICU(importance=kind).build(), tmp_path, epochs=2)
    expected = sum(n * (per_value + log2(n)) for n in sizes)
    for receipt in run.round(1).trained.reduced.receipts:
        assert receipt.work.num_steps in (4, 6) and receipt.work.extra_flops == pytest.approx(expected)


def test_a_frozen_group_is_not_chosen_from_and_who_sends_everything_chooses_nothing(tmp_path):
    whole, part = (choosing_flops(FedICU(), LAYOUT, LAYOUT.select(j)) for j in (None, ["fusion.B", "head.1"]))
    assert part == pytest.approx(sum(n * (5 + log2(n)) for n in (10, 15, 3))) and whole > part
    run = bench(PRESETS["fedicu_table"].build(), tmp_path)
    assert [r.work.extra_flops for r in run.round(1).trained.reduced.receipts] == [0.0] * 4


# Freezing -----------------------------------------------------------------------------------------------------------


def test_the_least_important_groups_nearest_to_a_fifth_are_frozen():
    """The sizes' sum nearest to the wanted share; groups that nobody trained last time come back."""
    config, ids = FedICU(freeze_unimportant=True), LAYOUT.ids
    sizes = {j: LAYOUT[j].numel for j in ids}
    goal = 0.2 * LAYOUT.numel
    for order in (ids, ids[::-1]):
        chosen = frozen(config, {j: float(i) for i, j in enumerate(order)}, LAYOUT)
        sums = [sum(sizes[j] for j in order[:k]) for k in range(len(order) + 1)]
        assert chosen == order[: min(range(len(sums)), key=lambda k: abs(sums[k] - goal))]
    assert frozen(config, {}, LAYOUT) == () == frozen(FedICU(), dict.fromkeys(ids, 1.0), LAYOUT)


def test_frozen_groups_are_neither_trained_nor_sent_and_thaw(tmp_path):
    run = bench(FedICU(kappa=1.0, freeze_unimportant=True, freeze_share=0.3).build(), tmp_path)
    first = run.round(1).tasks[0]
    before = run.state
    second = run.round(2).tasks[0]
    still = set(LAYOUT.ids) - set(second.train)
    assert set(first.train) == set(LAYOUT.ids) and still and second.up == second.train
    assert all(torch.equal(before.models["global"][j], run.state.models["global"][j]) for j in still)
    third = run.strategy.allocate(run.state, context_of(LAYOUT, round_=3))[0]
    assert still <= set(third.train)


def test_importance_of_groups_travels_in_the_state():
    updates = [random_update(LAYOUT, n, 40 + n, ["head.1", "fusion.B"]) for n in range(2)]
    state = aggregate(FedICU(), ServerState(models={"global": START}), collected(updates), context_of(LAYOUT))
    change = torch.stack([u.delta["head.1"].abs().mean() for u in updates]).mean()
    expected = float(change / START["head.1"].abs().mean())
    importance = dict(zip(LAYOUT.ids, state.tensors[IMPORTANCE].tolist(), strict=True))
    assert importance["head.1"] == pytest.approx(expected, rel=1e-5)
    assert {j for j, v in importance.items() if v == v} == {"head.1", "fusion.B"}
    assert to_tensor({}, LAYOUT).isnan().all()


def test_presets():
    assert PRESETS["fedicu"] == FedICU() and not FedICU().freeze_unimportant and FedICU().kappa == 0.8
    assert PRESETS["fedicu_table"] == FedICU(kappa=1.0, freeze_unimportant=True)


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
@pytest.mark.parametrize("engine", ["naive", "reuse"])
@pytest.mark.parametrize("preset", ["fedicu", "fedicu_table"])
def test_both_missing_modes_and_engines_stay_finite(missing, engine, preset, tmp_path):
    run = bench(PRESETS[preset].build(), tmp_path, missing=missing, engine=engine)
    run.round(1), run.round(2, participants=[1, 3]), run.round(3)
    assert all(bool(torch.isfinite(theta).all()) for theta in run.state.models["global"].values())
