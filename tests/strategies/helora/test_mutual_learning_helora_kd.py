"""HeLoRA-KD: a model for every client, of its own rank, that learns from the others on public windows."""

from dataclasses import replace

import pytest
import torch

from relief_ray.core.groups import Part
from relief_ray.core.messages import EvalTarget
from relief_ray.experiment.setup import context_of as setup_context
from relief_ray.experiment.setup import prepare
from relief_ray.models.backbone import BackboneNetwork
from relief_ray.records.run_folder import read_rounds
from relief_ray.strategies import helora as mutual_learning
from relief_ray.strategies.helora import HeLoRA, sizes
from relief_ray.support.errors import UserError
from tests.conformance.cases import config_of, drive
from tests.toy import ACC, FOUR, bench, build, context_of, fleet_of, windows_for

LAYOUT = build().layout
TYPES = replace(FOUR, clients=tuple(replace(c, device=d) for c, d in zip(FOUR.clients, "AABC", strict=True)))
LORA = ("fusion.A.acc", "fusion.A.hr", "fusion.B", "encoder.acc.1", "encoder.hr.1")
KD = HeLoRA(variant="kd", kd_epochs=2, kd_lr=1e-2)
VIEWS = [f"client.{n}" for n in range(4)]


def run_of(folder, config=KD, fleet=TYPES, **options):
    """A bench with a backbone and 30 public windows on the server."""
    strategy = config.build()
    missing = options.get("missing", "zero_input")
    _, public = windows_for(fleet_of(*[ACC] * 30), folder, seed=7)

    def aggregate(state, reduced, tools):
        tools = replace(tools, build=lambda: BackboneNetwork(build(b_zero=False), missing), public=public)
        return strategy.aggregate(state, reduced, tools)

    options = {"build_args": {"b_zero": False}, **options}
    return bench(replace(strategy, aggregate=aggregate), folder, fleet=fleet, **options)


def beyond_rank_1(group):
    outside = torch.ones(LAYOUT[group].numel, dtype=torch.bool)
    outside[LAYOUT.indices(group, Part(rank=1))] = False
    return outside


def test_everybody_starts_from_the_common_model_at_its_own_rank(tmp_path):
    run = run_of(tmp_path)
    assert list(run.state.models) == [*VIEWS, "global"]
    assert all(torch.equal(run.state.models["client.0"][j], run.start[j]) for j in LAYOUT.ids)
    for j in LORA:
        small, outside = run.state.models["client.3"][j], beyond_rank_1(j)
        assert not small[outside].any() and torch.equal(small[~outside], run.start[j][~outside])


def test_payloads_are_those_of_the_own_rank_and_the_own_model(tmp_path):
    run, pad = run_of(tmp_path), bench(HeLoRA().build(), tmp_path, fleet=TYPES)
    ours, theirs = (r.round(1).trained.reduced.receipts for r in (run, pad))
    assert [r.assignment.view for r in ours] == VIEWS
    assert [(r.bytes_up, r.bytes_down) for r in ours] == [(r.bytes_up, r.bytes_down) for r in theirs]
    assert [r.assignment.train for r in ours] == [sizes(KD, LAYOUT, TYPES, c) for c in TYPES.clients]


def test_ranks_are_unchanged_after_rounds(tmp_path):
    run = run_of(tmp_path)
    run.round(1), run.round(2)
    for j in LORA:
        outside = beyond_rank_1(j)
        assert not run.state.models["client.3"][j][outside].any()
        assert run.state.models["client.0"][j][outside].any()
        moved = run.state.models["client.3"][j][~outside] != run.start[j][~outside]
        assert moved.any()


def test_the_server_teaches_what_came_back_and_nothing_else(tmp_path):
    """A round is: local models out of the updates, then ``teach_each_other`` on 20 of the public windows."""
    run = run_of(tmp_path)
    before = run.state.models
    updates = run.round(1).trained.reduced.updates
    local = [
        {j: before[v][j].clone().index_put_((index(u, j),), before[v][j][index(u, j)] + u.delta[j]) for j in LAYOUT.ids}
        for u, v in zip(updates, VIEWS, strict=True)
    ]
    taught = [run.state.models[v] for v in VIEWS]
    gaps = [max(float((a[j] - b[j]).abs().max()) for j in LAYOUT.ids) for a, b in zip(local, taught, strict=True)]
    # 2 epochs on 20 windows are two steps of AdamW: at most 2 lr (1 + decay's share) from where the client was.
    assert all(0 < gap < 2.2e-2 for gap in gaps)


def index(update, group):
    indices = LAYOUT.indices(group, update.receipt.assignment.up[group])
    return torch.arange(indices.start, indices.stop) if isinstance(indices, slice) else indices


def test_a_client_on_its_own_is_taught_nothing_but_decay(tmp_path):
    """One participant agrees with the mean of itself: its change is what it learned, times AdamW's decay."""
    run = run_of(tmp_path)
    (update,) = run.round(1, participants=[0]).trained.reduced.updates
    for j in LAYOUT.ids:
        expected = (run.start[j] + update.delta[j]) * (1 - 1e-2 * 0.01) ** 2
        torch.testing.assert_close(run.state.models["client.0"][j], expected, rtol=1e-5, atol=1e-7)


