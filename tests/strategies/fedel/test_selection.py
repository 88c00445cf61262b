"""Selection under a time budget against brute force, on chains and trees; windows; prices from a planner."""

from itertools import combinations

import numpy as np
import pytest
import torch

from relief_ray.core.client import Probed
from relief_ray.strategies import fedel as selection
from relief_ray.strategies.fedel import UNITS, Tree, Unit, best, cost, in_units, price, slide, solve


def random_chain(make, size, name, inner=True):
    """Units with whole costs: weights w_k, passing g_k, and i_k <= g_k to reach a unit inside its stage."""
    own, passing = make.integers(0, 12, size), make.integers(0, 12, size)
    inside = [int(make.integers(0, g + 1)) if inner else 0 for g in passing]
    units = [
        Unit(
            id=f"{name}{k}",
            value=float(make.normal(0.4, 0.6)),
            own=float(own[k]),
            deep=float(own[k] + inside[k] + passing[:k].sum()),
        )
        for k in range(size)
    ]
    return tuple(units), float(passing.sum())


def random_tree(make):
    trunk, passing = random_chain(make, int(make.integers(0, 4)), "t")
    branches = [random_chain(make, int(make.integers(1, 4)), f"b{m}.")[0] for m in range(int(make.integers(2, 4)))]
    return Tree(trunk=trunk, branches=tuple(branches), passing=passing)


def brute_force(tree, capacity):
    """The best value of all subsets within ``capacity``."""
    ids, value = [u.id for u in tree.units], {u.id: u.value for u in tree.units}
    subsets = (s for n in range(len(ids) + 1) for s in combinations(ids, n))
    return max(sum(value[j] for j in s) for s in subsets if cost(tree, s) <= capacity)


def worth(tree, selected):
    return sum(u.value for u in tree.units if u.id in selected)


@pytest.mark.parametrize("seed", range(60))
def test_chains_are_solved_exactly(seed):
    make = np.random.default_rng(seed)
    tree = Tree(trunk=random_chain(make, int(make.integers(1, 13)), "t")[0])
    for capacity in (0, 7, int(make.integers(1, 80)), 1000):
        chosen = solve(tree, capacity)
        assert cost(tree, chosen) <= capacity
        assert worth(tree, chosen) == pytest.approx(brute_force(tree, capacity), abs=1e-12)


@pytest.mark.parametrize("seed", range(60))
def test_trees_are_solved_exactly(seed):
    make = np.random.default_rng(1000 + seed)
    tree = random_tree(make)
    assert len(tree.units) <= 12
    for capacity in (0, 9, int(make.integers(1, 90)), 1000):
        chosen = solve(tree, capacity)
        assert cost(tree, chosen) <= capacity
        assert worth(tree, chosen) == pytest.approx(brute_force(tree, capacity), abs=1e-12)


def test_the_papers_own_example():
    """Five tensors, 2 and 4 selected: ``t_g5 + t_w4 + t_g4 + t_g3 + t_w2``."""
    weight, passing = {1: 1.0, 2: 2.0, 3: 4.0, 4: 8.0, 5: 16.0}, {1: 0.1, 2: 0.2, 3: 0.4, 4: 0.8, 5: 1.6}
    units = [
        Unit(id=str(k), value=1.0, own=weight[k], deep=weight[k] + sum(passing[i] for i in range(k + 1, 6)))
        for k in (5, 4, 3, 2, 1)
    ]
    assert cost(Tree(trunk=tuple(units)), ["2", "4"]) == pytest.approx(1.6 + 8.0 + 0.8 + 0.4 + 2.0)


@pytest.mark.parametrize("seed", range(20))
def test_rounded_costs_are_feasible_in_units_and_exceed_seconds_by_less_than_a_unit_each(seed):
    make = np.random.default_rng(seed)
    tree = random_tree(make)
    limit = 0.37 * cost(tree, [u.id for u in tree.units])
    chosen = best(tree, limit, limit / UNITS) if limit else frozenset()
    if len(chosen) > 1:
        assert cost(in_units(tree, limit / UNITS), chosen) <= UNITS
        assert cost(tree, chosen) <= limit * (1 + (len(tree.units) + 1) / UNITS)


def test_exactly_all_fits_where_the_budget_is_the_cost_of_all():
    units = tuple(Unit(id=str(k), value=1.0, own=0.1 + 1e-9, deep=0.1 + 1e-9) for k in range(7))
    tree = Tree(trunk=units)
    total = cost(tree, [u.id for u in units])
    assert best(tree, total, total / UNITS) == {u.id for u in units}


@pytest.mark.parametrize(("capacity_s", "quantum_s"), [(-3.0, 0.01), (0.5, 0.0005), (-1.0, -1.0)])
def test_where_nothing_fits_one_of_best_value_per_second_is_taken(capacity_s, quantum_s):
    tree = Tree(trunk=(Unit(id="a", value=1.0, own=2.0, deep=2.0), Unit(id="b", value=0.9, own=0.7, deep=1.5)))
    assert best(tree, capacity_s, quantum_s) == {"b"}


