"""FedLEASE: alone, allocated, mixed; who trains, sends, averages and keeps what."""

from dataclasses import replace

import pytest
import torch

from relief_ray.core.extra_modules import Experts
from relief_ray.core.messages import Reduced, ServerState
from relief_ray.core.streams import Streams
from relief_ray.strategies.fedavg import FedAvg
from relief_ray.strategies.fedlease import (
    ALLOCATION,
    ALONE,
    FedLEASE,
    aggregate,
    average_linkage,
    cluster,
    clusters_of,
    distances,
    exchange,
    experts_for,
    layers,
    nearest,
    silhouette,
    silhouettes,
)
from relief_ray.support.errors import UserError
from tests.toy import ACC, FOUR, FULL, bench, build, context_of, fleet_of, sum_of

PLAIN = build().layout.ids
EXPERT = ("fusion.A.acc", "fusion.A.hr", "fusion.B")
SIX = fleet_of(FULL, FULL, FULL, ACC, ACC, ACC)


def lease(folder, fleet=FOUR, warmup=1, **config):
    changed = {k: config.pop(k) for k in ("missing", "engine", "batch_size") if k in config}
    return bench(FedLEASE(warmup_rounds=warmup, **config).build(), folder, fleet=fleet, **changed)


def members(run):
    clusters = clusters_of(run.state)
    return {c: [n for n, k in enumerate(clusters) if k == c] for c in sorted({*clusters} - {-1})}


def by_client(result):
    return {t.client: t for t in result.tasks}


def test_warm_up_is_each_clients_own_training(tmp_path):
    """Two rounds alone: the bits of the ``local`` bound, nothing sent, the server's model untouched."""
    from relief_ray.strategies.bounds import Local

    ours, theirs = lease(tmp_path, warmup=5), bench(Local().build(), tmp_path)
    for round_ in (1, 2):
        result = ours.round(round_)
        theirs.round(round_)
        assert all(r.bytes_up == r.bytes_down == 0 and r.assignment.phase == ALONE for r in result.trained.worked)
    assert all(torch.equal(ours.store.load(n)[j], theirs.store.load(n)[j]) for n in range(4) for j in PLAIN)
    assert all(torch.equal(ours.state.models["global"][j], ours.start[j]) for j in ours.start)


def test_the_last_warm_up_round_sends_everything_and_is_forgotten(tmp_path):
    run = lease(tmp_path, warmup=2)
    run.round(1)
    assert set(run.store.load(0)) == set(PLAIN)
    result = run.round(2)
    assert all(set(t.up) == set(PLAIN) and not t.down and t.phase == ALLOCATION for t in result.tasks)
    assert all(set(run.store.load(n)) == set(PLAIN) for n in range(4)), "which round is the last, a client cannot know"
    run.round(3, participants=[0, 1, 3])
    assert [run.store.load(n) == {} for n in range(4)] == [True, True, False, True], "what is personal ends there"


def test_clusters_partition_the_clients(tmp_path):
    run = lease(tmp_path, SIX)
    run.round(1)
    clusters = members(run)
    assert sorted(n for group in clusters.values() for n in group) == list(range(6))
    assert 2 <= len(clusters) <= 4 and all(clusters.values())
    assert set(run.state.models) == {"global", *(f"cluster.{c}" for c in clusters)}


def test_clusters_are_those_of_the_warm_up_steps(tmp_path):
    run = lease(tmp_path, SIX)
    sums = run.round(1).trained.reduced.sums
    steps = [{j: part.plain for j, part in sums[f"client.{n}"].items()} for n in range(6)]
    seen = [layers(run.backbone.layout, steps[n], SIX[n].modalities) for n in range(6)]
    between = distances(seen)
    assert clusters_of(run.state) == cluster(between, silhouettes(between, 4))


def test_an_expert_starts_as_the_mean_of_its_members_warm_up(tmp_path):
    run = lease(tmp_path, SIX)
    sums = run.round(1).trained.reduced.sums
    for c, clients in members(run).items():
        for j in PLAIN:
            mean = sum(sums[f"client.{n}"][j].plain for n in clients) / len(clients)
            expected = (run.start[j].double() + mean).float()
            torch.testing.assert_close(run.state.models[f"cluster.{c}"][j], expected, rtol=0, atol=1e-7)


