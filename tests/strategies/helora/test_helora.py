"""HeLoRA: ranks by device type, padding, rank-weighted means; on a dense model leading rows."""

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from relief_ray.core.codec import encoded_nbytes
from relief_ray.core.groups import WHOLE, GroupLayout, Part
from relief_ray.core.messages import Assignment, Fleet, ServerState
from relief_ray.strategies.fedavg import FedAvg
from relief_ray.strategies.helora import HeLoRA, allocate, by_type, filling, relative_size, sizes, weight
from relief_ray.support.errors import UserError
from tests import toy
from tests.toy import ACC, FOUR, FULL, RANK, bench, build, context_of, reduced_of, update_of
from tests.training.scenario import build as build_cnn

LAYOUT = build().layout
TYPES = replace(FOUR, clients=tuple(replace(c, device=d) for c, d in zip(FOUR.clients, "AABC", strict=True)))
LORA = ("fusion.A.acc", "fusion.A.hr", "fusion.B", "encoder.acc.1", "encoder.hr.1")
PADDINGS = ("zero", "mean", "linear", "adjacent")
SEEDED = {"build_args": {"b_zero": False}}


def tensors(group, theta):
    return LAYOUT.unflatten(group, theta[group])


# Sizes and weights --------------------------------------------------------------------------------------------------


def test_default_ranks_are_8_6_4_and_at_least_one():
    eight = [replace(FOUR[0], device=d) for d in "ABC"]
    group = LAYOUT["fusion.B"]
    wide = replace(group, tensors=(replace(group.tensors[0], shape=(5, 8)),))
    fleet = Fleet(clients=tuple(eight), modalities=FULL)
    parts = [sizes(HeLoRA(), GroupLayout([wide]), fleet, c)["fusion.B"] for c in eight]
    assert parts == [WHOLE, Part(rank=6), Part(rank=4)]
    assert [relative_size(wide, p) for p in parts] == [1.0, 0.75, 0.5]
    assert sizes(HeLoRA(rank_share={"C": 0.01}), LAYOUT, TYPES, TYPES[3])["fusion.B"] == Part(rank=1)
    assert sizes(HeLoRA(), LAYOUT, TYPES, TYPES[3])["head.1"] == WHOLE, "a dense head is trained by all"


def test_a_share_must_be_a_share():
    for wrong in ({"A": 0.0}, {"B": 1.5}, (0.5, 0.0), ()):
        with pytest.raises(ValidationError):
            HeLoRA(rank_share=wrong)
    with pytest.raises(
        UserError, match=r"strategy.width names the device types \['D'\], expected some of \['A', 'B', 'C'\]"
    ):
        HeLoRA(width={"D": 0.5}).build().adapt(LAYOUT, TYPES)


def test_shares_are_linear_along_the_order_of_five_types():
    """Of 1, 0.75 and 0.5 the second of five types has the mean of the first two, and so on."""
    names = ("hub", "gateway", "phone", "watch", "ring")
    clients = tuple(replace(FOUR[0], id=n, device=name) for n, name in enumerate(names))
    fleet = Fleet(clients=clients, modalities=FULL, types=names)
    assert [by_type((1.0, 0.75, 0.5), fleet, c) for c in clients] == [1.0, 0.875, 0.75, 0.625, 0.5]
    assert [by_type((0.75,), fleet, c) for c in clients] == [0.75] * 5
    assert [by_type({"ring": 0.25}, fleet, c) for c in clients] == [1.0, 1.0, 1.0, 1.0, 0.25]


def test_weights_grow_with_rank():
    tasks = allocate(HeLoRA(), ServerState(models={}), context_of(LAYOUT, TYPES))
    group = LAYOUT["encoder.acc.1"]
    weights = torch.tensor([weight(HeLoRA(), group, TYPES[t.client], t) for t in tasks])
    assert weights.tolist() == [1.0, 1.0, 1.0, 0.5], "ceil(0.75 * 2) = 2 ranks for B"
    by_samples = HeLoRA(weighting="samples")
    assert weight(by_samples, group, TYPES[3], tasks[3]) == 0.5 * TYPES[3].num_windows
    assert weight(HeLoRA(by_rank=False), group, TYPES[3], tasks[3]) == 1.0
    assert weight(HeLoRA(), LAYOUT["head.1"], TYPES[3], tasks[3]) == 1.0


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (HeLoRA(), [2 / 7, 2 / 7, 2 / 7, 1 / 7]),
        (HeLoRA(weighting="samples"), [12 / 51, 14 / 51, 16 / 51, 9 / 51]),
        (HeLoRA(by_rank=False), [1 / 4] * 4),
        (HeLoRA(by_rank=False, weighting="samples"), [6 / 30, 7 / 30, 8 / 30, 9 / 30]),
    ],
    ids=["r_k", "n_k r_k", "equal", "n_k"],
)
@pytest.mark.parametrize("padding", PADDINGS)
def test_omega_of_the_real_aggregation(config, expected, padding):
    """Ranks 2, 2, 2, 1 and 6 to 9 windows: by how much the server moves when one client alone moved by 1.

    Where ``padding`` copies, the rank that client 3 does not have moves as well; zero leaves it to the others.
    """
    omega, second = [], []
    for one in range(4):
        after = aggregated(config.model_copy(update={"padding": padding}), one)["encoder.acc.1"]
        a = LAYOUT.unflatten("encoder.acc.1", after)["a"]
        omega.append(a[0, 0].item())
        second.append(a[1, 0].item())
    assert omega == pytest.approx(expected) and sum(omega) == pytest.approx(1.0)
    assert second == pytest.approx([*expected[:3], 0.0 if padding == "zero" else expected[3]])


