"""The product: no leaks, the same test set for every N, closed to tuners, digests that tell configurations apart."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relief_ray.data import (
    DataConfig,
    Dataset,
    FederatedData,
    federate,
    federated_data,
    get_spec,
    num_clients,
    open_dataset,
)
from relief_ray.data.federated_data import standardisation
from relief_ray.data.window_set import WindowSet
from relief_ray.support.errors import UserError


def made(mini: Dataset, purpose: str = "run", **given: object) -> FederatedData:
    config = DataConfig.model_validate(given)
    owned = [mini.spec.names] * num_clients(mini, config)
    return federate(mini, config, owned, purpose="tune" if purpose == "tune" else "run")


def rows(windows: WindowSet, num_rows: int) -> np.ndarray:
    used = np.zeros(num_rows, bool)
    for start in windows.starts:
        used[start : start + windows.window] = True
    return used


configs = st.fixed_dictionaries(
    {
        "split": st.sampled_from(["within_subject", "held_out_subject"]),
        "num_clients": st.sampled_from([8, 9, 20, 50, 100]),
        "stride_s": st.sampled_from([0.4, 1.0, 2.56]),
        "validation_fraction": st.sampled_from([0.1, 0.15, 0.4]),
    }
)


@settings(max_examples=25, deadline=None)
@given(configs)
def test_no_sample_is_shared_between_parts(mini: Dataset, given: dict[str, object]) -> None:
    data = made(mini, **given)
    train = np.logical_or.reduce([rows(client, len(mini.labels)) for client in data.clients])
    validation, test = rows(data.validation, len(mini.labels)), rows(data.test, len(mini.labels))
    assert not (train & validation).any() and not (train & test).any() and not (validation & test).any()
    for part in (*data.clients, data.validation, data.test):
        assert (mini.labels[part.starts] == part.labels).all()
        assert (mini.labels[part.starts + part.window - 1] == part.labels).all()


@settings(max_examples=15, deadline=None)
@given(configs)
def test_parts_do_not_depend_on_the_number_of_clients(mini: Dataset, given: dict[str, object]) -> None:
    few, many = made(mini, **{**given, "num_clients": None}), made(mini, **given)
    np.testing.assert_array_equal(few.test.starts, many.test.starts)
    for parts in ((few.clients, many.clients), ([few.validation], [many.validation])):
        gathered = [np.concatenate([w.starts for w in part]) for part in parts]
        np.testing.assert_array_equal(np.sort(gathered[0]), np.sort(gathered[1]))
    np.testing.assert_allclose(few.clients[0].mean, many.clients[0].mean, rtol=1e-6)


def test_held_out_subjects_are_no_clients(mini: Dataset) -> None:
    data = made(mini, split="held_out_subject", fold=1)
    assert len(data.clients) == 6
    assert set(data.test.subjects.tolist()) == {2, 3}
    assert [set(client.subjects.tolist()) for client in data.clients] == [{0}, {1}, {4}, {5}, {6}, {7}]


def test_random_split_shares_samples_under_its_name_only(mini: Dataset) -> None:
    data = made(mini, split="random_leaky")
    train = np.logical_or.reduce([rows(client, len(mini.labels)) for client in data.clients])
    assert (train & rows(data.test, len(mini.labels))).any()


def test_a_tuner_cannot_open_the_test_part(mini: Dataset) -> None:
    tuned, whole = made(mini, purpose="tune"), made(mini)
    assert tuned.test_or_none is None
    with pytest.raises(UserError, match="purpose='tune'"):
        _ = tuned.test
    reachable = [tuned.validation, *tuned.clients]
    hidden = set(whole.test.starts.tolist())
    assert not hidden & {start for part in reachable for start in part.starts.tolist()}
    assert tuned.digest == whole.digest


def test_statistics_come_from_the_owners_only(mini: Dataset) -> None:
    config = DataConfig()
    everyone = federate(mini, config, [mini.spec.names] * 8)
    rare = federate(mini, config, [("acc", "gyro", "mag")] * 3 + [("acc",)] * 5)
    np.testing.assert_array_equal(everyone.clients[0].mean[:3], rare.clients[0].mean[:3])
    first_three = np.concatenate([client.load()["mag"] for client in rare.clients[:3]]).astype(np.float64)
    np.testing.assert_allclose(first_three.mean(axis=(0, 2)), 0.0, atol=1e-5)
    np.testing.assert_allclose(first_three.std(axis=(0, 2)), 1.0, atol=1e-5)
    assert not np.allclose(everyone.test.mean[6:], rare.test.mean[6:])


def test_statistics_of_equal_content_are_summed_once(mini: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last content alone: cells of a fold follow one another."""
    asked: list[int] = []
    plain = federated_data.standardisation
    monkeypatch.setattr(federated_data, "standardisation", lambda *a: asked.append(1) or plain(*a))
    federated_data._kept.cache_clear()
    first, same, other = (made(mini, split="held_out_subject", fold=fold) for fold in (0, 0, 1))
    assert len(asked) == 2 and same.clients[0].mean is first.clients[0].mean
    assert not np.array_equal(other.clients[0].mean, first.clients[0].mean)
    assert not first.clients[0].mean.flags.writeable, "a cell cannot change the next one's"
    rare = federate(mini, DataConfig(split="held_out_subject"), [("acc", "gyro", "mag")] * 3 + [("acc",)] * 3)
    assert len(asked) == 3 and not np.array_equal(rare.clients[0].mean, first.clients[0].mean)


