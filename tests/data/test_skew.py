"""Windows dealt in Dirichlet shares: every window once, sizes as drawn, skew as alpha says, nothing by order."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from relief_ray.core.messages import apportion
from relief_ray.core.streams import Streams
from relief_ray.data import DataConfig, Dataset, FederatedData, federate, num_clients
from relief_ray.data.partition import deal, draw_shares, owners_of
from relief_ray.support.errors import UserError

NOBODY = [False] * 100


def dealer(clients: int, classes: int = 4, **values: object) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    config = DataConfig.model_validate({"partition": "dirichlet", "min_partition_size": 1, **values})
    return partial(deal, config, clients, classes)


def counts(owners: np.ndarray, labels: np.ndarray, clients: int, classes: int = 4) -> np.ndarray:
    """Windows (clients, classes)."""
    return np.stack([np.bincount(labels[owners == n], minlength=classes) for n in range(clients)])


# By hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "shares", "expected"),
    [
        (7, [0.5, 0.3, 0.2], [4, 2, 1]),  # 3.5, 2.1, 1.4: the half goes up
        (10, [0.25, 0.25, 0.5], [3, 2, 5]),  # a tie goes to the first
        (2, [0.34, 0.33, 0.33], [1, 1, 0]),
        (0, [0.5, 0.5], [0, 0]),
        (5, [0.0, 1.0], [0, 5]),
    ],
)
def test_apportion_by_hand(total: int, shares: list[float], expected: list[int]) -> None:
    assert apportion(total, shares) == expected


def test_shares_are_normalised_gammas() -> None:
    """G(alpha) = G(alpha + 1) U^(1 / alpha), each from the generator of (attempt, class, client)."""
    streams, alpha = Streams(seed=5), 0.4
    gammas = []
    for client in range(3):
        rng = streams.numpy("data.partition", 0, 2, client)
        gammas.append(rng.gamma(1.4) * (1.0 - rng.random()) ** (1 / alpha))
    shares = draw_shares(streams, alpha, range(3), (0, 2), NOBODY[:3])
    np.testing.assert_allclose(shares, np.array(gammas) / sum(gammas), rtol=1e-12)


def test_shares_have_the_moments_of_a_dirichlet_distribution() -> None:
    """E = 1/N, Var = (N - 1) / (N^2 (N alpha + 1))."""
    drawn = np.stack([draw_shares(Streams(seed=1), 0.5, range(4), (0, k), NOBODY[:4]) for k in range(3000)])
    np.testing.assert_allclose(drawn.mean(axis=0), 0.25, atol=0.02)
    np.testing.assert_allclose(drawn.var(axis=0), 3 / (16 * 3), rtol=0.1)


# Properties ------------------------------------------------------------------------------------------------------

labelled = st.lists(st.integers(0, 3), min_size=60, max_size=200).map(lambda values: np.array(values, np.int64))
alphas = st.sampled_from([1e-6, 0.01, 0.1, 1.0, 100.0])


@pytest.mark.ci
@settings(max_examples=60, deadline=None)
@given(
    labelled, alphas, st.integers(1, 6), st.sampled_from(["dirichlet", "quantity"]), st.integers(0, 99), st.booleans()
)
def test_every_window_has_one_owner_and_every_client_its_minimum(
    labels, alpha, clients, partition, seed, balance
) -> None:
    more = {"self_balancing": balance} if partition == "dirichlet" else {}
    make = dealer(clients, partition=partition, dirichlet_alpha=alpha, seed=seed, min_partition_size=3, **more)
    try:
        train, validation = make(labels, labels[::3])
    except UserError as error:
        assert alpha <= 0.1 and "draws" in str(error)
        return
    assert (len(train), len(validation)) == (len(labels), len(labels[::3]))
    sizes = np.bincount(train, minlength=clients)
    assert sizes.sum() == len(labels) and len(sizes) == clients and sizes.min() >= 3
    np.testing.assert_array_equal(train, make(labels, labels[::3])[0])


@settings(max_examples=20, deadline=None)
@given(labelled, st.integers(1, 9), st.integers(0, 99))
def test_large_alpha_gives_equal_label_shares(labels: np.ndarray, clients: int, seed: int) -> None:
    owners, _ = dealer(clients, dirichlet_alpha=1e9, seed=seed)(labels, labels)
    table = counts(owners, labels, clients)
    assert (table.max(axis=0) - table.min(axis=0)).max() <= 1


def test_small_alpha_gives_each_class_to_few_clients() -> None:
    labels = np.repeat(np.arange(10), 300)
    largest = {}
    for alpha in (0.01, 1.0, 1e6):
        shares = [counts(owners_of(labels, shares_of(alpha, s), s, 0), labels, 10, 10) for s in range(5)]
        largest[alpha] = np.mean([table.max(axis=0) / 300 for table in shares])
    assert largest[0.01] > 0.9 and 0.2 < largest[1.0] < 0.45 and largest[1e6] < 0.11


def shares_of(alpha: float, seed: int) -> np.ndarray:
    return np.stack([draw_shares(Streams(seed=seed), alpha, range(10), (0, k), NOBODY[:10]) for k in range(10)])


def test_quantity_skews_sizes_and_leaves_label_shares_alone() -> None:
    labels = np.tile(np.arange(4), 2500)
    owners, _ = dealer(5, partition="quantity", dirichlet_alpha=0.5, min_partition_size=200, seed=3)(labels, labels)
    table = counts(owners, labels, 5)
    sizes = table.sum(axis=1)
    assert sizes.max() > 3 * sizes.min()
    np.testing.assert_allclose(table / sizes[:, None], 0.25, atol=0.08)


@given(st.permutations(range(6)), st.integers(0, 50))
def test_a_clients_share_does_not_depend_on_the_order(order: list[int], seed: int) -> None:
    streams = Streams(seed=seed)
    shares = draw_shares(streams, 0.3, range(6), (0, 1), NOBODY[:6])
    np.testing.assert_allclose(draw_shares(streams, 0.3, order, (0, 1), NOBODY[:6]), shares[order], rtol=1e-12)


def test_a_class_is_dealt_the_same_whatever_the_others_are() -> None:
    labels = np.repeat([0, 1, 2], 50)
    other = np.where(labels == 1, 3, labels)
    first, second = (dealer(4, dirichlet_alpha=1.0)(values, values)[0] for values in (labels, other))
    np.testing.assert_array_equal(first[labels != 1], second[labels != 1])
    assert (first[labels == 1] != second[labels == 1]).any()


def test_self_balancing_keeps_full_clients_from_getting_more() -> None:
    labels = np.repeat(np.arange(8), 100)
    plain, balanced = (
        np.bincount(dealer(4, 8, dirichlet_alpha=0.2, self_balancing=flag, seed=2)(labels, labels)[0], minlength=4)
        for flag in (False, True)
    )
    assert balanced.max() < plain.max() and balanced.max() <= 200 + 100


# Through the product ---------------------------------------------------------------------------------------------


def made(mini: Dataset, **values: object) -> FederatedData:
    config = DataConfig.model_validate({"stride_s": 2.0, **values})
    return federate(replace(mini, spec=config.spec()), config, [mini.spec.names] * num_clients(config.spec(), config))


@pytest.mark.parametrize("split", ["within_subject", "held_out_subject"])
@pytest.mark.parametrize("partition", ["dirichlet", "quantity"])
def test_the_same_windows_are_dealt_and_the_test_part_stays(mini: Dataset, partition: str, split: str) -> None:
    people = made(mini, split=split)
    for clients in (3, 8, 20):
        dealt = made(mini, split=split, partition=partition, num_clients=clients)
        assert len(dealt.clients) == clients
        for parts in ((people.clients, dealt.clients), ([people.validation], [dealt.validation])):
            before, after = (np.concatenate([w.starts for w in part]) for part in parts)
            np.testing.assert_array_equal(np.sort(before), np.sort(after))
        np.testing.assert_array_equal(people.test.starts, dealt.test.starts)
        assert min(len(client) for client in dealt.clients) >= 10
        assert {c["subject"] for c in dealt.coverage["clients"]} == {"mixed"}
        assert all((np.diff(client.starts) > 0).all() for client in dealt.clients), "in order of time"


def test_each_setting_gives_other_data_and_the_default_none(mini: Dataset) -> None:
    variants: list[dict[str, object]] = [
        {},
        {"partition": "dirichlet"},
        {"partition": "dirichlet", "seed": 1},
        {"partition": "dirichlet", "dirichlet_alpha": 5.0},
        {"partition": "dirichlet", "self_balancing": True},
        {"partition": "quantity"},
        {"partition": "quantity", "min_partition_size": 20},
        {"window_s": 2.56},
    ]
    assert len({made(mini, **values).digest for values in variants}) == len(variants)
    first, second = (made(mini, partition="dirichlet", seed=4) for _ in range(2))
    assert all((a.starts == b.starts).all() for a, b in zip(first.clients, second.clients, strict=True))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_clients": 400}, r"400 clients need 4000 training windows, found \d+; lower it"),
        (
            {"dirichlet_alpha": 1e-6, "num_clients": 20},
            r"smallest of 20 clients got at most 0 .* draws.*raise data.dirichlet_alpha, or lower data.stride_s",
        ),
    ],
)
def test_impossible_sizes_are_refused(mini: Dataset, values: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        made(mini, partition="dirichlet", **values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"dirichlet_alpha": 0.1}, r"data\.dirichlet_alpha = 0\.1 with partition = 'subject'"),
        ({"min_partition_size": 2}, r"data\.min_partition_size = 2 with"),
        ({"partition": "quantity", "self_balancing": True}, "set data.partition=dirichlet or remove"),
        ({"partition": "iid"}, "'subject', 'dirichlet' or 'quantity'"),
        ({"partition": "dirichlet", "dirichlet_alpha": 0.0}, "greater than 0"),
        ({"window_s": 0.2}, r"data\.window_s=0\.2: windows of 0\.2 s at 25 Hz hold 5 samples, expected at least 8"),
    ],
)
def test_settings_that_nobody_reads_are_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DataConfig.model_validate(values)
