"""FedSA-LoRA: A is shared, B and head stay; no LoRA, no A: what ``dense_local`` names stays."""

import pytest
import torch

from relief_ray.core.groups import WHOLE
from relief_ray.core.messages import ServerState
from relief_ray.server.aggregation import mean_personal
from relief_ray.strategies.fedavg import FedAvg
from relief_ray.strategies.fedsa_lora import A_ONLY, ALL_BUT_A, FedSALoRA, split
from tests.toy import ACC, FOUR, FULL, bench, build, fleet_of, with_same_data

LAYOUT = build().layout
PERSONAL = {"encoder.acc.1", "encoder.hr.1", "fusion.B", "head.1"}


def tensors(group, theta):
    return LAYOUT.unflatten(group, theta)


def test_every_value_is_either_shared_or_kept():
    up, keep = split(LAYOUT, "none")
    assert up == {j: WHOLE if j.startswith("fusion.A") else A_ONLY for j in up}
    assert keep == {j: ALL_BUT_A if j.startswith("encoder") else WHOLE for j in PERSONAL}
    assert LAYOUT.num_values(up) + LAYOUT.num_values(keep) == LAYOUT.numel


def test_the_payload_is_the_a_factors_alone(tmp_path):
    """``a``: 2 x 16 (acc), 2 x 8 (hr), 2 x 6 per fusion block."""
    run = bench(FedSALoRA().build(), tmp_path)
    result = run.round(1)
    assert {"fusion.B", "head.1"}.isdisjoint(result.tasks[0].up)
    assert result.tasks[0].down == result.tasks[0].up
    assert LAYOUT.num_values(result.tasks[0].up) == 2 * 16 + 2 * 8 + 2 * 6 + 2 * 6
    assert all(r.bytes_up == r.bytes_down for r in result.trained.reduced.receipts)


def test_the_server_never_changes_b_or_head_and_moves_a(tmp_path):
    run = bench(FedSALoRA().build(), tmp_path)
    run.round(1), run.round(2)
    after = run.state.models["global"]
    for j in ("encoder.acc.1", "encoder.hr.1"):
        assert torch.equal(tensors(j, after[j])["b"], tensors(j, run.start[j])["b"])
        assert not torch.equal(tensors(j, after[j])["a"], tensors(j, run.start[j])["a"])
    assert all(torch.equal(after[j], run.start[j]) for j in ("fusion.B", "head.1"))


def test_own_b_and_head_differ_and_survive_a_round_that_a_client_misses(tmp_path):
    run = bench(FedSALoRA().build(), tmp_path)
    run.round(1)
    before = {n: dict(run.store.load(n)) for n in range(4)}
    assert set(before[0]) == PERSONAL
    assert not any(torch.equal(before[0][j], before[1][j]) for j in PERSONAL)
    run.round(2, participants=[0, 2])
    assert all(torch.equal(before[1][j], run.store.load(1)[j]) for j in PERSONAL)
    assert not any(torch.equal(before[0][j], run.store.load(0)[j]) for j in ("fusion.B", "head.1"))


def test_training_continues_from_the_own_b(tmp_path):
    """With no step to take, what is restored is what is kept."""
    run = bench(FedSALoRA().build(), tmp_path)
    run.round(1)
    before = {n: dict(run.store.load(n)) for n in range(4)}
    run.epochs = 0
    run.round(2)
    assert all(torch.equal(before[n][j], run.store.load(n)[j]) for n in range(4) for j in PERSONAL)


def test_before_training_lora_adds_nothing():
    """``W0 + s B A = W0`` wherever B starts at zero."""
    start = build().params()
    for j in ("encoder.acc.1", "encoder.hr.1", "fusion.B"):
        assert not tensors(j, start[j])["b"].any()


