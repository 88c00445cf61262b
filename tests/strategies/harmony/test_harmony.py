"""Harmony: unimodal networks averaged over owners, then fusion inside clusters; encoders stay at home."""

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from relief_ray.core.codec import encoded_nbytes
from relief_ray.core.messages import Assignment, ServerState
from relief_ray.core.streams import Streams
from relief_ray.records.run_folder import read_rounds
from relief_ray.strategies.fedavg import FedAvg
from relief_ray.strategies.harmony import DRIFT, Harmony, unimodal_heads
from tests.conformance.cases import config_of, drive
from tests.toy import ACC, FULL, bench, build, context_of, fleet_of, task_of, update_of

LAYOUT = build(unimodal_heads).layout
HR = ("hr",)
FLEET = fleet_of(FULL, FULL, FULL, FULL, ACC, HR)
ENCODERS, FUSED = ("encoder.acc.1", "encoder.hr.1"), ("fusion.A.acc", "fusion.A.hr", "fusion.B", "head.1")


def play(folder, rounds=3, fleet=FLEET, *, config=None, start=1, run=None, **options):
    """The first rounds of three, two of them unimodal."""
    run = run or bench((config or Harmony()).build(), folder, fleet=fleet, **options)
    return run, [run.round(r) for r in range(start, rounds + 1)]


def views(result):
    return {r.assignment.client: r.assignment.view for r in result.trained.reduced.receipts}


# Unimodal -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_each_sensors_network_is_the_mean_over_its_owners(engine, tmp_path):
    """Start plus mean Delta, the same for all owners; who lacks the sensor sends nothing of it."""
    run, _ = play(tmp_path, 0, engine=engine)
    start = run.state.models["global"]
    updates = run.round(1).trained.reduced.updates
    sent = {u.receipt.assignment.client: u.delta for u in updates}
    for m, owners in (("acc", (0, 1, 2, 3, 4)), ("hr", (0, 1, 2, 3, 5))):
        for j in (f"encoder.{m}.1", f"unimodal.{m}"):
            assert tuple(n for n in sent if j in sent[n]) == owners
            mean = torch.stack([sent[n][j].double() for n in owners]).mean(0)
            torch.testing.assert_close(run.state.models["global"][j], (start[j].double() + mean).float())
    assert all(torch.equal(run.state.models["global"][j], start[j]) for j in FUSED), "fusion waits for its phase"
    for u in updates:
        task = u.receipt.assignment
        assert u.receipt.bytes_up == u.receipt.bytes_down == encoded_nbytes(LAYOUT, task.up)
        assert {LAYOUT[j].modality for j in task.up} == set(FLEET[task.client].modalities)


def test_a_sensors_network_learns_the_same_beside_others(tmp_path):
    deltas = []
    for owned in (FULL, ACC):
        run = bench(Harmony().build(), tmp_path, fleet=fleet_of(owned, FULL), batch_size=64)
        deltas.append(run.round(1, participants=[0]).trained.reduced.updates[0].delta["encoder.acc.1"])
    torch.testing.assert_close(deltas[0], deltas[1], rtol=1e-5, atol=1e-8)
    assert deltas[0].any()


def test_no_fusion_runs_in_the_unimodal_phase(tmp_path):
    run, _ = play(tmp_path, 0)
    calls = []
    for stage in run.executor._worker.backbone.stages:
        stage.module.register_forward_hook(lambda *_, name=stage.spec.id: calls.append(name))
    run.round(1)
    assert set(calls) == {*ENCODERS, "unimodal.acc", "unimodal.hr"}


@pytest.mark.parametrize(("rounds", "share", "last"), [(200, 2 / 3, 133), (15, 2 / 3, 10), (2, 2 / 3, 1), (3, 0.01, 1)])
def test_the_first_two_thirds_are_unimodal(rounds, share, last):
    state = Harmony(unimodal_share=share).build().init(LAYOUT, FLEET, Streams(seed=0), build(unimodal_heads).params())

    def phase(round_):
        context = context_of(LAYOUT, FLEET, round_, num_rounds=rounds)
        return Harmony(unimodal_share=share).build().allocate(state, context)[0].phase

    assert [phase(1), phase(last), phase(last + 1)] == ["unimodal", "unimodal", "fusion"]


# Fusion -------------------------------------------------------------------------------------------------------------


