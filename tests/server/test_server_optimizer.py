"""The server's step by hand, what it leaves alone, and that it passes on what it need not change."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relief_ray.config.experiment import parse
from relief_ray.core.messages import ServerState
from relief_ray.server.optimizer import MOMENTS, ServerConfig, server_step
from relief_ray.support.errors import UserError

ADAPTIVE = ("fedadam", "fedyogi")


def state(tensors=None, **groups):
    values = {j: torch.tensor(v) if isinstance(v, list) else v for j, v in groups.items()}
    return ServerState(models={"global": values}, tensors=tensors or {})


def way(config, start, changes):
    """One value's way when every round's aggregation changes it by one of ``changes``, and the last state."""
    now, values = state(a=[start]), []
    for change in changes:
        moved = replace(now, models={"global": {"a": now.models["global"]["a"] + change}})
        now = server_step(config, now, moved, {"global": {"a"}})
        values.append(float(now.models["global"]["a"]))
    return values, now


def test_three_steps_of_fedavgm_by_hand():
    """theta = 1, D = 1, 0.5, -1, b = 0.5, a = 0.1: m = 1, 1, -0.5."""
    config = ServerConfig(optimizer="fedavgm", lr=0.1, momentum=0.5)
    values, now = way(config, 1.0, [1.0, 0.5, -1.0])
    assert values == pytest.approx([1.1, 1.2, 1.15], abs=1e-6)
    assert float(now.tensors["server.m/global/a"]) == pytest.approx(-0.5, abs=1e-6)
    assert set(now.tensors) == {"server.m/global/a"}


def test_three_steps_of_fedadam_by_hand():
    """b = 0.5, c = 0.75, t = 0.1, a = 0.1; D = 1, 0.5, -1.

    m = 0.5, 0.5, -0.25; v = 0.75 * 0.01 + 0.25 = 0.2575, 0.255625, 0.44171875;
    steps 0.1 m / (sqrt(v) + 0.1) = 0.0823120, 0.0825636, -0.0326961.
    """
    config = ServerConfig(optimizer="fedadam", lr=0.1, momentum=0.5, beta2=0.75, tau=0.1)
    values, now = way(config, 0.0, [1.0, 0.5, -1.0])
    expected = np.cumsum([0.0823120, 0.0825636, -0.0326961])
    assert values == pytest.approx(expected, abs=1e-6)
    assert float(now.tensors["server.v/global/a"]) == pytest.approx(0.44171875, abs=1e-6)


def test_three_steps_of_fedyogi_by_hand():
    """As above, but v = 0.01 + 0.25 (D^2 = 1 above v), 0.26 - 0.0625 (0.25 below it), 0.1975 + 0.25."""
    config = ServerConfig(optimizer="fedyogi", lr=0.1, momentum=0.5, beta2=0.75, tau=0.1)
    values, now = way(config, 0.0, [1.0, 0.5, -1.0])
    expected = np.cumsum([0.05 / (0.26**0.5 + 0.1), 0.05 / (0.1975**0.5 + 0.1), -0.025 / (0.4475**0.5 + 0.1)])
    assert values == pytest.approx(expected, abs=1e-6)
    assert float(now.tensors["server.v/global/a"]) == pytest.approx(0.4475, abs=1e-6)


finite = st.floats(-4.0, 4.0, width=32)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=5), st.integers(1, 4))
def test_fedavgm_without_momentum_at_rate_one_is_none_to_the_bit(pairs, rounds):
    config = ServerConfig(optimizer="fedavgm", lr=1.0, momentum=0.0)
    start, moved = (torch.tensor(column) for column in zip(*pairs, strict=True))
    now = state(a=start)
    for _ in range(rounds):
        after = replace(now, models={"global": {"a": now.models["global"]["a"] + moved}})
        now = server_step(config, now, after, {"global": {"a"}})
        assert torch.equal(now.models["global"]["a"], after.models["global"]["a"])


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(ADAPTIVE), finite, st.floats(0.01, 1.0))
def test_an_adaptive_step_is_no_longer_than_momentum_allows(name, change, lr):
    """With c = 0, v = D^2 (yogi: also, from t^2 = 0 on): |step| <= a (1 - b)."""
    config = ServerConfig(optimizer=name, lr=lr, momentum=0.5, beta2=0.0, tau=1e-9)
    (value,), _ = way(config, 0.0, [change])
    assert abs(value) <= 0.5 * lr * (1 + 1e-6)


@pytest.mark.parametrize("name", ["fedavgm", *ADAPTIVE])
def test_a_group_that_nobody_trained_keeps_value_and_moments(name):
    """Two groups; in the second round nobody trains ``b``: as if that round had not been, to the bit."""
    config = ServerConfig(optimizer=name, lr=0.1)
    first = state(a=[1.0], b=[2.0])
    moved = state(a=[1.5], b=[2.5])
    second = server_step(config, first, moved, {"global": {"a", "b"}})
    idle = replace(second, models={"global": {**second.models["global"], "a": torch.tensor([1.7])}})
    third = server_step(config, second, idle, {"global": {"a"}})
    assert torch.equal(third.models["global"]["b"], second.models["global"]["b"])
    moments = [name for name in second.tensors if name.endswith("/b")]
    assert len(moments) == (1 if config.optimizer == "fedavgm" else 2)
    assert all(torch.equal(third.tensors[name], second.tensors[name]) for name in moments)
    assert not torch.equal(third.tensors["server.m/global/a"], second.tensors["server.m/global/a"])


def test_a_round_without_any_update_changes_nothing():
    config = ServerConfig(optimizer="fedadam")
    once = server_step(config, state(a=[1.0]), state(a=[2.0]), {"global": {"a"}})
    again = server_step(config, once, once, {})
    assert torch.equal(again.models["global"]["a"], once.models["global"]["a"])
    assert again.tensors.keys() == once.tensors.keys()


def test_moments_outlive_a_method_that_makes_its_tensors_anew():
    config, kept = ServerConfig(optimizer="fedavgm"), torch.tensor([7.0])
    once = server_step(config, state(a=[1.0]), state({"d_bar": kept}, a=[2.0]), {"global": {"a"}})
    twice = server_step(config, once, replace(once, tensors={"d_bar": kept}), {"global": {"a"}})
    assert set(twice.tensors) == {"d_bar", "server.m/global/a"} and twice.tensors["d_bar"] is kept
    assert float(twice.tensors["server.m/global/a"]) == pytest.approx(0.9)


def test_a_model_that_is_new_is_taken_as_it_is():
    config = ServerConfig(optimizer="fedadam")
    after = ServerState(models={"global": {"a": torch.tensor([1.0])}, "cluster.0": {"a": torch.tensor([3.0])}})
    result = server_step(config, state(a=[1.0]), after, {"cluster.0": {"a"}})
    assert float(result.models["cluster.0"]["a"]) == 3.0 and not result.tensors


def test_none_is_the_same_object():
    after = state(a=[2.0])
    assert server_step(ServerConfig(), state(a=[1.0]), after, {"global": {"a"}}) is after


@pytest.mark.parametrize("name", ["fedavgm", *ADAPTIVE])
def test_no_state_is_changed_in_place(name):
    config, before = ServerConfig(optimizer=name), state(a=[1.0])
    once = server_step(config, before, state(a=[2.0]), {"global": {"a"}})
    kept = {n: t.clone() for n, t in once.tensors.items()}
    server_step(config, once, state(a=[5.0]), {"global": {"a"}})
    assert float(before.models["global"]["a"]) == 1.0
    assert all(torch.equal(kept[n], once.tensors[n]) for n in kept) and all(n.startswith(MOMENTS) for n in kept)


def test_rates_that_are_left_out():
    assert ServerConfig(optimizer="fedavgm").rate == 1.0
    assert {ServerConfig(optimizer=name).rate for name in ADAPTIVE} == {0.01}
    assert ServerConfig(optimizer="fedadam", lr=0.3).rate == 0.3


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"lr": 0.1}, r"server.lr = 0.1 with optimizer = 'none', which does not .*set server.optimizer=fedavgm or "),
        ({"optimizer": "fedavgm", "tau": 0.1}, r"tau = 0.1 with optimizer = 'fedavgm'.*optimizer=fedadam or fedyogi"),
        ({"optimizer": "fedsgd"}, r"server.optimizer = 'fedsgd': expected one of none, fedavgm"),
        ({"optimizer": "fedadam", "tau": 0.0}, r"server.tau = 0.0"),
        ({"optimiser": "fedadam"}, r"unknown key 'server.optimiser' .*did you mean 'server.optimizer'"),
    ],
)
def test_settings_that_nothing_reads_are_refused(values, why):
    with pytest.raises(UserError, match=why):
        parse({"server": values})


REFUSED = {
    "local": "nothing is sent",
    "darkdistill": "distils models into each other",
    "fedicu": "lengths and directions",
    "harmony": "clusters that are formed anew",
    "pilot": "mixed with its nearest",
}


@pytest.mark.parametrize("name", REFUSED)
def test_methods_that_do_not_average_refuse_and_say_why(name):
    why = rf"server.optimizer = 'fedadam' with strategy {name}: .*{REFUSED[name]}.*set server.optimizer=none, or take"
    with pytest.raises(UserError, match=why):
        parse({"strategy": name, "server": {"optimizer": "fedadam"}})


def test_what_a_variant_does_decides():
    server = {"optimizer": "fedavgm"}
    with pytest.raises(UserError, match=r"with strategy helora: the clients' models learn from each other"):
        parse({"strategy": {"name": "helora", "variant": "kd"}, "server": server})
    for strategy in ({"name": "helora"}, {"name": "darkdistill", "distil": False}, "fedlease", "fedel", "relief"):
        assert parse({"strategy": strategy, "server": server}).server.optimizer == "fedavgm"


def test_the_default_leaves_an_identity_as_it_was():
    assert "server" not in parse({}).identity()
    assert parse({"server": {"optimizer": "fedavgm"}}).identity()["server"] == {"optimizer": "fedavgm"}
