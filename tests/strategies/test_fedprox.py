"""FedProx: the tether, its gradient, and what it must not change."""

import pytest
import torch

from relief_ray.federated import LocalStep, task_loss
from relief_ray.strategies.fedavg import FedAvg
from relief_ray.strategies.fedprox import FedProx, proximal_loss
from tests.toy import bench

LOGITS, LABELS = torch.tensor([[0.3, -0.2], [0.1, 0.9]]), torch.tensor([0, 1])


def step(params, start):
    return LocalStep(logits=LOGITS, labels=LABELS, taps={}, params=params, start=start, args={})


def test_mu_2_and_a_drift_of_3_4_add_25():
    """``(mu / 2) |(3, 4)|^2 = 25``."""
    found = step({"a": torch.tensor([4.0, 5.0])}, {"a": torch.tensor([1.0, 1.0])})
    assert (proximal_loss(2.0, found) - task_loss(found)).item() == pytest.approx(25.0, abs=1e-5)


def test_only_trained_groups_are_tethered_each_by_its_own_norm():
    found = step(
        {"a": torch.tensor([3.0]), "b": torch.tensor([0.0, 4.0])},
        {"a": torch.zeros(1), "b": torch.zeros(2), "frozen": torch.ones(5)},
    )
    assert (proximal_loss(0.5, found) - task_loss(found)).item() == pytest.approx(0.25 * (9 + 16), abs=1e-5)


def test_gradient_is_mu_times_the_drift_and_the_start_is_a_constant():
    theta, start = torch.tensor([1.0, -2.0], requires_grad=True), torch.tensor([0.5, 1.0], requires_grad=True)
    proximal_loss(0.1, step({"a": theta}, {"a": start.detach()})).backward()
    torch.testing.assert_close(theta.grad, 0.1 * torch.tensor([0.5, -3.0]))
    assert start.grad is None


def models_after(strategy, folder, *, rounds=2, **options):
    run = bench(strategy, folder, build_args={"b_zero": False}, **options)
    for round_ in range(1, rounds + 1):
        run.round(round_)
    return run.state.models["global"]


@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_mu_zero_is_fedavg_bit_for_bit(tmp_path, engine):
    options = {"epochs": 3, "engine": engine}
    plain, prox = (models_after(s.build(), tmp_path, **options) for s in (FedAvg(), FedProx(mu=0.0)))
    assert all(torch.equal(plain[j], prox[j]) for j in plain)


@pytest.mark.parametrize("mu", [0.01, 1.0, 100.0])
def test_a_single_local_step_is_fedavg_for_every_mu(tmp_path, mu):
    """At the start there is no drift: the first gradient is the task's."""
    options = {"epochs": 1, "batch_size": 64, "rounds": 1}
    plain, prox = (models_after(s.build(), tmp_path, **options) for s in (FedAvg(), FedProx(mu=mu)))
    assert all(torch.equal(plain[j], prox[j]) for j in plain)


def test_a_stronger_tether_keeps_clients_nearer(tmp_path):
    drifts = []
    for mu in (0.0, 1.0, 30.0):
        run = bench(FedProx(mu=mu).build(), tmp_path, epochs=8, build_args={"b_zero": False})
        receipts = run.round(1).trained.reduced.receipts
        drifts.append(sum(sum(r.sq_norm.values()) for r in receipts))
    assert drifts[0] > drifts[1] > drifts[2] > 0


def test_configuration():
    assert FedProx().mu == 0.01
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        FedProx(mu=-1.0)
    with pytest.raises(ValueError, match="Extra inputs"):
        FedProx(nu=1.0)