def test_everybody_holds_every_expert_and_only_its_cluster_changed_it(tmp_path):
    """After aggregation expert j is the mean of cluster j, the same bits in every cluster's model."""
    run = lease(tmp_path, SIX)
    run.round(1)
    before = run.state.models
    result = run.round(2)
    spec, clusters = experts_for(FedLEASE(), run.backbone.layout, SIX), members(run)
    sums, after = result.trained.reduced.sums, run.state.models
    for c, group in clusters.items():
        assert sums[f"cluster.{c}"]["fusion.B"].members == tuple(group)
        for j in (*EXPERT, *(spec.router(e) for e in range(1, len(clusters) + 1))):
            mean = sums[f"cluster.{c}"][j].plain / len(group)
            assert torch.equal(after[f"cluster.{c}"][j], (before[f"cluster.{c}"][j].double() + mean).float())
        others = [i for i in clusters if i != c]
        for e, other in enumerate(others, 2):
            assert all(
                torch.equal(after[f"cluster.{c}"][spec.copy(e, j)], after[f"cluster.{other}"][j]) for j in EXPERT
            )


def test_local_training_leaves_the_other_experts_bitwise_unchanged(tmp_path):
    run = lease(tmp_path, SIX)
    run.round(1)
    task = run.strategy.allocate(run.state, context_of(run.backbone, SIX, 2))[0]
    theta = run.executor._worker.trainer.theta
    run.executor.train(2, run.state.models, [task], {})
    received = run.state.models[task.view]
    foreign = [j for j in theta if j.startswith("expert.") and "router" not in j]
    assert foreign
    for j in foreign:
        assert torch.equal(theta[j], received[j] if task.holds(j) else run.start[j])
    assert all(not torch.equal(theta[j], received[j]) for j in ("fusion.B", "fusion.A.acc", "expert.router.2"))


def test_payloads_are_the_own_expert_and_router_up_and_all_experts_down(tmp_path):
    run = lease(tmp_path, SIX)
    run.round(1)
    number, result = len(members(run)), run.round(2)
    routers = {f"expert.router.{e}" for e in range(1, number + 1)}
    copies = {f"expert.{e}.{j}" for e in range(2, number + 1) for j in EXPERT}
    for task in result.tasks:
        assert set(task.up) == set(task.train) == {*PLAIN, *routers} and not task.keep
        assert set(task.down) == {*PLAIN, *routers, *copies}
        assert task.output == f"expert.logits@{number}"
    rows = [run.backbone.layout[j].tensors[0].shape[0] for j in sorted(routers)]
    assert sum(rows) == 2 * number - 1


def test_one_cluster_is_plain_lora(tmp_path):
    """Two clients cannot be told apart: no router, and after the warm-up FedAvg's bits."""
    fleet = fleet_of(FULL, ACC)
    run, fedavg = lease(tmp_path, fleet), bench(FedAvg().build(), tmp_path, fleet=fleet)
    assert run.backbone.layout.ids == PLAIN
    for round_ in (1, 2, 3):
        result = run.round(round_)
        fedavg.round(round_)
    assert clusters_of(run.state) == [0, 0] and {t.output for t in result.tasks} == {None}
    after, expected = run.state.models["cluster.0"], fedavg.state.models["global"]
    assert all(torch.equal(after[j], expected[j]) for j in PLAIN)


def test_encoders_stay_in_the_cluster_or_are_everybodys(tmp_path):
    for encoders, shared in (("by_kind", False), ("cluster", False), ("all", True)):
        run = lease(tmp_path, SIX, encoders=encoders)
        run.round(1), run.round(2)
        models = [run.state.models[f"cluster.{c}"] for c in members(run)]
        alike = [torch.equal(models[0]["encoder.acc.1"], theta["encoder.acc.1"]) for theta in models[1:]]
        assert alike == [shared] * len(alike)
        assert not torch.equal(models[0]["fusion.B"], models[1]["fusion.B"])


