"""Float64 sums and squares of float32 values: by definition, and with the same bits whether held or not."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.server.scratch import CHUNK, LINE, Scratch


def test_long_vectors_are_added_chunk_by_chunk_with_the_same_bits():
    make = torch.Generator().manual_seed(0)
    values = torch.randn(2 * CHUNK + 7, generator=make)
    total, expected = torch.zeros(len(values), dtype=torch.float64), values.double() * 3.0
    Scratch().add_to(total, values, 3.0)
    assert torch.equal(total, expected)
    squares = [float(c.double().dot(c.double())) for c in values.split(CHUNK)]
    assert Scratch().square(values) == squares[0] + squares[1] + squares[2]
    torch.testing.assert_close(
        Scratch().square(values), float(values.double().dot(values.double())), rtol=1e-14, atol=0
    )


@given(st.lists(st.integers(0, 3 * LINE), min_size=1, max_size=5), st.sampled_from([0, CHUNK, CHUNK + 3]))
def test_held_values_give_the_same_bits(sizes, more):
    make = torch.Generator().manual_seed(sum(sizes) + more)
    update = [torch.randn(n + more * (i == 0), generator=make) for i, n in enumerate(sizes)]
    held, plain = Scratch(), Scratch()
    held.hold(update)
    for values in update:
        assert held.square(values) == plain.square(values)
        for weight in (1.0, 0.3):
            totals = [torch.full((len(values),), 0.1, dtype=torch.float64) for _ in range(2)]
            for scratch, total in zip((held, plain), totals, strict=True):
                scratch.add_to(total, values, weight)
            assert torch.equal(*totals)
        assert held.square(values) == plain.square(values), "adding leaves what is held as it is"


def test_what_is_held_is_forgotten_with_the_next_update():
    scratch, first, second = Scratch(), torch.ones(5), torch.full((9,), 2.0)
    scratch.hold([first])
    scratch.hold([second])
    assert (scratch.square(first), scratch.square(second)) == (5.0, 36.0)


def test_other_values_than_those_held_are_read_from_themselves():
    scratch, values = Scratch(), torch.ones(5)
    scratch.hold([values])
    assert scratch.square(values.clone() * 3) == 45.0