def standardised(signal: np.ndarray) -> np.ndarray:
    """The two windows of one client who has all readings, divided by their own deviation."""
    starts = np.array([0, 20])
    mean, std = standardisation(signal, [("acc", 0, signal.shape[1])], 20, [starts], [["acc"]])
    return (signal - mean) / std


READINGS = np.random.default_rng(5).normal(3.0, 2.0, (40, 3)).astype(np.float32)


@pytest.mark.parametrize("power", range(-23, 24))
def test_another_unit_changes_no_bit_where_it_is_a_power_of_two(power: int) -> None:
    assert standardised(READINGS * np.float32(2.0**power)).tobytes() == standardised(READINGS).tobytes()


@pytest.mark.parametrize("power", range(-9, 10))
def test_another_unit_changes_next_to_nothing_where_it_is_a_power_of_ten(power: int) -> None:
    scaled = (READINGS.astype(float) * 10.0**power).astype(np.float32)
    assert np.abs(standardised(scaled) - standardised(READINGS)).max() < 1e-5


@pytest.mark.parametrize("value", [0.0, 1e-9, 9.81, -7e6])
def test_a_channel_that_never_moves_is_zero_in_any_unit(value: float) -> None:
    assert np.abs(standardised(np.full((40, 3), value, np.float32))).max() == 0


@pytest.mark.parametrize(
    ("owned", "said"),
    [
        ([("acc", "gyro")] * 8, "'mag' is a modality without owner"),
        ([("acc", "gyro", "mag")] * 7, "7 clients have modalities"),
        ([("acc", "gyro", "mag")] * 7 + [()], "client 7: modalities"),
        ([("acc", "gyro", "mag")] * 7 + [("hr",)], "client 7: modalities"),
    ],
)
def test_bad_ownership_is_named(mini: Dataset, owned: list[tuple[str, ...]], said: str) -> None:
    with pytest.raises(UserError, match=said):
        federate(mini, DataConfig(), owned)


def test_a_client_without_windows_is_named(mini: Dataset) -> None:
    with pytest.raises(UserError, match=r"\d+ of \d+ clients \(\d.*have no training window"):
        made(mini, num_clients=4000, stride_s=60.0)


@pytest.mark.parametrize("words", [{}, {"stride_s": 30.0}, {"subjects": [1, 4]}, {"test_fraction": 0.4}])
def test_the_largest_number_of_clients_is_named(mini: Dataset, words: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"data.num_clients \(at most (\d+) have windows\)") as told:
        made(mini, num_clients=900, **words)
    most = int(re.findall(r"at most (\d+) have", str(told.value))[0])
    made(mini, num_clients=most, **words)
    with pytest.raises(UserError, match="have no training window"):
        made(mini, num_clients=most + 1, **words)


def test_a_client_with_one_class_is_allowed_and_listed(mini: Dataset) -> None:
    data = made(mini, max_windows_per_client=1)
    assert data.coverage["single_class_clients"] == list(range(8))