def test_encoders_never_leave_and_single_sensors_idle(tmp_path):
    run, results = play(tmp_path)
    receipts = results[2].trained.reduced.receipts
    assert [r.assignment.client for r in receipts] == [0, 1, 2, 3], "one sensor has nothing to fuse"
    for r in receipts:
        up = r.assignment.up
        assert set(up) == set(FUSED), "no byte of an encoder"
        assert r.bytes_up == encoded_nbytes(LAYOUT, up) + 4 * 2, "and a drift per sensor"
        assert r.bytes_down == encoded_nbytes(LAYOUT, r.assignment.train), "encoders come down this once"
        assert set(r.assignment.keep) == set(ENCODERS) and r.assignment.lr_scale == dict.fromkeys(ENCODERS, 0.1)
    stage_1 = results[1].state.models["global"]
    assert all(torch.equal(run.state.models["global"][j], stage_1[j]) for j in LAYOUT.ids)
    own = run.store.committed
    assert sorted(own) == [0, 1, 2, 3]
    assert all(len({tuple(own[n][j].tolist()) for n in own}) == 4 for j in ENCODERS)
    later = run.round(4).trained.reduced.receipts
    assert all(set(r.assignment.down) == set(FUSED) for r in later)


def test_a_cluster_shares_its_fusion_and_no_other(tmp_path):
    run, _ = play(tmp_path, 2, config=Harmony(clusters=2))
    assert run.strategy.insight.diagnose(run.state, LAYOUT) == {}, "no clusters before there is fusion"
    play(tmp_path, start=3, run=run)
    clusters = run.state.facts["clusters"]
    sizes = {label: float(list(clusters.values()).count(label)) for label in ("cluster.0", "cluster.1")}
    assert run.strategy.insight.diagnose(run.state, LAYOUT) == {"clusters": sizes} and sum(sizes.values()) == 4.0
    assert set(clusters.values()) == {"cluster.0", "cluster.1"} and sorted(clusters) == ["0", "1", "2", "3"]
    one, two = run.state.models["cluster.0"], run.state.models["cluster.1"]
    assert all(not torch.equal(one[j], two[j]) for j in FUSED)
    stage_1 = run.state.models["global"]
    assert all(torch.equal(m[j], stage_1[j]) for m in (one, two) for j in ENCODERS)
    result = run.round(4)
    assert views(result) == {int(n): v for n, v in clusters.items()}


def test_each_cluster_moves_by_the_mean_of_its_members(tmp_path):
    """From round-start weights, never on top of what a client has learned already."""
    run, (_, second, third) = play(tmp_path, config=Harmony(clusters=2))
    before, clusters = second.state.models["global"], run.state.facts["clusters"]
    for label in ("cluster.0", "cluster.1"):
        own = [u for u in third.trained.reduced.updates if clusters[str(u.receipt.assignment.client)] == label]
        for j in FUSED:
            mean = torch.stack([u.delta[j].double() for u in own]).mean(0)
            expected = (before[j].double() + mean).float()
            torch.testing.assert_close(run.state.models[label][j], expected, rtol=1e-6, atol=1e-7)


def test_a_client_that_changes_cluster_keeps_its_starting_model():
    """Two clusters at 0 and 4; all four clients end in one: mean start 2, plus the mean change."""
    start = {j: torch.zeros(LAYOUT[j].numel) for j in LAYOUT.ids}
    four = {j: torch.full_like(x, 4.0) if j in FUSED else x for j, x in start.items()}
    clusters = {"0": "cluster.0", "1": "cluster.0", "2": "cluster.1", "3": "cluster.1"}
    state = ServerState(
        models={"global": start, "cluster.0": start, "cluster.1": four}, facts={"home": {}, "clusters": clusters}
    )
    updates = []
    for n in range(4):
        update = update_of(
            task_of(LAYOUT, n, FUSED, "fusion"), {j: torch.full((LAYOUT[j].numel,), float(n)) for j in FUSED}
        )
        updates.append(replace(update, receipt=replace(update.receipt, stats={DRIFT: torch.ones(2)})))
    reduced = replace(reduced_nothing(), updates=tuple(updates), receipts=tuple(u.receipt for u in updates))
    after = Harmony().build().aggregate(state, reduced, context_of(LAYOUT, FLEET))
    assert set(after.models) == {"global", "cluster.0"}
    assert all(bool((after.models["cluster.0"][j] == 3.5).all()) for j in FUSED)
    assert all(torch.equal(after.models["cluster.0"][j], start[j]) for j in ENCODERS)


def reduced_nothing():
    from relief_ray.core.messages import Reduced

    return Reduced(sums={}, receipts=())