def test_pooled_encoders_take_the_mean_over_all_clusters(tmp_path):
    run = lease(tmp_path, SIX, encoders="all")
    run.round(1)
    before = run.state.models["cluster.1"]["encoder.acc.1"]
    sums = run.round(2).trained.reduced.sums
    mean = sum(sums[f"cluster.{c}"]["encoder.acc.1"].plain for c in members(run)) / 6
    assert torch.equal(run.state.models["cluster.1"]["encoder.acc.1"], (before.double() + mean).float())


def stack(theta):
    return torch.cat([theta[j] for j in PLAIN])


def test_the_warm_up_goes_on_until_everybody_has_brought_it(tmp_path):
    """Two of six a round from the third round on: nobody is clustered before the third pair came, then all at once."""
    run, steps = lease(tmp_path, SIX, warmup=3), {}
    for round_, pair in enumerate([(0, 3), (1, 2), (0, 3), (1, 4), (2, 5)], 1):
        assert clusters_of(run.state) == [-1] * 6
        result = run.round(round_, participants=list(pair))
        assert {t.phase for t in result.tasks} == {ALONE if round_ < 3 else ALLOCATION}
        for n in pair if round_ >= 3 else ():
            steps[n] = {j: part.plain for j, part in result.trained.reduced.sums[f"client.{n}"].items()}
        waiting = {name for name in run.state.tensors if name != "cluster"}
        assert waiting == ({f"warm-up.{n}" for n in steps} if round_ < 5 else set())
    seen = [layers(run.backbone.layout, steps[n], SIX[n].modalities) for n in range(6)]
    between = distances(seen)
    assert clusters_of(run.state) == cluster(between, silhouettes(between, 4))


def test_after_twice_the_warm_up_three_are_enough_and_two_are_not(tmp_path):
    run = lease(tmp_path, SIX, warmup=1)
    run.round(1, participants=[0, 4])
    run.round(2, participants=[0, 4])
    assert clusters_of(run.state) == [-1] * 6, "twice as long, but of two the silhouette says nothing"
    result = run.round(3, participants=[0, 2])
    clusters = clusters_of(run.state)
    assert [c >= 0 for c in clusters] == [True, False, True, False, True, False]
    assert 2 <= len(members(run)) <= 4 and {t.phase for t in result.tasks} == {ALLOCATION}
    for round_ in (4, 5):
        outputs = {t.client: t.output for t in run.round(round_, participants=[0, 1]).tasks}
    assert outputs[0] == outputs[1] == f"expert.logits@{len(members(run))}", "who joined later is routed as well"


def test_the_newest_warm_up_counts_and_goes_on_from_the_clients_own_model(tmp_path):
    """Client 0 reports twice: its expert starts from where its second round, begun behind the first, has ended."""
    run = lease(tmp_path, fleet_of(FULL, FULL, ACC), warmup=1)
    first = run.round(1, participants=[0])
    assert torch.equal(run.state.tensors["warm-up.0"], torch.cat(
        [first.trained.reduced.sums["client.0"][j].plain for j in PLAIN]).float())  # fmt: skip
    kept = stack(run.store.load(0))
    torch.testing.assert_close(kept - stack(run.start), run.state.tensors["warm-up.0"], rtol=0, atol=1e-6)
    last = run.round(2, participants=[0, 1, 2])
    second = torch.cat([last.trained.reduced.sums["client.0"][j].plain for j in PLAIN])
    assert not torch.equal(second.float(), run.state.tensors.get("warm-up.0", kept))
    clusters = members(run)
    c = clusters_of(run.state)[0]
    steps = [torch.cat([last.trained.reduced.sums[f"client.{n}"][j].plain for j in PLAIN]) for n in clusters[c]]
    expected = stack(run.start).double() + sum(steps) / len(steps)
    torch.testing.assert_close(stack(run.state.models[f"cluster.{c}"]), expected.float(), rtol=0, atol=1e-7)
    assert float(second.norm()) > float((kept - stack(run.start)).norm()), "two rounds' way is longer than one's"


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_warm_ups_of_several_rounds_give_the_experts_of_one(weighting, tmp_path):
    """Whoever is waited for, the kept steps are the sums that would have come at once: the same bits."""
    at_once = lease(tmp_path, SIX, weighting=weighting)
    sums = at_once.round(1).trained.reduced.sums
    state = lease(tmp_path, SIX, weighting=weighting).state
    config, tools = FedLEASE(warmup_rounds=1, weighting=weighting), context_of(at_once.backbone, SIX)
    for part in ((0, 5), (1, 4), (2, 3)):
        some = {f"client.{n}": sums[f"client.{n}"] for n in part}
        state = aggregate(config, state, Reduced(sums=some, receipts=()), replace(tools, round=1))
    assert clusters_of(state) == clusters_of(at_once.state) and state.facts == at_once.state.facts
    for name, theta in at_once.state.models.items():
        assert all(torch.equal(state.models[name][j], theta[j]) for j in theta)


