"""FedProx: the tether, its gradient, and what it must not change."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from relief_ray.core.client import LocalStep, task_loss
from relief_ray.core.federated import PlannedRun
from relief_ray.core.messages import ServerState, StageTimes
from relief_ray.records.run_folder import read_rounds
from relief_ray.strategies.fedavg import FedAvg
from relief_ray.strategies.fednova import FedNova
from relief_ray.strategies.fedprox import FedProx
from tests.conformance.cases import config_of, drive
from tests.toy import FOUR, bench, build, context_of, task_of, with_sgd

LOGITS, LABELS = torch.tensor([[0.3, -0.2], [0.1, 0.9]]), torch.tensor([0, 1])


def step(params, start):
    return LocalStep(logits=LOGITS, labels=LABELS, taps={}, params=params, start=start, args={})


def test_mu_2_and_a_drift_of_3_4_add_25():
    """``(mu / 2) |(3, 4)|^2 = 25``."""
    local_step = step({"a": torch.tensor([4.0, 5.0])}, {"a": torch.tensor([1.0, 1.0])})
    assert (FedProx(mu=2.0).client_loss(local_step) - task_loss(local_step)).item() == pytest.approx(25.0, abs=1e-5)


def test_only_trained_groups_are_tethered_each_by_its_own_norm():
    local_step = step(
        {"a": torch.tensor([3.0]), "b": torch.tensor([0.0, 4.0])},
        {"a": torch.zeros(1), "b": torch.zeros(2), "frozen": torch.ones(5)},
    )
    assert (FedProx(mu=0.5).client_loss(local_step) - task_loss(local_step)).item() == pytest.approx(
        0.25 * (9 + 16), abs=1e-5
    )


def test_gradient_is_mu_times_the_drift_and_the_start_is_a_constant():
    theta, start = torch.tensor([1.0, -2.0], requires_grad=True), torch.tensor([0.5, 1.0], requires_grad=True)
    FedProx(mu=0.1).client_loss(step({"a": theta}, {"a": start.detach()})).backward()
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


def test_sgd_on_a_quadratic_ends_where_the_hand_says():
    """``F(w) = 2 |w - 3|^2`` from 0: with the tether the minimum is ``12 / (4 + mu)``, nearer to 0 as mu grows.

    ``F`` is a cross-entropy of nothing: only the tether of ``client_loss`` is taken, the task is the parabola.
    """
    ends = []
    for mu in (0.0, 1.0, 4.0, 20.0):
        start, w = torch.zeros(1), torch.zeros(1, requires_grad=True)
        for _ in range(200):
            local_step = step({"w": w}, {"w": start})
            loss = 2.0 * (w - 3.0).square().sum() + FedProx(mu=mu).client_loss(local_step) - task_loss(local_step)
            (gradient,) = torch.autograd.grad(loss, w)
            with torch.no_grad():
                w -= 0.05 * gradient
        ends.append(w.item())
    assert ends == pytest.approx([3.0, 12 / 5, 12 / 8, 12 / 24], abs=1e-4)


def test_a_stronger_tether_keeps_clients_nearer_under_sgd(tmp_path):
    """The head alone learns: its cross-entropy is convex, so ``|theta_n - theta^r|`` falls in mu for every client."""
    drifts = []
    for mu in (0.0, 0.1, 1.0, 4.0):
        plain = FedProx(mu=mu).build()
        run = with_sgd(bench(replace(plain, allocate=head_alone), tmp_path, epochs=20, lr=0.1))
        drifts.append([r.sq_norm["head.1"] for r in run.round(1).trained.reduced.receipts])
    for own in zip(*drifts, strict=True):
        assert own[0] > own[1] > own[2] > own[3] > 0


def head_alone(state, context):
    return tuple(replace(task_of(context.layout, c.id, ["head.1"]), epochs=20) for c in context.participants)


# What it costs ------------------------------------------------------------------------------------------------------


def test_the_tether_costs_three_flops_per_trained_value_and_step(tmp_path):
    """Client n has 6 + n windows in batches of 4, 2 epochs: 4 steps for all but the last, which has 6."""
    run = bench(FedProx().build(), tmp_path, epochs=2)
    work = [r.work for r in run.round(1).trained.reduced.receipts]
    assert [w.num_steps for w in work] == [4, 4, 4, 6]
    assert [w.extra_flops for w in work] == [3.0 * run.backbone.layout.numel * w.num_steps for w in work]
    free = bench(FedProx(mu=0.0).build(), tmp_path, epochs=2).round(1).trained.reduced.receipts
    assert [r.work.extra_flops for r in free] == [0.0] * 4, "without mu nothing is computed"


def test_a_run_is_charged_for_the_tether_by_every_clock_and_its_records_say_so(run_cache, tmp_path):
    last_rounds = {}
    for name in ("fedavg", "fedprox"):
        drive(config_of(name), tmp_path / name)
        last_rounds[name] = read_rounds(tmp_path / name)[-1]
    plain, prox = last_rounds["fedavg"], last_rounds["fedprox"]
    for one, other in zip(plain.clients, prox.clients, strict=True):
        assert one.extra_flops == 0.0 and other.extra_flops > 0.0
        assert (one.num_steps, one.bytes_up, one.bytes_down) == (other.num_steps, other.bytes_up, other.bytes_down)
    for clock, cost in prox.costs.items():
        for one, other, client in zip(plain.costs[clock].clients, cost.clients, prox.clients, strict=True):
            mine, bare = (sum((c.times.forward_s, c.times.backward_s, c.times.optimizer_s)) for c in (other, one))
            assert mine > bare, (clock, client.client)
        assert cost.energy_j > plain.costs[clock].energy_j
    assert prox.speedup is not None and prox.speedup < 1.0


# Partial work -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PerEpoch:
    """One second on the link and ``tau_n`` seconds an epoch."""

    tau_s: tuple[float, ...]

    def times(self, client, assignment):
        return StageTimes(backward_s=self.tau_s[client] * assignment.epochs, up_s=1.0)


def epochs_of(config, tau_s, devices="AABC", **options):
    clients = tuple(replace(c, device=d, num_windows=10) for c, d in zip(FOUR.clients, devices, strict=True))
    fleet = replace(FOUR, clients=clients)
    context = context_of(build(), fleet, planner=PerEpoch(tau_s=tau_s), epochs=5, **options)
    return [t.epochs for t in config.build().allocate(ServerState(models={}), context)]


@pytest.mark.parametrize(
    ("deadline_s", "expected"),
    [(None, [5, 5, 3, 1]), (6.0, [5, 4, 2, 1]), (11.0, [5, 5, 5, 1]), (41.0, [5, 5, 5, 2]), (0.5, [1, 1, 1, 1])],
)
def test_epochs_are_those_that_end_before_the_deadline(deadline_s, expected):
    """A device takes 1 + e tau s, tau = (1, 1.2, 2, 20): the fastest type's slower client is done after 7 s."""
    config = FedProx(partial_work="deadline", deadline_s=deadline_s)
    assert epochs_of(config, (1.0, 1.2, 2.0, 20.0)) == expected