@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_one_cluster_and_one_set_of_sensors_is_fedavg_on_fusion_and_head(engine, tmp_path):
    """FedAvg itself (its sums, its server), run from where fusion begins, encoders at home: the same two rounds."""
    fleet = fleet_of(FULL, FULL, FULL)
    run, (_, second, *_) = play(tmp_path, 4, fleet=fleet, config=Harmony(clusters=1), engine=engine)
    plain = replace(FedAvg().build(), adapt=unimodal_heads, allocate=fusion_and_head)
    other = bench(plain, tmp_path, fleet=fleet, engine=engine)
    other.state = ServerState(models={"global": second.state.models["global"]})
    other.round(3), other.round(4)
    before, after, expected = (
        state.models[view]
        for state, view in ((second.state, "global"), (run.state, "cluster.0"), (other.state, "global"))
    )
    for j in LAYOUT.ids:
        torch.testing.assert_close(after[j], expected[j], rtol=1e-6, atol=1e-7)
        assert torch.equal(after[j], before[j]) == (j not in FUSED)
    for n in range(3):
        assert all(torch.equal(run.store.load(n)[j], other.store.load(n)[j]) for j in ENCODERS)


def fusion_and_head(state, context):
    """Clients train all but the unimodal heads, send fusion and head, keep their encoders at a tenth of the rate."""
    up, home = context.layout.select(FUSED), context.layout.select(ENCODERS)
    task = Assignment(client=0, down=up, train=up | home, up=up, keep=home, epochs=1)
    task = replace(task, lr_scale=dict.fromkeys(ENCODERS, 0.1))
    return tuple(replace(task, client=c.id) for c in context.participants)


def test_sets_of_sensors_are_clusters_of_their_own_unless_asked_otherwise(tmp_path):
    three = ("acc", "gyro", "hr")
    fleet = fleet_of(three, three, ("acc", "gyro"), ("acc", "gyro"), modalities=three)
    drift = torch.ones(4, 3, dtype=torch.float64)
    drift[2:, 2] = float("nan")
    for by_sensors, number in ((True, 2), (False, 1)):
        config = Harmony(by_sensors=by_sensors, clusters=1)
        clusters = regrouped(config, fleet, drift)
        assert len(set(clusters.values())) == number


def regrouped(config, fleet, drift):
    """Every client's cluster after a round in which these drifts were reported."""
    groups = ("fusion.B", "head.1")
    start = {j: torch.zeros(LAYOUT[j].numel) for j in LAYOUT.ids}
    updates = []
    for c in fleet.clients:
        update = update_of(task_of(LAYOUT, c.id, groups, "fusion"), {j: torch.zeros(LAYOUT[j].numel) for j in groups})
        own = drift[c.id][~drift[c.id].isnan()]
        updates.append(replace(update, receipt=replace(update.receipt, stats={DRIFT: own})))
    reduced = replace(reduced_nothing(), updates=tuple(updates), receipts=tuple(u.receipt for u in updates))
    state = ServerState(models={"global": start}, facts={"home": {}, "clusters": {}})
    return config.build().aggregate(state, reduced, context_of(LAYOUT, fleet)).facts["clusters"]


@pytest.mark.parametrize(
    ("rule", "reports", "number"),
    [
        ("size", [(1.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.0, 1.0)], 1),
        ("dominant", [(1.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.0, 1.0)], 2),
        ("dominant", [(1.0, 0.5), (1.0, 0.5), (0.2, 0.1), (0.2, 0.1)], 1),
    ],
)
def test_how_many_clusters_four_clients_make(rule, reports, number):
    """One for up to five, or as many as singular values hold 90 %: two of (2, 2), one where all rows are parallel."""
    clusters = regrouped(Harmony(clusters=rule), fleet_of(*[FULL] * 4), torch.tensor(reports, dtype=torch.float64))
    assert len(set(clusters.values())) == number and clusters["0"] == clusters["1"] and clusters["2"] == clusters["3"]


def test_an_absent_client_keeps_its_cluster_and_its_encoders(tmp_path):
    run, _ = play(tmp_path, config=Harmony(clusters=2))
    before, own = run.state.facts["clusters"], dict(run.store.load(1))
    drift = run.state.tensors[DRIFT]
    run.round(4, participants=[0, 2, 4])
    assert set(run.state.facts["clusters"]) == set(before)
    assert all(torch.equal(own[j], run.store.load(1)[j]) for j in ENCODERS)
    assert torch.equal(run.state.tensors[DRIFT][[1, 3]], drift[[1, 3]])
    models = dict(run.state.models)
    assert run.round(5, participants=[4, 5]).tasks == () and run.state.models.keys() == models.keys()


# Newcomers: clients that fuse for the first time after others have -----------------------------

THREE = ("acc", "gyro", "hr")
PAIR = ("acc", "gyro")