def test_coverage_counts_every_window(mini: Dataset) -> None:
    data = made(mini, num_clients=20)
    coverage = data.coverage
    assert [sum(client["train"]) for client in coverage["clients"]] == [len(client) for client in data.clients]
    assert sum(coverage["test"]) == len(data.test)
    assert sum(coverage["validation"]) == len(data.validation)
    assert [client["subject"] for client in coverage["clients"]][:7] == [1, 1, 1, 2, 2, 2, 3]


def test_thinning_keeps_all_classes(mini: Dataset) -> None:
    data = made(mini, max_windows_per_client=40)
    assert [len(client) for client in data.clients] == [40] * 8
    assert all(len(np.unique(client.labels)) == 8 for client in data.clients)


def test_digest_tells_configurations_apart(mini: Dataset) -> None:
    digests = {made(mini, **given).digest for given in ({}, {"stride_s": 2.0}, {"num_clients": 20}, {"seed": 1})}
    assert len(digests) == 4
    assert made(mini).digest in digests


# Digests before windows and partitions were settings: every committed result names its data by one.
DIGESTS = {
    "": "25ac00e5ba9875e1338f93bc0c1a2fa8b676b12df8baec1db00a7be42d27426a",
    "held_out_subject": "e640e1e7d8ffd9f126970176d94246a54c90c6f049bf1dbe8e711c14f45bfb5a",
}


@pytest.mark.parametrize("split", DIGESTS)
def test_digests_stay(mini: Dataset, split: str) -> None:
    assert made(mini, **({"split": split, "stride_s": 5.0} if split else {})).digest == DIGESTS[split]


@settings(max_examples=15, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "window_s": st.sampled_from([0.64, 2.0, 2.56, 10.0, 20.0]),
            "stride_s": st.sampled_from([1.0, 2.56]),
            "split": st.sampled_from(["within_subject", "held_out_subject"]),
            "partition": st.sampled_from(["subject", "dirichlet", "quantity"]),
        }
    )
)
def test_no_sample_is_shared_whatever_the_window(mini: Dataset, given: dict[str, object]) -> None:
    data = federate_with(mini, given)
    window = round(float(str(given["window_s"])) * 25)
    train = np.logical_or.reduce([rows(client, len(mini.labels)) for client in data.clients])
    validation, test = rows(data.validation, len(mini.labels)), rows(data.test, len(mini.labels))
    assert not (train & validation).any() and not (train & test).any() and not (validation & test).any()
    assert data.spec.window == window == data.test.window
    assert data.clients[0].take([0]).load()["acc"].shape == (1, 3, window)


def federate_with(mini: Dataset, given: dict[str, object]) -> FederatedData:
    config = DataConfig.model_validate(given)
    dataset = open_dataset(config)
    assert dataset.digest == mini.digest and dataset.signal_path == mini.signal_path, "parsed once for all windows"
    return federate(dataset, config, [mini.spec.names] * num_clients(dataset, config))


def test_subjects_can_be_chosen(mini: Dataset) -> None:
    data = made(mini, subjects=(2, 5))
    assert [set(client.subjects.tolist()) for client in data.clients] == [{1}, {4}]
    assert set(data.test.subjects.tolist()) == {1, 4}


def test_num_clients() -> None:
    assert num_clients(get_spec("dsa"), DataConfig(name="dsa", split="held_out_subject")) == 6
    assert num_clients(get_spec("mhealth"), DataConfig(name="mhealth")) == 10
    assert num_clients(get_spec("dsa"), DataConfig(name="dsa", num_clients=50)) == 50


def test_dataset_and_config_must_agree(mini: Dataset) -> None:
    with pytest.raises(UserError, match="does not fit"):
        federate(mini, DataConfig(name="dsa"), [mini.spec.names] * 8)
    assert open_dataset(DataConfig()).digest == mini.digest


def test_a_single_class_is_refused(mini: Dataset) -> None:
    """Whatever was trained, every score would be 100 %."""
    one = replace(mini, labels=np.full_like(mini.labels, mini.labels[0]))
    with pytest.raises(UserError, match=r"all \d+ test windows are of the class 'standing'.*at least two classes"):
        made(one)
