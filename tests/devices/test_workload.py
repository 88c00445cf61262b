import pytest
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.core.groups import Part
from relief_ray.devices.workload import ADAM_FLOPS_PER_VALUE, footprint, num_steps, shares

ENGINES = ("naive", "reuse", "gemm")
GROUPS = [f"{kind}.{m}" for m in ("acc", "gyro", "hr") for kind in ("e1", "e2", "A")] + ["B", "head"]
SOME = st.sets(st.sampled_from(GROUPS))
PRESENT = st.sets(st.sampled_from(["acc", "gyro", "hr"]), min_size=1)
MISSING = st.sampled_from(["zero_input", "zero_feature"])


def round_of(costs, trained, present=("acc",), n=10, epochs=2, batch=4, engine="naive", missing="zero_input", **more):
    return footprint(costs, present, dict.fromkeys(trained, 1.0), engine, missing).workload(
        num_windows=n, epochs=epochs, num_steps=num_steps(n, epochs, batch), **more
    )


def total(load):
    return load.forward_flops + load.backward_flops + load.optimizer_flops


def test_full_training_by_hand(toy):
    load = round_of(toy.chain(), ["enc", "head"])
    assert load.forward_flops == 20 * 110
    # The encoder reads raw data, so nobody asks for its input gradient; the head passes 9 down.
    assert load.backward_flops == 20 * (80 + 9 + 8)
    assert load.optimizer_flops == ADAM_FLOPS_PER_VALUE * 6 * 6
    assert load.group_flops == 20 * (100 + 90 + 80 + 10 + 9 + 8)


def test_another_optimizer_is_charged_for_its_own_flops(toy):
    """Six values: in total and stage by stage."""
    spent = footprint(toy.chain(), ("acc",), {"enc": 1.0, "head": 1.0}, "naive", "zero_input", optimizer_flops=2.0)
    assert spent.optimizer_flops == sum(run.optimizer_flops for run in spent.runs) == 2.0 * 6
    load = spent.workload(num_windows=10, epochs=2, num_steps=6, bytes_up=0, bytes_down=0)
    assert load.optimizer_flops == 2.0 * 6 * 6


def test_head_alone_by_hand(toy):
    naive, reuse = (round_of(toy.chain(), ["head"], engine=e) for e in ("naive", "reuse"))
    assert (naive.forward_flops, reuse.forward_flops) == (20 * 110, 10 * 100 + 20 * 10)
    assert naive.backward_flops == reuse.backward_flops == 20 * 8
    assert naive.group_flops == reuse.group_flops == 20 * 27


def test_encoder_alone_passes_the_gradient_through_the_head(toy):
    load = round_of(toy.chain(), ["enc"])
    assert load.backward_flops == 20 * (80 + 9)
    assert load.group_flops == 20 * 270


def test_absent_modality_costs_one_window(toy):
    costs = toy.fork(("acc", "gyro"))
    acc, gyro, top = 30 + 20 + 10, 31 + 21 + 11, 3 + 2
    naive = round_of(costs, ["A.acc"])
    assert naive.forward_flops == 20 * (acc + gyro + top)
    reuse = round_of(costs, ["A.acc"], engine="reuse")
    assert reuse.forward_flops == 10 * (30 + 20) + gyro + 20 * (10 + top)
    off = round_of(costs, ["A.acc"], engine="reuse", missing="zero_feature")
    assert off.forward_flops == 10 * (30 + 20) + 11 + 20 * (10 + top)


def test_absent_modality_that_is_trained_costs_one_window_a_step(toy):
    costs, steps = toy.fork(("acc", "gyro")), 6
    load = round_of(costs, [*GROUPS[:6], "B", "head"], engine="reuse")
    assert load.forward_flops == 20 * (60 + 5) + steps * 63
    acc, gyro = 0.5 * 60 + 20 + 10, 0.5 * 63 + 21 + 11
    assert load.backward_flops == 20 * (acc + 5 + 2.5) + steps * gyro
    off = round_of(costs, [*GROUPS[:6], "B", "head"], engine="reuse", missing="zero_feature")
    assert off.forward_flops == 20 * (60 + 5) + steps * 11
    assert off.optimizer_flops == ADAM_FLOPS_PER_VALUE * 6 * 6 * steps  # two encoder groups have no gradient
    assert off.group_flops == load.group_flops


def test_zero_feature_changes_nothing_for_the_naive_engine(toy):
    assert round_of(toy.fork(), ["head"], missing="zero_feature") == round_of(toy.fork(), ["head"])


@given(small=SOME, more=SOME, present=PRESENT, missing=MISSING, engine=st.sampled_from(ENGINES), n=st.integers(0, 40))
def test_more_trained_groups_never_cost_less(toy, small, more, present, missing, engine, n):
    few, many = (
        round_of(toy.fork(), sorted(g), present, n=n, engine=engine, missing=missing) for g in (small, small | more)
    )
    for phase in ("forward_flops", "backward_flops", "optimizer_flops", "group_flops"):
        assert getattr(many, phase) >= getattr(few, phase) - 1e-9


@given(trained=SOME, present=PRESENT, missing=MISSING, n=st.integers(1, 40), epochs=st.integers(1, 5))
def test_reuse_never_costs_more_and_gemm_counts_as_reuse(toy, trained, present, missing, n, epochs):
    naive, reuse, gemm = (
        round_of(toy.fork(), sorted(trained), present, n=n, epochs=epochs, engine=e, missing=missing) for e in ENGINES
    )
    assert total(reuse) <= total(naive) * (1 + 1e-12)
    assert reuse == gemm


@given(epochs=st.integers(1, 5))
def test_reuse_saves_nothing_where_everything_is_present_and_trained(toy, epochs):
    full = ("acc", "gyro", "hr")
    naive, reuse = (round_of(toy.fork(), GROUPS, full, epochs=epochs, engine=e) for e in ("naive", "reuse"))
    assert total(reuse) == pytest.approx(total(naive), rel=1e-12)


@given(trained=SOME.filter(lambda s: not {"e1.acc", "e1.gyro", "e1.hr"} <= s), epochs=st.integers(2, 5))
def test_reuse_saves_something_for_every_partial_assignment(toy, trained, epochs):
    full = ("acc", "gyro", "hr")
    naive, reuse = (round_of(toy.fork(), sorted(trained), full, epochs=epochs, engine=e) for e in ("naive", "reuse"))
    assert reuse.forward_flops < naive.forward_flops


@pytest.mark.parametrize("engine", ENGINES)
def test_no_windows_or_no_epochs_cost_nothing(toy, engine):
    assert total(round_of(toy.fork(), GROUPS, n=0, engine=engine)) == 0
    assert total(round_of(toy.fork(), GROUPS, epochs=0, engine=engine)) == 0


def test_shares_of_parts(toy):
    layout = toy.layout_of(toy.fork())
    part_shares = shares(layout, {"head": Part(), "B": Part(rank=1), "A.acc": Part(kinds=frozenset(["lora_b"]))})
    assert part_shares == {"head": 1.0, "B": 1 / 3, "A.acc": 0.0}


def test_last_short_batch_counts():
    assert num_steps(1900, 5, 32) == 300
    assert num_steps(64, 5, 32) == 10
    assert num_steps(0, 5, 32) == 0
