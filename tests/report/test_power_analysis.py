"""The scatter that a study is planned with, and what its cells can say about its claims before any of them runs."""

import numpy as np
import pytest

from relief_ray.records.cells import Claim, Claims, PlannedCell
from relief_ray.report import frames
from relief_ray.report.power_analysis import claim_powers, scatter_of
from relief_ray.strategies import PRESETS, facts_of
from relief_ray.support.errors import UserError

GAINS = np.array([[0.05, 0.03, 0.04], [0.03, 0.05, 0.04], [0.04, 0.04, 0.04], [0.04, 0.04, 0.04]])


@pytest.fixture(scope="module")
def cells_of(inventory_of):
    return lambda runs: frames.cells_of(inventory_of(runs))


def test_scatter_by_hand(cells_of, repeat):
    """Gains 5 3 4 3 5 4 4 4 4 4 4 4: mean 4, squares 4, standard deviation sqrt(4 / 11)."""
    found = scatter_of(cells_of([*repeat("fedavg", GAINS * 0 + 0.5), *repeat("v1", GAINS + 0.5)]), "v1", "fedavg", "f1")
    assert (found.mean, found.sd) == (pytest.approx(4.0), pytest.approx((4 / 11) ** 0.5))
    assert (found.num_pairs, found.num_folds, found.on_means) == (12, 4, False)
    # chi squared with 11 degrees of freedom: 21.920 and 3.816 at .975 and .025.
    assert found.interval == pytest.approx((found.sd * (11 / 21.920) ** 0.5, found.sd * (11 / 3.816) ** 0.5), rel=1e-4)


def test_two_means_that_lie_close_together_are_not_planned_with(cells_of, repeat):
    """Folds differ by -6, -2, 2 and 6 points, which cancel: both means are 0, whatever two replicates could show."""
    gains = np.array([[-0.06, -0.06], [-0.02, -0.02], [0.02, 0.02], [0.06, 0.061]])
    cells = cells_of([*repeat("fedavg", gains * 0 + 0.5), *repeat("v1", gains + 0.5)])
    scatter = scatter_of(cells, "v1", "fedavg", "f1")
    assert scatter.is_unsure and scatter.sd == pytest.approx(4.8, abs=0.05)
    six = np.tile(gains, 3)
    cells = cells_of([*repeat("fedavg", six * 0 + 0.5), *repeat("v1", six + 0.5)])
    assert scatter_of(cells, "v1", "fedavg", "f1").on_means


def test_where_pairs_depend_the_unit_is_a_replicate(cells_of, repeat):
    """Replicates gain 2, 5 and 11 points in every fold: mean 6, standard deviation sqrt(42 / 2)."""
    gains = np.array([[0.02, 0.05, 0.11]] * 4)
    found = scatter_of(cells_of([*repeat("fedavg", gains * 0 + 0.5), *repeat("v1", gains + 0.5)]), "v1", "fedavg", "f1")
    assert found.on_means and found.sd == pytest.approx(21**0.5)


def test_other_figures_have_their_own_scatter(cells_of, repeat):
    """V1 is done after half of FedAvg's seconds, where FedAvg has half of its F1: the scatter of BASE / 2."""
    base = np.array([[0.5, 0.52, 0.48], [0.6, 0.62, 0.58]])
    runs = [*repeat("fedavg", base), *repeat("v1", base * 0 + 0.55, round_s=1.0)]
    found = scatter_of(cells_of(runs), "v1", "fedavg", "f1_at_seconds")
    assert found.mean == pytest.approx(float(np.mean(55 - 50 * base)))


def test_what_cannot_be_paired_is_said(cells_of, repeat, make):
    cells = cells_of([*repeat("fedavg", GAINS), make("v1", seed=77)])
    with pytest.raises(UserError, match="0 paired runs of v1 and fedavg with f1, expected two or more"):
        scatter_of(cells, "v1", "fedavg", "f1")
    with pytest.raises(UserError, match=r"no finished run of 'v2'"):
        scatter_of(cells, "v2", "fedavg", "f1")
    two = cells_of([*repeat("fedavg", GAINS), make("fedavg", extra={"rounds": 9}, seed=5)])
    with pytest.raises(UserError, match="2 settings hold these methods"):
        scatter_of(two, "fedavg", "fedavg", "f1")


def planned(methods, folds, replicates):
    return [
        PlannedCell(
            folder="x", label=method, method=facts_of(PRESETS[method], method),
            config={
                "strategy": {"name": method}, "seed": 10_000 + 100 * r + fold, "replicate": r,
                "fleet": {"rotation": r % 6}, "data": {"name": "dsa", "split": "held_out_subject", "fold": fold},
            },
        )
        for method in methods for fold in range(folds) for r in range(replicates)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("folds", "replicates", "words"),
    [
        (4, 12, ""),
        (
            4,
            2,
            "too short to judge: 2 replicates; at least 3 seeds or replicates "
            "are needed (0-2), 7 where the runs of each are alike",
        ),
        (
            1,
            5,
            "this study cannot decide: 5 pairs give no adjusted p below 0.12; at least 7 seeds or replicates "
            "are needed (0-6)",
        ),
        (0, 0, "no runs of both methods on the claim's data are planned"),
    ],
)
def test_a_plan_says_before_it_runs_what_it_can_decide(folds, replicates, words):
    file = Claims(
        data="dsa",
        split="held_out_subject",
        claims=(Claim(first="v1", second="fedavg"), Claim(first="v2", second="fedavg", margin=1.0)),
    )
    first, second = claim_powers(file, planned(("fedavg", "v1"), folds, replicates))
    assert (first.num_pairs, first.num_folds, first.num_replicates) == (folds * replicates, folds, replicates)
    assert first.verdict == words and second.verdict == "no runs of both methods on the claim's data are planned"
    if not words:
        assert first.smallest_p == pytest.approx(2 * 2 / 100_001) and first.smallest_p_means == 2 * 2 / 2**12
        # 48 pairs at level .05 / 2 with power .8 find 0.46 standard deviations.
        assert first.detectable_sds == pytest.approx(0.456, abs=0.01)