def state_with(clusters, values):
    """Clusters whose models hold one value everywhere; the common model holds 0."""
    models = {"global": 0.0, **values}
    thetas = {view: {j: torch.full((LAYOUT[j].numel,), v) for j in LAYOUT.ids} for view, v in models.items()}
    return ServerState(models=thetas, facts={"home": {}, "clusters": {str(n): v for n, v in clusters.items()}})


def task_in(state, fleet, client):
    tasks = Harmony().build().allocate(state, context_of(LAYOUT, fleet, 3, num_rounds=3))
    return next(t for t in tasks if t.client == client)


def test_a_newcomer_starts_from_the_largest_cluster_of_its_sensors():
    """Three of the newcomer's sensors in two clusters; a pair's cluster is larger than both, and is not asked."""
    fleet = fleet_of(*[THREE] * 4, *[PAIR] * 4, modalities=THREE)
    known = {0: "cluster.0", 1: "cluster.1", 2: "cluster.1", **dict.fromkeys((4, 5, 6, 7), "cluster.2")}
    state = state_with(known, {"cluster.0": 1.0, "cluster.1": 2.0, "cluster.2": 3.0})
    assert task_in(state, fleet, 3).view == "cluster.1"
    assert {n: task_in(state, fleet, n).view for n in known} == known, "the others stay where they are"
    tied = state_with({0: "cluster.0", 1: "cluster.1"}, {"cluster.0": 1.0, "cluster.1": 2.0})
    assert task_in(tied, fleet, 3).view == "cluster.0", "the first of equals"


def test_a_newcomer_with_sensors_of_its_own_starts_where_most_are_shared():
    """Two clients of three common sensors count six, two of two count four."""
    four = (*THREE, "mag")
    fleet = fleet_of(THREE, THREE, PAIR, PAIR, four, modalities=four)
    known = {2: "cluster.0", 3: "cluster.0", 0: "cluster.1", 1: "cluster.1"}
    assert task_in(state_with(known, {"cluster.0": 1.0, "cluster.1": 2.0}), fleet, 4).view == "cluster.1"
    assert task_in(state_with({}, {}), fleet, 4).view == "global", "nobody has fused yet"


def test_a_newcomer_does_not_drag_its_cluster_to_the_first_day():
    """Two members at 4 and a newcomer that started there too: 4 plus the mean change, by hand 4 + (1 + 2) / 2."""
    state = state_with({0: "cluster.0", 1: "cluster.0"}, {"cluster.0": 4.0})
    updates = []
    for n, change in ((1, 1.0), (2, 2.0)):
        task = task_of(LAYOUT, n, FUSED, "fusion")
        update = update_of(task, {j: torch.full((LAYOUT[j].numel,), change) for j in FUSED})
        updates.append(replace(update, receipt=replace(update.receipt, stats={DRIFT: torch.ones(2)})))
    absent = torch.full((len(FLEET), 2), float("nan"), dtype=torch.float64)
    absent[[0, 1]] = 1.0
    state = replace(state, tensors={DRIFT: absent})
    reduced = replace(reduced_nothing(), updates=tuple(updates), receipts=tuple(u.receipt for u in updates))
    after = Harmony().build().aggregate(state, reduced, context_of(LAYOUT, FLEET))
    assert after.facts["clusters"] == dict.fromkeys(("0", "1", "2"), "cluster.0")
    assert all(bool((after.models["cluster.0"][j] == 5.5).all()) for j in FUSED)


def test_a_newcomer_receives_its_encoders_once(tmp_path):
    run, _ = play(tmp_path, 2, config=Harmony(clusters=1))
    run.round(3, participants=[0, 1])
    assert set(run.state.facts["clusters"]) == {"0", "1"}
    result = run.round(3, participants=[0, 2])
    downs = {r.assignment.client: set(r.assignment.down) for r in result.trained.reduced.receipts}
    assert downs == {0: set(FUSED), 2: {*FUSED, *ENCODERS}}
    assert views(result) == {0: "cluster.0", 2: "cluster.0"}
    stage_1 = run.state.models["global"]
    assert all(torch.equal(run.state.models["cluster.0"][j], stage_1[j]) for j in ENCODERS)


# Drift --------------------------------------------------------------------------------------------------------------


def test_in_the_fusion_phase_absent_sensors_are_left_out(tmp_path):
    _, rounds = play(tmp_path)
    omits = [{r.assignment.omit_absent for r in result.trained.reduced.receipts} for result in rounds]
    assert omits == [{False}, {False}, {True}]