@pytest.mark.parametrize("config", [FedProx(partial_work="deadline", deadline_s=6.0), FedNova(deadline_s=6.0)])
def test_a_client_for_whom_no_epoch_ends_in_time_is_named(config):
    """One epoch of 20 s and 1 s of link, against a deadline of 6 s."""
    context = context_of(build(), FOUR, planner=PerEpoch(tau_s=(1.0, 1.2, 2.0, 20.0)), epochs=5)
    said = config.build().insight.warnings(PlannedRun(context=context, clock="c", participation=1.0))
    assert said == (
        "the deadline = 6 s is too short for one epoch of client 3 (21 s, 15 s more); such a client runs one all the "
        "same",
    )
    assert FedProx().build().insight.warnings(PlannedRun(context=context, clock="c", participation=1.0)) == ()


def test_the_fleets_deadline_does_not_depend_on_who_takes_part():
    assert epochs_of(FedProx(partial_work="deadline"), (1.0, 1.2, 2.0, 20.0), participants=[2, 3]) == [3, 1]


@pytest.mark.parametrize("tau", [1.0, 1 / 3, 0.1, 7e-5])
def test_equal_devices_run_all_epochs(tau):
    """``deadline`` is ``off``: a deadline that is everybody's own time is met, whatever the rounding."""
    assert epochs_of(FedProx(partial_work="deadline"), (tau,) * 4, "AAAA") == [5] * 4
    assert epochs_of(FedProx(), (tau,) * 4, "AAAA") == [5] * 4


def test_equal_devices_with_a_deadline_give_the_same_bits_as_off(tmp_path):
    options = {"epochs": 3, "planner": PerEpoch(tau_s=(0.1,) * 4)}
    off, late = (models_after(FedProx(partial_work=p).build(), tmp_path, **options) for p in ("off", "deadline"))
    assert all(torch.equal(off[j], late[j]) for j in off)


@given(st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=4), st.floats(1e-3, 1e4), st.booleans())
def test_epochs_are_always_between_one_and_all(tau_s, deadline_s, is_given):
    config = FedProx(partial_work="deadline", deadline_s=deadline_s if is_given else None)
    assert set(epochs_of(config, tuple(tau_s))) <= {1, 2, 3, 4, 5}


@pytest.mark.ci
def test_stragglers_do_less_and_the_simulated_round_is_shorter(run_cache, tmp_path):
    """The paper's fleet on the shipped data: its slowest type computes one epoch, and the record says so."""
    last_rounds = {}
    for partial_work in ("off", "deadline"):
        strategy = {"name": "fedprox", "partial_work": partial_work}
        drive(config_of("fedprox", strategy=strategy, training={"epochs": 3, "lr": 0.01}), tmp_path / partial_work)
        last_rounds[partial_work] = read_rounds(tmp_path / partial_work)[-1]
    off, late = last_rounds["off"], last_rounds["deadline"]
    assert {c.epochs for c in off.clients} == {3}
    epochs = [c.epochs for c in late.clients]
    assert epochs[0] == 3 and min(epochs) == 1
    assert all(c.num_steps * 3 == o.num_steps * c.epochs for c, o in zip(late.clients, off.clients, strict=True))
    assert late.costs["split_naive"].round_s < off.costs["split_naive"].round_s


def test_configuration():
    with pytest.raises(ValidationError, match=r"deadline_s = 3\.0 with partial_work = 'off'"):
        FedProx(deadline_s=3.0)
    with pytest.raises(ValidationError, match="greater than 0"):
        FedProx(partial_work="deadline", deadline_s=0.0)
    with pytest.raises(ValidationError, match="'off' or 'deadline'"):
        FedProx(partial_work="random")
    assert FedProx().mu == 0.01
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        FedProx(mu=-1.0)
    with pytest.raises(ValueError, match="Extra inputs"):
        FedProx(nu=1.0)
