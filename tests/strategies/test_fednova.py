"""FedNova: normalised averaging by hand, and what equal work makes of it."""

from dataclasses import replace

import pytest
import torch

from relief_ray.core.messages import ServerState
from relief_ray.strategies.fedavg import FedAvg
from relief_ray.strategies.fednova import FedNova, effective_steps
from relief_ray.support.errors import UserError
from tests.strategies.test_fedprox import PerEpoch, models_after
from tests.toy import FOUR, build, context_of, reduced_of, update_of

LAYOUT = build().layout
GROUP = "head.1"


@pytest.mark.parametrize(
    ("steps", "momentum", "expected"),
    [
        (1, 0.0, 1.0),
        (7, 0.0, 7.0),
        (1, 0.9, 1.0),
        (2, 0.9, 2.9),  # the first gradient counts 1 + 0.9 times
        (3, 0.5, 4.25),  # 1.75 + 1.5 + 1
    ],
)
def test_effective_steps_by_hand(steps, momentum, expected):
    assert effective_steps(steps, momentum) == pytest.approx(expected)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9])
def test_effective_steps_add_up_the_weights_of_all_gradients(momentum):
    """Gradient k of tau moves the model ``1 + b + .. + b^(tau - k)`` times its size."""
    for steps in (1, 2, 5, 12):
        weights = [sum(momentum**i for i in range(steps - k)) for k in range(steps)]
        assert effective_steps(steps, momentum) == pytest.approx(sum(weights))


def aggregated(config, tau_s, deltas, momentum=0.0):
    """The model after a round from 0 in which client n moved its head by ``deltas[n]``."""
    clients = tuple(replace(c, device="AABC"[c.id], num_windows=10) for c in FOUR.clients)
    fleet = replace(FOUR, clients=clients)
    context = replace(context_of(build(), fleet, planner=PerEpoch(tau_s=tau_s), epochs=5), momentum=momentum)
    strategy, zeros = config.build(), {g.id: torch.zeros(g.numel) for g in LAYOUT}
    tasks = strategy.allocate(ServerState(models={"global": zeros}), context)
    updates = [
        update_of(t, {g.id: torch.full((g.numel,), d) for g in LAYOUT}) for t, d in zip(tasks, deltas, strict=True)
    ]
    state = ServerState(models={"global": zeros})
    after = strategy.aggregate(state, reduced_of(updates, strategy.reduction, LAYOUT, fleet), context)
    return [t.epochs for t in tasks], float(after.models["global"][GROUP][0])


def test_normalised_averaging_by_hand():
    """Ten windows in batches of four are three steps an epoch; 5, 5, 3, 1 epochs are 15, 15, 9 and 3 steps.

    tau_eff = (15 + 15 + 9 + 3) / 4 = 10.5; the mean of Delta_n / tau_n = (3/15 + 1.5/15 + 1.8/9 + 0.9/3) / 4 = 0.2.
    """
    epochs, moved = aggregated(FedNova(), (1.0, 1.2, 2.0, 20.0), (3.0, 1.5, 1.8, 0.9))
    assert epochs == [5, 5, 3, 1]
    assert moved == pytest.approx(10.5 * 0.2)


def test_with_momentum_by_hand():
    steps = [effective_steps(n, 0.5) for n in (15, 15, 9, 3)]
    deltas = (3.0, 1.5, 1.8, 0.9)
    expected = sum(steps) / 4 * sum(d / a for d, a in zip(deltas, steps, strict=True)) / 4
    assert aggregated(FedNova(), (1.0, 1.2, 2.0, 20.0), deltas, momentum=0.5)[1] == pytest.approx(expected)


def test_clients_whose_every_step_is_the_same_are_one_direction_of_the_mean_length():
    """FedAvg would go as far here; where directions differ, that of more steps would win."""
    deltas = (15.0, 15.0, 9.0, 3.0)  # one unit a step, all alike
    assert aggregated(FedNova(), (1.0, 1.2, 2.0, 20.0), deltas)[1] == pytest.approx(10.5)


def test_equal_steps_are_fedavg_bit_for_bit(tmp_path):
    fleet = replace(FOUR, clients=tuple(replace(c, num_windows=10) for c in FOUR.clients))
    options = {"epochs": 3, "planner": PerEpoch(tau_s=(0.1,) * 4), "fleet": fleet}
    nova, plain = (models_after(c.build(), tmp_path, **options) for c in (FedNova(deadline_s=9.0), FedAvg()))
    assert all(torch.equal(nova[j], plain[j]) for j in plain)


@pytest.mark.parametrize("momentum", [0.5, 0.9, 0.99])
def test_equal_steps_have_the_bits_of_fedavg_with_momentum_too(momentum):
    """The factor is 1 then, not a product of rounded quotients."""
    deltas = (0.1, 0.2, 0.3, 0.7)
    nova, plain = (aggregated(c, (0.1,) * 4, deltas, momentum)[1] for c in (FedNova(deadline_s=99.0), FedAvg()))
    assert nova == plain


class Stepping(FedNova):
    def server_step(self, mean, memory):
        return mean, memory


def test_a_server_step_that_nobody_would_call_is_refused():
    with pytest.raises(UserError, match="class Stepping: server_step is called by nobody, since FedNova has a step"):
        Stepping().build()