def test_a_quarter_of_eight_clients_ends_with_experts(tmp_path):
    """The review's case: eight clients, two a round, five planned warm-up rounds: 2 <= M <= 4 and routers for all."""
    fleet = fleet_of(FULL, FULL, FULL, ACC, ACC, ACC, FULL, ACC)
    run = lease(tmp_path, fleet, warmup=5)
    order = torch.Generator().manual_seed(1)
    for round_ in range(1, 12):
        run.round(round_, participants=sorted(torch.randperm(8, generator=order)[:2].tolist()))
    assert 2 <= len(members(run)) <= 4
    joint = [t for t in run.strategy.allocate(run.state, context_of(run.backbone, fleet, 12)) if t.phase == "train"]
    assert len(joint) >= 3 and all(t.output for t in joint)


def test_silhouettes_say_how_clear_the_clusters_are(tmp_path):
    run = lease(tmp_path, SIX)
    sums = run.round(1).trained.reduced.sums
    steps = [{j: part.plain for j, part in sums[f"client.{n}"].items()} for n in range(6)]
    between = distances([layers(run.backbone.layout, steps[n], SIX[n].modalities) for n in range(6)])
    expected = {str(k): silhouette(between, average_linkage(between, k)) for k in (2, 3, 4)}
    assert run.state.facts == {"silhouettes": expected}
    assert expected[str(len(members(run)))] == max(expected.values())
    run.round(2)
    assert run.state.facts == {"silhouettes": expected}


def test_a_rounds_record_holds_the_clusters_sizes(tmp_path):
    run = lease(tmp_path, fleet=SIX, warmup=1)
    assert run.strategy.insight.diagnose(run.state, run.backbone.layout) == {"silhouettes": {}}, (
        "there are none in the warm-up"
    )
    run.round(1)
    diagnosed = run.strategy.insight.diagnose(run.state, run.backbone.layout)
    assert diagnosed["silhouettes"] and diagnosed["clusters"] == {
        f"cluster.{c}": float(len(clients)) for c, clients in members(run).items()
    }