def test_an_absent_client_keeps_its_model(tmp_path):
    run = run_of(tmp_path)
    run.round(1)
    before = {v: dict(m) for v, m in run.state.models.items()}
    run.round(2, participants=[0, 3])
    for v in ("client.1", "client.2"):
        assert all(torch.equal(before[v][j], run.state.models[v][j]) for j in LAYOUT.ids)
    assert not torch.equal(before["client.3"]["head.1"], run.state.models["client.3"]["head.1"])


def test_every_client_is_tested_on_its_own_model_and_the_canonical_one_is_a_diagnostic(tmp_path):
    run = run_of(tmp_path)
    plan = run.strategy.evaluate(run.state, TYPES)
    assert plan.canonical == EvalTarget(label="global")
    assert [(t.view, t.modalities, t.client) for t in plan.clients] == [
        (v, c.modalities, c.id) for v, c in zip(VIEWS, TYPES.clients, strict=True)
    ]


@pytest.mark.parametrize(
    ("weighting", "shares", "expected"),
    [
        ("uniform", {"A": 1.0}, [0.5, 0.5]),
        ("samples", {"A": 1.0}, [6 / 13, 7 / 13]),
        ("uniform", {"A": 0.5}, [0.0, 1.0]),
    ],
)
def test_the_canonical_model_is_the_mean_of_the_fullest_with_all_sensors(tmp_path, weighting, shares, expected):
    """Clients 0 and 1 own both sensors, 6 and 7 windows; at half its rank client 0 (A) is no longer the fullest.

    Client 2 (B, accelerometer alone) never counts, whatever its rank.
    """
    fleet = replace(
        TYPES, clients=(TYPES[0], replace(TYPES[1], device="A" if shares["A"] == 1.0 else "B"), *TYPES.clients[2:])
    )
    config = HeLoRA(variant="kd", kd_epochs=1, weighting=weighting, rank_share={**shares, "B": 1.0})
    run = run_of(tmp_path, config, fleet)
    for round_, participants in ((1, None), (2, [1, 3])):
        run.round(round_, participants=participants)
        own = [run.state.models[v] for v in VIEWS[:2]]
        for j in LAYOUT.ids:
            mean = sum(share * theta[j].double() for share, theta in zip(expected, own, strict=True))
            torch.testing.assert_close(run.state.models["global"][j], mean.float(), rtol=1e-6, atol=1e-7)
        assert not torch.equal(own[0]["head.1"], own[1]["head.1"]), "a mean of two things"


def test_public_windows_are_evenly_taken_and_have_no_labels(tmp_path):
    _, public = windows_for(fleet_of(ACC), tmp_path)
    tools = replace(context_of(LAYOUT), public=public)
    everything = public.load()
    windows = mutual_learning.public_windows(tools, 6)
    assert set(windows) == {"acc", "hr"} and len(public) == 20
    torch.testing.assert_close(windows["hr"], torch.from_numpy(everything["hr"][[0, 3, 6, 10, 13, 16]]))
    assert len(mutual_learning.public_windows(tools, 999)["acc"]) == 20
    with pytest.raises(UserError, match="no public windows"):
        mutual_learning.public_windows(context_of(LAYOUT), 6)


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_both_missing_modes_and_engines_stay_finite(missing, engine, tmp_path):
    run = run_of(tmp_path, missing=missing, engine=engine)
    run.round(1), run.round(2)
    assert all(bool(torch.isfinite(x).all()) for theta in run.state.models.values() for x in theta.values())


def test_samples_weigh_the_common_target(tmp_path):
    heads = []
    for weighting in ("uniform", "samples"):
        run = run_of(tmp_path, HeLoRA(variant="kd", kd_epochs=1, kd_lr=1e-2, weighting=weighting))
        run.round(1)
        heads.append(run.state.models["client.0"]["head.1"])
    assert not torch.equal(*heads)


def test_a_whole_run_teaches_on_the_validation_part(run_cache, tmp_path):
    """No client trains on those windows and no test part has them; F1 is the fleet's."""
    config = config_of("helora, taught")
    setup = prepare(config)
    public = setup_context(setup, 1).public
    assert public is setup.data.validation and len(public) > 0
    used = {int(s) for c in (*setup.data.clients, setup.data.test) for s in c.starts}
    assert used.isdisjoint(int(s) for s in public.starts)
    drive(config, tmp_path / "run")
    last = read_rounds(tmp_path / "run")[-1]
    assert last.metrics is not None and last.metrics.f1 is not None and last.metrics.f1_fleet is not None
    assert last.metrics.headline == last.metrics.f1_fleet
    assert [c.view for c in last.clients] == [f"client.{c.client}" for c in last.clients]


def test_configuration():
    assert HeLoRA().variant == "pad" and HeLoRA(variant="kd").kd_lr == 5e-5
    for wrong in ({"variant": "mutual"}, {"kd_epochs": 0}, {"kd_lr": 0.0}, {"public_windows": 0}):
        with pytest.raises(ValueError, match="Input should be"):
            HeLoRA(**wrong)
