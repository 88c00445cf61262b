"""Stages: what a trained group can change, what a stage depends on, and how FLOPs are shared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.core.stages import CostTable, StageFlops, StageSpec, descendants, modalities_below
from tests.toy import build


def stage(name, inputs, *groups, modality=None):
    return StageSpec(id=name, inputs=inputs, groups=frozenset(groups), modality=modality)


DIAMOND = (
    stage("left", ("x.acc",), "l", modality="acc"),
    stage("right", ("x.hr",), "r", modality="hr"),
    stage("frozen", ("right",)),
    stage("join", ("left", "frozen"), "j", "j2"),
    stage("top", ("join",), "t"),
)


def test_descendants_of_each_group():
    assert descendants(DIAMOND, {"l"}) == {"left", "join", "top"}
    assert descendants(DIAMOND, {"r"}) == {"right", "frozen", "join", "top"}
    assert descendants(DIAMOND, {"j2"}) == {"join", "top"}
    assert descendants(DIAMOND, {"t"}) == {"top"}
    assert descendants(DIAMOND, ()) == frozenset()


def test_modalities_below():
    assert modalities_below(DIAMOND) == {
        "left": {"acc"},
        "right": {"hr"},
        "frozen": {"hr"},
        "join": {"acc", "hr"},
        "top": {"acc", "hr"},
    }


@st.composite
def graphs(draw):
    """A random topological order: each stage reads the raw input or earlier stages and owns its own group or none."""
    stages = []
    for i in range(draw(st.integers(1, 8))):
        earlier = [s.id for s in stages]
        inputs = draw(st.lists(st.sampled_from(["x.acc", "x.hr", *earlier]), min_size=1, max_size=3, unique=True))
        stages.append(stage(f"s{i}", tuple(inputs), *([f"g{i}"] if draw(st.booleans()) else [])))
    return tuple(stages)


def reaches(stages, source, target):
    """Whether ``target`` reads ``source``, by walking down from ``target`` (another way than the code's)."""
    by_id = {s.id: s for s in stages}
    todo, seen = [target], set()
    while todo:
        current = todo.pop()
        if current == source:
            return True
        if current in by_id and current not in seen:
            seen.add(current)
            todo.extend(by_id[current].inputs)
    return False


@given(graphs(), st.data())
def test_descendants_are_what_can_be_reached(stages, data):
    owned = [j for s in stages for j in s.groups]
    trained = set(data.draw(st.lists(st.sampled_from(owned), unique=True))) if owned else set()
    owners = [s.id for s in stages if s.groups & trained]
    expected = {t.id for t in stages if any(reaches(stages, o, t.id) for o in owners)}
    assert descendants(stages, trained) == expected


@given(graphs())
def test_modalities_below_are_what_can_be_reached(stages):
    expected = {s.id: {m for m in ("acc", "hr") if reaches(stages, f"x.{m}", s.id)} for s in stages}
    assert modalities_below(stages) == expected


def test_a_groups_flops_include_its_share_of_a_shared_stage():
    table = CostTable(
        stages=(stage("join", ("x.acc",), "a", "b"), stage("other", ("join",), "c")),
        flops={
            "join": StageFlops(forward_flops=100.0, input_grad_flops=60.0, weight_grad_flops={"a": 30.0, "b": 10.0}),
            "other": StageFlops(forward_flops=5.0, input_grad_flops=3.0, weight_grad_flops={"c": 2.0}),
        },
        num_values={"a": 3, "b": 1, "c": 1},
    )
    assert table.group_flops("a") == 30.0 + 0.75 * 160.0
    assert table.group_flops("b") == 10.0 + 0.25 * 160.0
    assert table.group_flops("c") == 10.0
    assert table.group_flops("nobody") == 0.0


def test_groups_without_own_flops_share_evenly():
    table = CostTable(
        stages=(stage("join", ("x.acc",), "a", "b"),),
        flops={"join": StageFlops(forward_flops=8.0, input_grad_flops=4.0, weight_grad_flops={"a": 0.0, "b": 0.0})},
        num_values={"a": 0, "b": 0},
    )
    assert table.group_flops("a") == table.group_flops("b") == pytest.approx(6.0)


def test_toy_backbone_depends_on_what_it_should():
    below = modalities_below(build().specs)
    assert below["fusion.A.hr"] == {"hr"} and below["head.1"] == {"acc", "hr"}


def test_a_twin_on_another_way_counts_where_it_runs():
    """``late`` and its twin own one group; a group off every way to the logits counts at its first stage."""
    cost = StageFlops(forward_flops=1.0, input_grad_flops=1.0, weight_grad_flops={"w": 1.0})
    other = StageFlops(forward_flops=2.0, input_grad_flops=2.0, weight_grad_flops={"x": 2.0})
    table = CostTable(
        stages=(
            stage("late", ("x.acc",), "w"),
            stage("off", ("x.acc",), "x"),
            stage("off@2", ("x.acc",), "x"),
            stage("late@2", ("off@2",), "w"),
        ),
        flops={"late": cost, "off": other, "off@2": other, "late@2": cost},
        num_values={"w": 1, "x": 1},
        output="late",
    )
    assert table.group_flops("w") == 3.0 and table.group_flops("x") == 6.0
    assert table.group_flops("w", table.running(["late@2"])) == 3.0
    assert table.group_flops("w", table.stages) == 6.0