def test_drift_is_zero_at_the_start_and_lies_in_0_2(tmp_path):
    run, _ = play(tmp_path, 2)
    run.epochs = 0
    still = [r.stats[DRIFT] for r in run.round(3).trained.reduced.receipts]
    assert all(torch.allclose(d, torch.zeros(2), atol=1e-6) for d in still)
    run.epochs = 3
    moved = [r.stats[DRIFT] for r in run.round(4).trained.reduced.receipts]
    assert all(bool(((d > 0) & (d <= 2)).all()) for d in moved) and len(moved) == 4


# Variations ---------------------------------------------------------------------------------------------------------


def test_without_fusion_in_the_federation_the_head_alone_travels(tmp_path):
    run, (_, second, third) = play(tmp_path, config=Harmony(fusion_federation="none"))
    assert all(set(r.assignment.up) == {"head.1"} for r in third.trained.reduced.receipts)
    own, fusion = run.store.committed, FUSED[:3]
    assert all(len({tuple(own[n][j].tolist()) for n in range(4)}) == 4 for j in fusion)
    before = second.state.models["global"]
    assert all(torch.equal(run.state.models["cluster.0"][j], before[j]) for j in fusion)
    assert not torch.equal(run.state.models["cluster.0"]["head.1"], before["head.1"])


def test_a_wrong_number_of_clusters_is_refused():
    for wrong in (0, -1, "many"):
        with pytest.raises(ValidationError):
            Harmony(clusters=wrong)
    assert Harmony(clusters=3).clusters == 3 and Harmony(clusters="dominant").clusters == "dominant"


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_both_missing_modes_and_engines_stay_finite(missing, engine, tmp_path):
    run, _ = play(tmp_path, 4, missing=missing, engine=engine)
    assert all(bool(torch.isfinite(x).all()) for model in run.state.models.values() for x in model.values())


# Evaluation ---------------------------------------------------------------------------------------------------------


def test_each_client_is_tested_by_the_network_it_has(tmp_path):
    run, _ = play(tmp_path, 1, epochs=4, lr=0.05, build_args={"b_zero": False})
    first = run.strategy.evaluate(run.state, FLEET)
    assert {t.output for t in first.clients} == {"unimodal.acc", "unimodal.hr"} and first.canonical.view == "global"
    play(tmp_path, 3, start=2, run=run)
    plan = run.strategy.evaluate(run.state, FLEET)
    label = run.state.facts["clusters"]["0"]
    assert [(t.view, t.output) for t in plan.clients[4:]] == [("global", "unimodal.acc"), ("global", "unimodal.hr")]
    assert all((t.view, t.output, set(t.keep)) == (label, None, set(ENCODERS)) for t in plan.clients[:4])
    assert all(t.omit_absent for t in plan.clients[:4]), "nobody has networks of sensors that it lacks"
    assert plan.canonical.view == label and not plan.canonical.keep, "on the encoders that all owners share"
    counts = run.executor.evaluate(run.state.models, plan.clients, run.store.committed, "test")
    fused = [replace(t, output=None) for t in plan.clients[4:]]
    other = run.executor.evaluate(run.state.models, fused, run.store.committed, "test")
    assert not torch.equal(counts["client.4"], other["client.4"]), "the unimodal head is another classifier"


def test_the_canonical_fusion_is_of_the_largest_cluster_of_the_richest():
    three = ("acc", "gyro", "hr")
    fleet = fleet_of(*[("acc", "gyro")] * 3, *[three] * 3, modalities=three)
    clusters = {
        "0": "cluster.0",
        "1": "cluster.0",
        "2": "cluster.0",
        "3": "cluster.1",
        "4": "cluster.2",
        "5": "cluster.2",
    }
    state = ServerState(models={"global": {}}, facts={"home": {}, "clusters": clusters})
    assert Harmony().build().evaluate(state, fleet).canonical.view == "cluster.2"


# A whole run --------------------------------------------------------------------------------------------------------


def test_single_sensor_clients_spend_idle_power_alone_while_others_fuse(run_cache, tmp_path):
    config = config_of("harmony")
    drive(config, tmp_path / "run")
    last = read_rounds(tmp_path / "run")[-1]
    assert last.phase == "fusion" and {c.phase for c in last.clients} == {"fusion"}
    for cost in last.costs.values():
        idle = [c for c in cost.clients if c.client not in {r.client for r in last.clients}]
        assert len(idle) == 2 and all(c.wait_s == cost.round_s and c.times.forward_s == c.times.up_s == 0 for c in idle)
        assert all(c.energy_j == pytest.approx(0.2 * 5.0 * cost.round_s) for c in idle), "a fifth of 5 W"
    assert last.metrics is not None and last.metrics.f1 is not None and last.metrics.f1_fleet is not None