@pytest.mark.parametrize(("most", "number"), [(2, 2), (3, 3), (4, 3), (9, 3)])
def test_there_are_at_most_so_many_experts(most, number):
    """Three pairs that moved alike and at right angles to the others: three clusters, where three are allowed."""
    fleet, config = fleet_of(*[FULL] * 6), FedLEASE(warmup_rounds=1, most_experts=most)
    run = config.build()
    backbone = build(run.adapt, fleet=fleet)
    state = run.init(backbone.layout, fleet, Streams(seed=0), backbone.params())
    sums = {}
    for n in range(6):
        moved = {j: torch.eye(backbone.layout[j].numel)[-1 - n // 2] for j in PLAIN}
        parts = {j: sum_of(backbone.layout, j, [x.tolist()]) for j, x in moved.items()}
        sums[f"client.{n}"] = {j: replace(part, members=(n,)) for j, part in parts.items()}
    tools = replace(context_of(backbone, fleet), round=1)
    after = aggregate(config, state, Reduced(sums=sums, receipts=()), tools)
    clusters = clusters_of(after)
    assert clusters[::2] == clusters[1::2] and len(set(clusters)) == number
    assert experts_for(config, backbone.layout, fleet).most == min(most, 5), "of six clients five clusters at most"
    assert len([j for j in backbone.layout.ids if j.endswith(".fusion.B")]) == min(most, 5) - 1


def test_a_client_that_missed_the_allocation_joins_the_nearest_cluster_after_a_warm_up_round(tmp_path):
    run = lease(tmp_path, SIX)
    run.round(1, participants=[0, 1, 3, 4, 5])
    assert clusters_of(run.state) == [-1] * 6
    run.round(2, participants=[0, 1])
    assert clusters_of(run.state)[2] == -1 and clusters_of(run.state)[5] >= 0
    late = run.strategy.evaluate(run.state, SIX).clients[2]
    assert late.view == "global" and late.client == 2 and set(late.keep) == set(PLAIN)
    before = {c: dict(theta) for c, theta in run.state.models.items()}
    result = run.round(3, participants=[2])
    assert by_client(result)[2].phase == ALLOCATION and set(by_client(result)[2].up) == set(PLAIN)
    assert clusters_of(run.state)[2] in members(run)
    assert all(torch.equal(t, before[c][j]) for c, theta in run.state.models.items() for j, t in theta.items())
    assert run.round(4, participants=[2]).tasks[0].output is not None


def test_a_client_joins_the_cluster_that_moved_as_it_did(tmp_path):
    run = lease(tmp_path, SIX)
    run.round(1)
    for c in members(run):
        theta, layout = run.state.models[f"cluster.{c}"], run.backbone.layout
        drift = {j: [(3.0 * (theta[j] - run.start[j])).tolist()] for j in PLAIN}
        own = {j: sum_of(layout, j, moved) for j, moved in drift.items()}
        assert nearest(run.state.models, clusters_of(run.state), layout, SIX, own) == c


def test_a_cluster_without_participants_keeps_its_expert(tmp_path):
    run = lease(tmp_path, SIX)
    run.round(1)
    clusters = members(run)
    idle = [c for c in clusters if c != clusters_of(run.state)[0]]
    before = run.state.models
    run.round(2, participants=clusters[clusters_of(run.state)[0]])
    assert all(torch.equal(run.state.models[f"cluster.{c}"][j], before[f"cluster.{c}"][j]) for c in idle for j in PLAIN)


def test_plan_before_and_after_the_allocation(tmp_path):
    run = lease(tmp_path, SIX, warmup=2)
    run.round(1)
    plan = run.strategy.evaluate(run.state, SIX)
    assert plan.canonical is not None and plan.canonical.client is None and set(plan.canonical.keep) == set(PLAIN)
    assert [t.client for t in plan.clients] == list(range(6))
    run.round(2)
    clusters, plan = clusters_of(run.state), run.strategy.evaluate(run.state, SIX)
    assert [t.view for t in plan.clients] == [f"cluster.{c}" for c in clusters]
    assert plan.clients[4].modalities == ACC and not plan.clients[4].keep
    full = clusters[:3]
    assert plan.canonical.view == f"cluster.{max(sorted(set(full)), key=full.count)}"
    assert plan.canonical.output == f"expert.logits@{max(clusters) + 1}"
    counts = run.executor.evaluate(run.state.models, [plan.canonical, *plan.clients], {}, "test")
    assert {label for label in counts if "|" not in label} == {"global", *(f"client.{n}" for n in range(6))}


def test_weights_follow_the_configuration(tmp_path):
    run = lease(tmp_path, SIX, weighting="samples")
    sums = run.round(1).trained.reduced.sums
    c, clients = next(iter(members(run).items()))
    total = sum(SIX[n].num_windows for n in clients)
    mean = sum(SIX[n].num_windows * sums[f"client.{n}"]["head.1"].plain for n in clients) / total
    after = run.state.models[f"cluster.{c}"]["head.1"]
    torch.testing.assert_close(after, (run.start["head.1"].double() + mean).float(), rtol=0, atol=1e-7)


def test_dense_heads_are_experts_and_dense_heads_of_lora_models_are_not():
    from tests.training.scenario import SHAPE, TINY

    assert experts_for(FedLEASE(), build().layout, FOUR).of == EXPERT
    layout = TINY.build(SHAPE, 0).layout
    assert "head.1" in experts_for(FedLEASE(), layout, SIX).of
    assert "head.1" not in experts_for(FedLEASE(moe_scope="fusion"), layout, SIX).of
    assert experts_for(FedLEASE(), layout, SIX).most == 4 and experts_for(FedLEASE(), layout, FOUR).most == 3


def test_others_experts_stand_in_cluster_order_behind_the_own():
    models = [{"fusion.B": torch.tensor([float(c)])} for c in range(3)]
    after = exchange(Experts(id="expert", of=("fusion.B",), most=3), models)
    order = {c: [theta[f"expert.{e}.fusion.B"].item() for e in (2, 3)] for c, theta in after.items()}
    assert order == {"cluster.0": [1.0, 2.0], "cluster.1": [0.0, 2.0], "cluster.2": [0.0, 1.0]}


def test_all_scope_routes_every_lora_layer(run_cache):
    """Own experts and routers of fusion and encoders go up, the others' come down; only the own are trained."""
    from relief_ray.models.extra import with_extra_modules
    from tests.models import tiny_moment as moment

    config, plain = FedLEASE(moe_scope="all"), moment.tiny()
    fleet = fleet_of(("acc", "gyro", "hr"), ("acc",), ("acc", "gyro"), modalities=moment.SHAPE.modalities)
    spec = experts_for(config, plain.layout, fleet)
    assert spec.inside == tuple(g.id for g in plain.layout if g.role == "encoder") and spec.most == 2
    backbone = with_extra_modules(plain, config.build().adapt(plain.layout, fleet), 0)
    models = {name: backbone.params() for name in ("global", "cluster.0", "cluster.1")}
    state = ServerState(models=models, tensors={"cluster": torch.tensor([0, 0, 1])})
    tasks = config.build().allocate(state, context_of(backbone, fleet, 6))
    routers = {spec.router(e, j) for e in (1, 2) for j in (None, *spec.inside)}
    for task in tasks:
        assert set(task.up) == set(task.train) == {*plain.layout.ids, *routers}
        assert set(task.down) - set(task.up) == {f"expert.2.{j}" for j in (*spec.of, *spec.inside)}
    theirs = [{j: torch.full_like(t, float(c)) for j, t in models["global"].items()} for c in (1, 2)]
    after = exchange(spec, theirs)
    for j in (*spec.of, *spec.inside):
        assert torch.equal(after["cluster.0"][f"expert.2.{j}"], theirs[1][j])
        assert torch.equal(after["cluster.1"][f"expert.2.{j}"], theirs[0][j])
    assert torch.equal(after["cluster.0"]["expert.router.2.encoder.hr.1"], theirs[0]["expert.router.2.encoder.hr.1"])


def test_all_scope_wants_lora_layers_and_encoders_of_the_cluster():
    from tests.training.scenario import SHAPE, TINY

    for config, layout in (
        (FedLEASE(moe_scope="all"), TINY.build(SHAPE, 0).layout),
        (FedLEASE(moe_scope="all", encoders="all"), build().layout),
    ):
        with pytest.raises(UserError, match=r"moe_scope='all'.*expected encoders of LoRA layers.*take moe_scope"):
            experts_for(config, layout, SIX)


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_both_missing_modes_and_engines_stay_finite_and_agree(missing, engine, tmp_path):
    run = lease(tmp_path, SIX, missing=missing, engine=engine)
    for round_ in (1, 2, 3):
        run.round(round_)
    naive = lease(tmp_path, SIX, missing=missing, engine="naive")
    for round_ in (1, 2, 3):
        naive.round(round_)
    assert clusters_of(run.state) == clusters_of(naive.state)
    for name, theta in run.state.models.items():
        reused, expected = (torch.cat([t[j] for j in sorted(t)]) for t in (theta, naive.state.models[name]))
        start = torch.cat([run.start[j] for j in sorted(theta)])
        assert bool(torch.isfinite(reused).all())
        assert float((reused - expected).norm()) <= 0.01 * float((expected - start).norm())


def test_a_masked_sensor_gets_no_step_from_who_lacks_it(tmp_path):
    """zero_feature: an Acc cluster's ``A_hr`` stays at the start for good."""
    run = lease(tmp_path, SIX, missing="zero_feature", weighting="uniform")
    run.round(1), run.round(2)
    for c, clients in members(run).items():
        if all(SIX[n].modalities == ACC for n in clients):
            assert torch.equal(run.state.models[f"cluster.{c}"]["fusion.A.hr"], run.start["fusion.A.hr"])
