"""Pilot's losses, by definition and at their fixed points."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from relief_ray.strategies.pilot import balance_loss, difference_flops, difference_loss, router_flops, z_loss


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def test_difference_is_the_mean_square_of_the_products_entries():
    a, b = noise(4, 7), noise(4, 7, seed=1)
    unit = [x / x.norm(dim=1, keepdim=True).detach() for x in (a, b)]
    literal = (unit[0].T @ unit[1]).square().mean()
    torch.testing.assert_close(difference_loss(a, b), literal, rtol=1e-4, atol=1e-8)
    ours, theirs = (torch.autograd.grad(loss, a, retain_graph=True)[0] for loss in (difference_loss(a, b), literal))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-7)


def test_difference_is_zero_for_orthogonal_and_for_zero_features():
    """``X_a^T X_b = 0`` where every feature of one is orthogonal, over windows, to every feature of the other."""
    a, b = torch.zeros(4, 3), torch.zeros(4, 3)
    a[:2], b[2:] = noise(2, 3).detach(), noise(2, 3, seed=1).detach()
    assert float(difference_loss(a, b)) == 0.0
    zero = torch.zeros(4, 3, requires_grad=True)
    loss = difference_loss(zero, noise(4, 3))
    (gradient,) = torch.autograd.grad(loss, zero)
    assert float(loss.detach()) == 0.0 and bool(torch.isfinite(gradient).all())


def test_balance_is_one_for_uniform_routing_and_grows_to_the_number_of_tasks():
    """Equal logits, or windows spread evenly over the choices; all on one choice costs T."""
    assert float(balance_loss(torch.zeros(6, 3))) == pytest.approx(1.0)
    assert float(balance_loss(5.0 * torch.eye(3).repeat(2, 1))) == pytest.approx(1.0)
    assert float(balance_loss(torch.tensor([[50.0, 0.0, 0.0]] * 4))) == pytest.approx(3.0)
    assert float(balance_loss(noise(6, 1)).detach()) == pytest.approx(1.0)


def test_z_by_hand():
    assert float(z_loss(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))) == pytest.approx(
        (0.6931471806**2 + 1.6931471806**2) / 2
    )


def test_the_products_of_the_difference_are_those_that_torch_counts():
    """``12 B^2 D`` of it are matrix products, forward and back; the rest by hand for B = 5, D = 7."""
    a, b = noise(5, 7), noise(5, 7, seed=1)
    with FlopCounterMode(display=False) as counter:
        difference_loss(a, b).backward()
    assert counter.get_total_flops() == 12 * 25 * 7
    assert difference_flops(5, 7) == 2100 + 10 * 35 + 5 * 25


def test_a_routers_losses_take_twenty_flops_per_logit():
    assert router_flops(32, 3) == 20 * 96