def test_clients_without_a_sensor_dilute_its_owners_mean_exactly(tmp_path):
    """Masked features: the step of ``A_hr`` is (2 / 4) of the two owners' mean, non-owners send zeros."""
    run = bench(FedSALoRA().build(), tmp_path, missing="zero_feature", build_args={"b_zero": False})
    result = run.round(1)
    part = result.trained.reduced.sums["global"]["fusion.A.hr"]
    twin = bench(FedSALoRA().build(), tmp_path, missing="zero_feature", build_args={"b_zero": False})
    owners = twin.round(1, participants=[0, 1]).trained.reduced.sums["global"]["fusion.A.hr"]
    assert part.members == (0, 1, 2, 3) and owners.members == (0, 1)
    assert torch.equal(part.plain, owners.plain)
    moved = run.state.models["global"]["fusion.A.hr"].double() - run.start["fusion.A.hr"].double()
    torch.testing.assert_close(moved, owners.plain / 4, rtol=1e-5, atol=1e-7)
    assert moved.any()


def test_a_single_client_has_fedavgs_trajectory(tmp_path):
    """A single client's own model and FedAvg's global one agree after three rounds."""
    fleet = fleet_of(FULL)
    ours, theirs = bench(FedSALoRA().build(), tmp_path, fleet=fleet), bench(FedAvg().build(), tmp_path, fleet=fleet)
    for round_ in (1, 2, 3):
        ours.round(round_), theirs.round(round_)
    _, keep = split(LAYOUT, "none")
    own = mean_personal(ours.state.models["global"], {0: ours.store.load(0)}, keep, LAYOUT)
    for j in LAYOUT.ids:
        torch.testing.assert_close(own[j], theirs.state.models["global"][j], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("b_zero", [True, False])
def test_identical_data_give_every_client_fedavgs_trajectory(tmp_path, b_zero):
    """Three clients on the same windows: after each round all own models are FedAvg's one; on other data they part."""
    options = {"fleet": fleet_of(FULL, FULL, FULL), "batch_size": 64, "epochs": 3, "build_args": {"b_zero": b_zero}}
    _, keep = split(LAYOUT, "none")
    gaps = {}
    for same in (True, False):
        ours, theirs = (bench(s.build(), tmp_path, **options) for s in (FedSALoRA(), FedAvg()))
        for run in (ours, theirs) if same else ():
            with_same_data(run)
        gaps[same] = []
        for round_ in (1, 2, 3):
            ours.round(round_), theirs.round(round_)
            for n in range(3):
                own = mean_personal(ours.state.models["global"], {n: ours.store.load(n)}, keep, LAYOUT)
                gaps[same] += [float((own[j] - x).abs().max()) for j, x in theirs.state.models["global"].items()]
    assert max(gaps[True]) < 1e-5 and max(gaps[False]) > 1e-2


def test_plan_names_own_models_and_a_canonical_one(tmp_path):
    run = bench(FedSALoRA().build(), tmp_path)
    plan = run.strategy.evaluate(run.state, FOUR)
    assert plan.canonical is not None and set(plan.canonical.keep) == PERSONAL
    assert [t.client for t in plan.clients] == [0, 1, 2, 3] and plan.clients[2].modalities == ACC
    assert run.strategy.evaluate(ServerState(models={}, facts={"kept": {}}), FOUR).clients == ()


def test_canonical_mean_is_by_hand():
    theta = {j: torch.zeros(LAYOUT[j].numel) for j in LAYOUT.ids}
    _, keep = split(LAYOUT, "none")
    size = LAYOUT.num_values({"encoder.acc.1": ALL_BUT_A})
    states = {1: {"encoder.acc.1": torch.full((size,), 3.0)}, 0: {"encoder.acc.1": torch.full((size,), 1.0)}, 2: {}}
    mean = tensors("encoder.acc.1", mean_personal(theta, states, keep, LAYOUT)["encoder.acc.1"])
    assert bool((mean["b"] == 2.0).all()) and not mean["a"].any()


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_both_missing_modes_and_engines_stay_finite(missing, engine, tmp_path):
    run = bench(FedSALoRA().build(), tmp_path, missing=missing, engine=engine)
    run.round(1), run.round(2)
    assert all(bool(torch.isfinite(theta).all()) for theta in run.state.models["global"].values())