def aggregated(config, one):
    """The model, zero at first, after a round in which client ``one`` alone changed anything: every value by 1."""
    strategy, context = config.build(), context_of(LAYOUT, TYPES)
    start = ServerState(models={"global": {j: torch.zeros(LAYOUT[j].numel) for j in LAYOUT.ids}})
    tasks = strategy.allocate(start, context)
    updates = [
        update_of(t, {j: torch.full((LAYOUT.num_values({j: p}),), float(t.client == one)) for j, p in t.up.items()})
        for t in tasks
    ]
    reduced = reduced_of(updates, strategy.reduction, LAYOUT, TYPES)
    return strategy.aggregate(start, reduced, context).models["global"]


def test_the_whole_head_is_averaged_without_ranks():
    assert [aggregated(HeLoRA(), one)["head.1"][0].item() for one in range(4)] == pytest.approx([1 / 4] * 4)


def test_upload_is_four_bytes_per_value_of_the_leading_ranks(tmp_path):
    """``4 r_k (d_in + d_out)`` over all factors, the whole head, and a header; the way down costs the same."""
    run = bench(HeLoRA().build(), tmp_path, fleet=TYPES)
    receipts = run.round(1).trained.reduced.receipts
    per_rank = sum(t.numel // RANK for j in LORA for t in LAYOUT[j].tensors)
    for receipt, rank in zip(receipts, (2, 2, 2, 1), strict=True):
        up = receipt.assignment.up
        header = encoded_nbytes(LAYOUT, up) - 4 * LAYOUT.num_values(up)
        assert receipt.bytes_up - header == 4 * rank * per_rank + 4 * LAYOUT["head.1"].numel
        assert receipt.bytes_down == receipt.bytes_up


# Rounds -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", PADDINGS)
def test_equal_ranks_are_fedavg(padding, tmp_path):
    whole = dict.fromkeys("ABC", 1.0)
    ours = bench(HeLoRA(padding=padding, rank_share=whole).build(), tmp_path, fleet=TYPES, **SEEDED)
    theirs = bench(FedAvg().build(), tmp_path, fleet=TYPES, **SEEDED)
    for round_ in (1, 2):
        ours.round(round_), theirs.round(round_)
    assert all(torch.equal(ours.state.models["global"][j], x) for j, x in theirs.state.models["global"].items())


def test_equal_small_ranks_are_fedavg_of_the_small_factors(tmp_path):
    run = bench(HeLoRA(rank_share=dict.fromkeys("ABC", 0.5)).build(), tmp_path, fleet=TYPES, **SEEDED)
    (sums,) = run.round(1).trained.reduced.sums.values()
    index = LAYOUT.indices("encoder.acc.1", Part(rank=1))
    moved = (run.state.models["global"]["encoder.acc.1"] - run.start["encoder.acc.1"])[index]
    torch.testing.assert_close(moved, (sums["encoder.acc.1"].plain / 4).float(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("padding", PADDINGS)
def test_the_server_averages_what_each_client_would_have_sent_padded(padding):
    """By hand: every client's matrices padded one by one, then their mean with weights ``r_k``."""
    config, start = HeLoRA(padding=padding), build(b_zero=False).params()
    tasks = allocate(config, ServerState(models={}), context_of(LAYOUT, TYPES))
    make = torch.Generator().manual_seed(2)
    updates = [
        update_of(t, {j: torch.randn(LAYOUT.num_values({j: p}), generator=make) for j, p in t.up.items()})
        for t in tasks
    ]
    strategy = config.build()
    reduced = reduced_of(updates, strategy.reduction, LAYOUT, TYPES)
    context = context_of(LAYOUT, TYPES)
    after = strategy.aggregate(ServerState(models={"global": start}), reduced, context).models["global"]
    weights = torch.tensor([1.0, 1.0, 1.0, 0.5], dtype=torch.float64)
    for j in LORA:
        models = [
            padded_by_hand(j, start[j], u.delta[j], t.up[j], padding, fusion(start, u))
            for u, t in zip(updates, tasks, strict=True)
        ]
        expected = sum(w * m for w, m in zip(weights, models, strict=True)) / weights.sum()
        torch.testing.assert_close(after[j].double(), expected, rtol=1e-5, atol=1e-6)
    head = start["head.1"] + torch.stack([u.delta["head.1"] for u in updates]).mean(0)
    torch.testing.assert_close(after["head.1"], head)


def fusion(start, update):
    """The client's whole fusion matrix, of its own rank."""
    up = update.receipt.assignment.up
    blocks = []
    for j in ("fusion.A.acc", "fusion.A.hr"):
        theta = start[j].clone()
        theta[LAYOUT.indices(j, up[j])] += update.delta[j]
        blocks.append(theta.view(RANK, -1)[: up[j].rank])
    return torch.cat(blocks, 1)


def padded_by_hand(group, theta, delta, part, how, whole):
    after = theta.clone()
    after[LAYOUT.indices(group, part)] += delta
    rank, grown = part.rank or RANK, []
    for spec, x in zip(LAYOUT[group].tensors, LAYOUT.unflatten(group, after).values(), strict=True):
        axis = 1 if spec.kind == "lora_b" else 0
        own = x.narrow(axis, 0, rank).double()
        mean = whole.mean().double() if group.startswith("fusion.A") else None
        grown.append(torch.cat([own, filling(own, axis, RANK - rank, how, mean)], axis).reshape(-1))
    return torch.cat(grown)


@pytest.mark.parametrize("alpha_over", ["server_rank", "own_rank"])
def test_alpha_over_the_own_rank_makes_adapters_of_half_the_rank_count_twice(alpha_over):
    tasks = allocate(HeLoRA(alpha_over=alpha_over), ServerState(models={}), context_of(LAYOUT, TYPES))
    assert [t.lora_scale for t in tasks] == [1.0, 1.0, 1.0, 2.0 if alpha_over == "own_rank" else 1.0]
    dense = build_cnn().layout
    rows = allocate(HeLoRA(alpha_over=alpha_over), ServerState(models={}), context_of(dense, TYPES))
    assert [t.lora_scale for t in rows] == [1.0] * 4, "no LoRA, no alpha"


@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_alpha_over_the_own_rank_trains_the_model_of_twice_the_scale(engine, tmp_path, monkeypatch):
    """Client 3 (rank 1 of 2) learns what it learns where everybody's s is doubled; client 0 what it always learns."""

    def deltas(alpha_over, client):
        run = bench(HeLoRA(alpha_over=alpha_over).build(), tmp_path, fleet=TYPES, engine=engine, **SEEDED)
        (sums,) = run.round(1, participants=[client]).trained.reduced.sums.values()
        return {j: part.plain for j, part in sums.items()}

    small, large = deltas("own_rank", 3), deltas("own_rank", 0)
    plain_small, plain_large = deltas("server_rank", 3), deltas("server_rank", 0)
    assert all(torch.equal(large[j], plain_large[j]) for j in LAYOUT.ids)
    assert not any(torch.equal(small[j], plain_small[j]) for j in ("fusion.B", "head.1", "encoder.acc.1"))
    monkeypatch.setattr(toy, "SCALE", 2 * toy.SCALE)
    doubled = deltas("server_rank", 3)
    assert all(torch.equal(small[j], doubled[j]) for j in LAYOUT.ids)


def test_models_are_tested_at_the_servers_scale_whoever_trained_last(tmp_path):
    run = bench(HeLoRA(alpha_over="own_rank").build(), tmp_path, fleet=TYPES, **SEEDED)
    run.round(1, participants=[3])
    target = run.strategy.evaluate(run.state, TYPES).canonical
    counts = run.executor.evaluate(run.state.models, [target], {}, "test")
    fresh = bench(HeLoRA().build(), tmp_path, fleet=TYPES, **SEEDED)
    expected = fresh.executor.evaluate(run.state.models, [target], {}, "test")
    assert all(torch.equal(counts[name], expected[name]) for name in expected)
    assert {stage.module.times for stage in run.executor._worker.backbone.stages if hasattr(stage.module, "times")} == {
        1.0
    }


def test_one_scale_for_models_that_teach_each_other():
    with pytest.raises(ValidationError, match="alpha_over = own_rank with variant = 'kd'"):
        HeLoRA(variant="kd", alpha_over="own_rank")


@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_a_client_of_rank_1_trains_the_restricted_model(engine, tmp_path):
    """Values it does not receive change nothing of what it learns: the server's second rank is arbitrary."""
    updates = []
    for factor in (1.0, -3.0):
        run = bench(HeLoRA().build(), tmp_path, fleet=TYPES, engine=engine, **SEEDED)
        theta = {j: x.clone() for j, x in run.start.items()}
        for j in LORA:
            keep = LAYOUT.indices(j, Part(rank=1))
            other = theta[j] * factor
            other[keep] = theta[j][keep]
            theta[j] = other
        run.state = ServerState(models={"global": theta})
        sums = run.round(1, participants=[3]).trained.reduced.sums
        updates.append(next(iter(sums.values())))
    for j in LORA:
        assert torch.equal(updates[0][j].plain, updates[1][j].plain)
        assert updates[0][j].plain.any() or j == "encoder.hr.1", "its input is zero"


def test_the_rest_of_the_fleet_does_not_need_to_take_part(tmp_path):
    run = bench(HeLoRA().build(), tmp_path, fleet=TYPES, missing="zero_feature")
    run.round(1, participants=[3]), run.round(2, participants=[0, 2])
    assert all(bool(torch.isfinite(x).all()) for x in run.state.models["global"].values())


# A dense model ------------------------------------------------------------------------------------------------------


def test_a_dense_model_is_cut_by_rows_but_for_its_head():
    layout = build_cnn().layout
    parts = sizes(HeLoRA(), layout, TYPES, TYPES[3])
    assert parts["head.1"] == WHOLE and parts["fusion.A.acc"] == parts["encoder.hr.2"] == Part(rows=0.75)
    conv, columns = layout["encoder.hr.2"], layout["fusion.A.acc"]
    assert conv.tensors[0].shape == (6, 4, 5) and layout.num_values({conv.id: parts[conv.id]}) == 5 * (4 * 5 + 1)
    assert layout.num_values({columns.id: parts[columns.id]}) == columns.numel * 6 // 8
    (task,) = allocate(HeLoRA(), ServerState(models={}), context_of(layout, TYPES, participants=[3]))
    assert task.down == layout.select(), "forward runs on the whole model"


def test_missing_rows_of_an_update_are_padded():
    """Two clients, widths 1 and 0.75 of 8 rows: row 8 is (u_8 + 0.75 mean(v_1..v_6)) / 1.75."""
    layout, config = build_cnn().layout, HeLoRA()
    fleet = replace(TYPES, clients=(TYPES[0], replace(TYPES[3], id=1)))
    tasks = allocate(config, ServerState(models={}), context_of(layout, fleet))
    make = torch.Generator().manual_seed(4)
    updates = [
        update_of(t, {j: torch.randn(layout.num_values({j: p}), generator=make) for j, p in t.up.items()})
        for t in tasks
    ]
    strategy, start = config.build(), build_cnn().params()
    reduced = reduced_of(updates, strategy.reduction, layout, fleet)
    context = context_of(layout, fleet)
    after = strategy.aggregate(ServerState(models={"global": start}), reduced, context).models["global"]
    u, v = (x.delta["fusion.A.acc"].view(-1, 36) for x in updates)
    assert (len(u), len(v)) == (8, 6)
    moved = (after["fusion.A.acc"] - start["fusion.A.acc"]).view(8, 36)
    torch.testing.assert_close(moved[7], (u[7] + 0.75 * v.mean(0)) / 1.75, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(moved[5], (u[5] + 0.75 * v[5]) / 1.75, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
@pytest.mark.parametrize("engine", ["naive", "reuse"])
@pytest.mark.parametrize("padding", PADDINGS)
def test_both_missing_modes_and_engines_stay_finite(missing, engine, padding, tmp_path):
    run = bench(HeLoRA(padding=padding).build(), tmp_path, fleet=TYPES, missing=missing, engine=engine)
    run.round(1), run.round(2)
    assert all(bool(torch.isfinite(theta).all()) for theta in run.state.models["global"].values())


def test_everybody_is_averaged_over_whatever_sensors(tmp_path):
    assert (FULL, ACC) == (TYPES[0].modalities, TYPES[3].modalities)
    result = bench(HeLoRA().build(), tmp_path, fleet=TYPES).round(1)
    members = [sums["fusion.A.hr"].members for sums in result.trained.reduced.sums.values()]
    assert sorted(n for m in members for n in m) == [0, 1, 2, 3]
    assert all(isinstance(t, Assignment) and set(t.up) == set(LAYOUT.ids) for t in result.tasks)