@pytest.mark.parametrize("capacity_s", [-1.0, 1e9])
def test_what_raises_the_loss_is_never_chosen(capacity_s):
    units = (Unit(id="a", value=-1.0, own=0.0, deep=0.0), Unit(id="b", value=0.0, own=0.0, deep=0.0))
    assert best(Tree(trunk=units), capacity_s, 1.0) == frozenset()
    paid = Unit(id="c", value=0.1, own=1.0, deep=1.0)
    assert best(Tree(trunk=(*units, paid)), capacity_s, 1.0) == {"c"}


@pytest.mark.parametrize("seed", range(20))
def test_prices_reproduce_what_every_selection_takes(seed):
    """A planner whose seconds follow the tree's rule is read back exactly; one branch is the trunk's continuation."""
    make = np.random.default_rng(seed)
    hidden = random_tree(make)
    if seed % 2:
        hidden = Tree(trunk=hidden.trunk, branches=hidden.branches[:1], passing=hidden.passing)
    ids = [u.id for u in hidden.units]
    branches = [[u.id for u in b] for b in hidden.branches]
    priced = price(
        [u.id for u in hidden.trunk], branches, dict.fromkeys(ids, 1.0), lambda chosen: 5.0 + cost(hidden, chosen)
    )
    assert bool(priced.branches) == (len(branches) > 1)
    for size in range(len(ids) + 1):
        for chosen in combinations(ids, size):
            assert cost(priced, chosen) == pytest.approx(cost(hidden, chosen), abs=1e-9)


def test_a_tree_without_units():
    assert best(price((), (), {}, lambda chosen: 1.0), 1.0, 0.1) == frozenset()


@pytest.mark.parametrize("budget", [0.5, 1.0, 2.5, 4.0, 100.0])
@pytest.mark.parametrize("cull", [True, False])
def test_windows_slide_to_the_output_and_start_again(budget, cull):
    """Five blocks of one second: the front rises until 5, every block is inside once a cycle."""
    last, fronts, seen = None, [], []
    for _ in range(23):
        end, front = slide(last, 5, budget, lambda a, b: float(b - a + 1), cull)
        assert 1 <= end <= front <= 5
        if last is not None:
            assert front > last[1] if last[1] < 5 else (end, front) == (1, fronts[0])
        fronts.append(front)
        seen.append(set(range(end, front + 1)))
        last = (end, front, end)
    stops = [i for i, front in enumerate(fronts) if front == 5]
    for begin, stop in zip([-1, *stops], stops, strict=False):
        assert set().union(*seen[begin + 1 : stop + 1]) == {1, 2, 3, 4, 5}


def test_the_first_window_is_worth_the_budget():
    worth_of = {1: 1.0, 2: 1.0, 3: 5.0, 4: 1.0}
    assert slide(None, 4, 2.0, lambda a, b: sum(worth_of[i] for i in range(a, b + 1)), True) == (1, 2)
    assert slide((1, 2, 2), 4, 2.0, lambda a, b: sum(worth_of[i] for i in range(a, b + 1)), True) == (2, 3)


def test_blocks_without_a_selection_are_culled_at_the_input_side():
    assert slide((1, 3, 2), 6, 1.0, lambda a, b: 1.0, True) == (2, 4)
    assert slide((1, 3, 0), 6, 1.0, lambda a, b: 1.0, True) == (4, 4), "nothing was selected"
    assert slide((1, 3, 2), 6, 1.0, lambda a, b: 1.0, False) == (4, 4)


def test_a_large_tree_is_solved_within_its_budget():
    make = np.random.default_rng(0)
    branches = tuple(random_chain(make, 25, f"b{m}.")[0] for m in range(4))
    trunk, passing = random_chain(make, 5, "t")
    tree = Tree(trunk=trunk, branches=branches, passing=passing)
    chosen = selection.solve(tree, UNITS)
    assert 0 < len(chosen) and cost(tree, chosen) <= UNITS


def test_importance_of_a_step_that_lowers_the_loss_is_positive():
    """``-g' . Delta w`` over the largest, by hand."""
    probed = Probed(
        step={"a": torch.tensor([0.1, -0.2]), "b": torch.tensor([0.3])},
        gradient={"a": torch.tensor([-1.0, 2.0]), "b": torch.tensor([0.5])},
    )
    assert selection.local_importance(probed) == pytest.approx({"a": 1.0, "b": -0.3})
    wrong_way = Probed(
        step={"a": torch.tensor([1.0]), "b": torch.tensor([1.0])},
        gradient={"a": torch.tensor([4.0]), "b": torch.tensor([-1.0])},
    )
    assert selection.local_importance(wrong_way) == pytest.approx({"a": -1.0, "b": 0.25}), "the largest may be negative"
    still = Probed(step={"a": torch.zeros(2)}, gradient={"a": torch.ones(2)})
    assert selection.local_importance(still) == {"a": 0.0}
