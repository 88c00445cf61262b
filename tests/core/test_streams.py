"""Random streams: named by purpose and key, never shared, never shifted."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.core.streams import Streams

seeds = st.integers(0, 2**31 - 1)
keys = st.lists(st.integers(0, 5000), max_size=3).map(tuple)
purposes = st.sampled_from(["batches", "relief.random", "participation", "model", "a", "b"])


def draws(streams, purpose, key):
    return streams.numpy(purpose, *key).random(4).tolist()


def torch_draws(streams, purpose, key):
    return torch.rand(4, generator=streams.torch(purpose, *key)).tolist()


@given(seeds, purposes, keys)
def test_the_same_name_gives_the_same_numbers(seed, purpose, key):
    assert draws(Streams(seed=seed), purpose, key) == draws(Streams(seed=seed), purpose, key)
    assert torch_draws(Streams(seed=seed), purpose, key) == torch_draws(Streams(seed=seed), purpose, key)


@given(seeds, st.sets(st.tuples(purposes, st.integers(0, 300), st.integers(0, 100)), min_size=2, max_size=6))
def test_distinct_names_give_distinct_numbers(seed, names):
    streams = Streams(seed=seed)
    for make in (draws, torch_draws):
        numbers = [make(streams, p, (r, c)) for p, r, c in names]
        assert len({tuple(f) for f in numbers}) == len(numbers)


@given(seeds, purposes, keys, purposes, keys)
def test_a_new_consumer_never_shifts_anothers_draws(seed, purpose, key, other, other_key):
    streams = Streams(seed=seed)
    alone = draws(streams, purpose, key)
    streams.numpy(other, *other_key).random(1000)
    streams.torch(other, *other_key)
    assert draws(streams, purpose, key) == alone


def test_global_generators_are_left_alone():
    np_state, torch_state = np.random.get_state()[1].tolist(), torch.get_rng_state()
    streams = Streams(seed=1)
    streams.numpy("x", 1).random(10)
    torch.rand(10, generator=streams.torch("x", 1))
    assert np.random.get_state()[1].tolist() == np_state
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_minus_one_is_a_key_of_its_own():
    numbers = [tuple(draws(Streams(seed=0), "p", (r, c))) for r, c in itertools.product((-1, 0, 1), (0, 1))]
    assert len(set(numbers)) == len(numbers)
    assert draws(Streams(seed=0), "p", (3,)) != draws(Streams(seed=0), "p", (3, -1))


def test_seeds_and_the_two_libraries_differ():
    assert draws(Streams(seed=0), "p", (1,)) != draws(Streams(seed=1), "p", (1,))
    assert torch_draws(Streams(seed=0), "p", (1,)) != torch_draws(Streams(seed=1), "p", (1,))


def test_every_batch_order_of_a_long_run_is_its_own():
    """200 rounds of 100 clients: no two of the 20,000 torch streams start from the same seed."""
    streams = Streams(seed=0)
    first_seeds = {streams.torch("batches", r, c).initial_seed() for r in range(200) for c in range(100)}
    assert len(first_seeds) == 20_000


def test_the_words_of_a_stream_are_part_of_the_format():
    """Seed, the first four bytes of sha256("batches") read from the low end, then the key plus one."""
    assert Streams(seed=7).entropy("batches", 3, 0) == [7, 0xE6297646, 4, 1]


@pytest.mark.parametrize("seed", [0, 2**31 - 1])
def test_torch_seeds_are_accepted(seed):
    assert Streams(seed=seed).torch("p", 0, 0).initial_seed() < 2**63
