"""Padding: what is cut off again, what it adds to a product, and that it is linear."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.strategies.helora import filling

PADDINGS = ("zero", "mean", "linear", "adjacent")


def padded(x, axis, number, how):
    return torch.cat([x, filling(x, axis, number, how)], axis)


def factors(seed=0):
    """``A`` (3, 5) and ``B`` (4, 3), to be padded to rank 5."""
    make = torch.Generator().manual_seed(seed)
    return torch.randn(3, 5, generator=make).double(), torch.randn(4, 3, generator=make).double()


@pytest.mark.parametrize("how", PADDINGS)
def test_what_was_padded_is_cut_off_again(how):
    a, b = factors()
    assert torch.equal(padded(a, 0, 2, how)[:3], a) and torch.equal(padded(b, 1, 2, how)[:, :3], b)
    assert padded(a, 0, 2, how).shape == (5, 5) and padded(b, 1, 0, how).shape == (4, 3)


def test_the_product_of_padded_factors():
    """``p`` more ranks add nothing, ``p`` mean ranks, ``p`` copies of the last one, or a constant."""
    a, b = factors(1)
    product, p = b @ a, 2
    expected = {
        "zero": product,
        "linear": product + p * torch.outer(b.mean(1), a.mean(0)),
        "adjacent": product + p * torch.outer(b[:, -1], a[-1]),
        "mean": product + p * b.mean() * a.mean() * torch.ones(4, 5),
    }
    for how in PADDINGS:
        torch.testing.assert_close(padded(b, 1, p, how) @ padded(a, 0, p, how), expected[how])


def test_a_block_is_padded_with_the_mean_of_the_whole():
    a, _ = factors()
    assert torch.equal(filling(a, 0, 2, "mean", torch.tensor(7.0)), torch.full((2, 5), 7.0))


@given(st.sampled_from(PADDINGS), st.sampled_from([0, 1]), st.integers(0, 99))
def test_padding_is_linear(how, axis, seed):
    """So that clients of one rank may be summed before they are padded."""
    make = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, 3, 4, generator=make).double()
    both = filling(0.3 * x + 0.7 * y, axis, 2, how)
    torch.testing.assert_close(both, 0.3 * filling(x, axis, 2, how) + 0.7 * filling(y, axis, 2, how))
