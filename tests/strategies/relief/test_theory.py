"""Section V: what is proved is simulated, what is printed wrongly has its counterexample."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebooks import theory

positive = st.floats(0.01, 100)
STANDARD_ERRORS = 5  # one false alarm in 1.7 million draws; the seeds are fixed besides


def mean_and_error(samples):
    return samples.mean(), samples.std(ddof=1) / math.sqrt(len(samples))


def noise_like(rng, shape, variance):
    """Gaussian vectors along the last axis with E|xi|^2 = variance."""
    return rng.normal(size=shape) * math.sqrt(variance / shape[-1])


# Lemma 1 ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lemma_1():
    """FedAvg's squared error on one block: 3 of 8 devices own the sensor, the others send small noise."""
    rng = np.random.default_rng(1)
    num_clients, cohort, dim, draws, noise, absent_var = 8, 3, 4, 40_000, 0.5, 0.02
    gradients = rng.normal(size=(cohort, dim))
    absent_mean = np.full(dim, -0.1)
    sent = gradients + noise_like(rng, (draws, cohort, dim), noise)
    absent = absent_mean + noise_like(rng, (draws, num_clients - cohort, dim), absent_var)
    average = np.concatenate([sent, absent], axis=1).mean(axis=1)
    g_bar = gradients.mean(axis=0)
    return {
        "errors": ((average - g_bar) ** 2).sum(axis=1),
        "g_bar": g_bar,
        "absent_mean": absent_mean,
        "eps_0": math.sqrt(absent_mean @ absent_mean + absent_var),
        "variance": (cohort * noise + (num_clients - cohort) * absent_var) / num_clients**2,
        "noise": noise,
        "sizes": {"cohort_size": cohort, "num_clients": num_clients},
    }


def test_fedavg_error_is_bias_plus_variance(lemma_1):
    bias_sq = theory.fedavg_bias_sq(lemma_1["g_bar"], lemma_1["absent_mean"], **lemma_1["sizes"])
    measured, error = mean_and_error(lemma_1["errors"])
    assert abs(measured - (bias_sq + lemma_1["variance"])) < STANDARD_ERRORS * error
    assert bias_sq > 50 * error  # the bias is what is tested, not lost in the draw


def test_fedavg_error_stays_below_the_corrected_bound(lemma_1):
    bound = theory.fedavg_error_bound(
        mean_norm=float(np.linalg.norm(lemma_1["g_bar"])),
        eps_0=lemma_1["eps_0"],
        noise=lemma_1["noise"],
        **lemma_1["sizes"],
    )
    measured, error = mean_and_error(lemma_1["errors"])
    assert measured + STANDARD_ERRORS * error < bound.total
    assert bound.variance == pytest.approx(lemma_1["variance"] + 5 * 0.04 / 64)  # eps_0^2 = 0.02 + 4 * 0.1^2


def test_factor_two_of_lemma_1_by_hand():
    # g_bar = 1, absent mean = -1, half of 4 devices: bias^2 = (1/2)^2 * 2^2 = 1; printed (I) + (II) = 1/4 + 1/4.
    bias_sq = theory.fedavg_bias_sq(np.array([1.0]), np.array([-1.0]), cohort_size=2, num_clients=4)
    known = {"mean_norm": 1.0, "eps_0": 1.0, "noise": 0.0, "cohort_size": 2, "num_clients": 4}
    printed = theory.fedavg_error_printed(**known, zeta_sq=0.0)
    bound = theory.fedavg_error_bound(**known)
    assert bias_sq == 1.0
    assert printed.scaling + printed.interference == 0.5
    assert bound.scaling + bound.interference == 1.0


@given(
    st.lists(st.floats(-10, 10), min_size=3, max_size=3),
    st.lists(st.floats(-10, 10), min_size=3, max_size=3),
    st.integers(1, 10),
    st.integers(0, 10),
)
def test_corrected_bound_holds_for_any_vectors(g, e, cohort, absent):
    sizes = {"cohort_size": cohort, "num_clients": cohort + absent}
    g, e = np.array(g), np.array(e)
    bound = theory.fedavg_error_bound(
        mean_norm=float(np.linalg.norm(g)), eps_0=float(np.linalg.norm(e)), noise=0.0, **sizes
    )
    assert theory.fedavg_bias_sq(g, e, **sizes) <= (bound.scaling + bound.interference) * (1 + 1e-12)


def test_a_modality_that_everybody_owns_has_neither_bias_nor_interference():
    bound = theory.fedavg_error_bound(mean_norm=3.0, eps_0=1.0, noise=8.0, cohort_size=8, num_clients=8)
    assert (bound.scaling, bound.interference, bound.variance) == (0.0, 0.0, 1.0)


# Theorem 2 -------------------------------------------------------------------------------------------------------


def subset_errors(gradients, active):
    """Squared distance of every k-subset's mean from the mean of all."""
    g_bar = gradients.mean(axis=0)
    subsets = itertools.combinations(range(len(gradients)), active)
    return np.array([((gradients[list(s)].mean(axis=0) - g_bar) ** 2).sum() for s in subsets])


def spread(gradients):
    """zeta_m^2."""
    return float(((gradients - gradients.mean(axis=0)) ** 2).sum(axis=1).mean())


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=6), st.data())
def test_theorem_2_over_all_subsets(values, data):
    gradients = np.array(values)[:, None]
    active = data.draw(st.integers(1, len(values)))
    errors = subset_errors(gradients, active)
    known = {"noise": 0.0, "zeta_sq": spread(gradients), "active_size": active}
    exact = theory.cohort_error_uniform(**known, cohort_size=len(values))
    assert errors.mean() == pytest.approx(exact, abs=1e-9)
    assert exact <= theory.cohort_error_bound(**known)
    assert errors.max() <= theory.cohort_error_worst(**known, cohort_size=len(values)) + 1e-9


def test_theorem_2_with_noise_by_simulation():
    rng = np.random.default_rng(2)
    cohort, active, dim, draws, noise = 5, 2, 3, 40_000, 0.7
    gradients = rng.normal(size=(cohort, dim))
    chosen = rng.random((draws, cohort)).argsort(axis=1)[:, :active]
    average = (gradients[chosen] + noise_like(rng, (draws, active, dim), noise)).mean(axis=1)
    measured, error = mean_and_error(((average - gradients.mean(axis=0)) ** 2).sum(axis=1))
    known = {"noise": noise, "zeta_sq": spread(gradients), "active_size": active}
    assert abs(measured - theory.cohort_error_uniform(**known, cohort_size=cohort)) < STANDARD_ERRORS * error
    assert measured + STANDARD_ERRORS * error < theory.cohort_error_bound(**known)


def test_a_systematic_choice_exceeds_theorem_2():
    # Two fast devices pull to +1, two slow ones to -1. Training only the fast ones: error 1, Theorem 2 says 1/2.
    gradients = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    known = {"noise": 0.0, "zeta_sq": spread(gradients), "active_size": 2}
    assert subset_errors(gradients, 2)[0] == 1.0
    assert theory.cohort_error_bound(**known) == 0.5
    assert theory.cohort_error_worst(**known, cohort_size=4) == 1.0


def test_the_whole_cohort_leaves_noise_alone():
    known = {"noise": 0.9, "zeta_sq": 4.0, "active_size": 3, "cohort_size": 3}
    assert theory.cohort_error_uniform(**known) == pytest.approx(0.3)
    assert theory.cohort_error_worst(**known) == pytest.approx(0.3)


# Theorem 3 -------------------------------------------------------------------------------------------------------


class Quadratic:
    """F_n = 1/2 sum_j a_nj |theta_j - c_nj|^2 over the groups that device n owns: the 3/3/2 fleet, one shared head."""

    def __init__(self, seed, heterogeneity):
        rng = np.random.default_rng(seed)
        owned = np.repeat([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], [3, 3, 2], axis=0)
        access = np.hstack([owned, np.ones((8, 1), dtype=int)])
        self.curvature = access * (1 + 0.3 * heterogeneity * rng.random(access.shape))
        self.target = 2 + heterogeneity * rng.normal(size=(*access.shape, 3))
        self.cohort = access.sum(axis=0)
        self.access = access

    def gradients(self, theta):
        """(..., groups, dim) -> (..., clients, groups, dim)."""
        return self.curvature[..., None] * (theta[..., None, :, :] - self.target)

    def loss(self, theta):
        return 0.5 * (self.curvature[..., None] * (theta[..., None, :, :] - self.target) ** 2).sum((-1, -2)).mean(-1)

    def optimum(self):
        weight = self.curvature / self.curvature.sum(axis=0)
        return (weight[..., None] * self.target).sum(axis=0)


def simulate(problem, *, eta, epochs, rounds, sigma_sq, seeds, rng):
    """RELIEF's rule (cohort mean per block), many seeds at once: Theta^0..Theta^R, (rounds + 1, seeds, groups, dim)."""
    theta = np.zeros((seeds, *problem.target.shape[1:]))
    path = [theta]
    for _ in range(rounds):
        local = np.repeat(theta[:, None], len(problem.access), axis=1)
        for _ in range(epochs):
            gradient = problem.curvature[..., None] * (local - problem.target)
            local = local - eta * problem.access[..., None] * (gradient + noise_like(rng, gradient.shape, sigma_sq))
        theta = theta + (local - theta[:, None]).sum(axis=1) / problem.cohort[:, None]
        path.append(theta)
    return np.stack(path)


def setting_of(problem, path, *, eta, epochs, sigma_sq):
    """Theorem 3's constants, measured where the run went: the assumptions ask for their worst."""
    gradients = problem.gradients(path)
    deviation = ((gradients - gradients.mean(axis=2, keepdims=True)) ** 2).sum((-1, -2)).mean(axis=2)
    mean = gradients.sum(axis=2, keepdims=True) / problem.cohort[:, None]
    block = (((gradients - mean) ** 2).sum(-1) * problem.access).sum(axis=2) / problem.cohort
    return theory.ConvergenceSetting(
        learning_rate=eta,
        num_epochs=epochs,
        num_rounds=len(path) - 1,
        smoothness=float(problem.curvature.mean(axis=0).max()),
        initial_gap=float(problem.loss(path[0]).mean() - problem.loss(problem.optimum())),
        sigma_sq=sigma_sq,
        zeta_sq=float(deviation.max()),
        num_clients=8,
        block_zeta_sq=tuple(block.max(axis=(0, 1))[:4].tolist()),
        active_sizes=tuple(problem.cohort[:4].tolist()),
    )


@pytest.mark.parametrize("heterogeneity", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("sigma_sq", [0.0, 1.0])
def test_gradient_norm_stays_below_theorem_3(heterogeneity, sigma_sq):
    problem, epochs, rounds = Quadratic(3, heterogeneity), 5, 60
    eta = 1 / math.sqrt(epochs * rounds)
    rng = np.random.default_rng(4)
    path = simulate(problem, eta=eta, epochs=epochs, rounds=rounds, sigma_sq=sigma_sq, seeds=30, rng=rng)
    per_seed = (problem.gradients(path[1:]).mean(axis=2) ** 2).sum((-1, -2)).mean(axis=0)
    measured, error = mean_and_error(per_seed)
    setting = setting_of(problem, path, eta=eta, epochs=epochs, sigma_sq=sigma_sq)
    assert 0 < measured + STANDARD_ERRORS * error < theory.convergence_bound_telescoped(setting)
    assert theory.convergence_bound_telescoped(setting) <= theory.convergence_bound(setting)


def quadratic_bound(eta, rounds):
    """Theorem 3 on F = theta^2/2 from theta = 1 with one noiseless device: 1/(eta R)."""
    return theory.convergence_bound(
        theory.ConvergenceSetting(
            learning_rate=eta,
            num_epochs=1,
            num_rounds=rounds,
            smoothness=1.0,
            initial_gap=0.5,
            sigma_sq=0.0,
            zeta_sq=0.0,
            num_clients=1,
            block_zeta_sq=(0.0,),
            active_sizes=(1,),
        )
    )


@given(st.floats(0.001, 1.0), st.integers(1, 300))
def test_theorem_3_on_one_device_by_hand(eta, rounds):
    measured = sum((1 - eta) ** (2 * r) for r in range(1, rounds + 1)) / rounds
    assert quadratic_bound(eta, rounds) == pytest.approx(1 / (eta * rounds))
    assert measured <= quadratic_bound(eta, rounds)


def test_theorem_3_needs_a_step_size_that_it_does_not_state():
    # theta_r = (1 - eta)^r diverges for eta > 2/L; eta = O(1/sqrt(E R)) alone does not forbid that.
    measured = sum((1 - 2.5) ** (2 * r) for r in range(1, 11)) / 10
    assert measured > 1000 * quadratic_bound(2.5, 10)


def test_bound_terms_by_hand():
    setting = theory.ConvergenceSetting(
        learning_rate=0.1,
        num_epochs=5,
        num_rounds=10,
        smoothness=2.0,
        initial_gap=3.0,
        sigma_sq=10.0,
        zeta_sq=0.5,
        num_clients=8,
        block_zeta_sq=(1.0, 4.0),
        active_sizes=(3, 2),
    )
    assert theory.cohort_residual(setting) == pytest.approx(3 / 3 + 6 / 2)
    assert theory.convergence_bound(setting) == pytest.approx(1.2 + 2.0 + 0.5 + 1.6)
    assert theory.convergence_bound_telescoped(setting) == pytest.approx(1.2 + 0.5 + 0.05 + 0.16)


# Proposition 4 ---------------------------------------------------------------------------------------------------


def integer_sizes(num, budget):
    """Every way to give each of `num` blocks at least one of `budget` devices."""
    cuts = itertools.combinations(range(1, budget), num - 1)
    return [tuple(b - a for a, b in itertools.pairwise((0, *cut, budget))) for cut in cuts]


def test_optimal_sizes_by_hand():
    assert theory.optimal_sizes([1.0, 4.0, 9.0], 12.0) == pytest.approx((2.0, 4.0, 6.0))
    assert theory.optimal_residual([1.0, 4.0, 9.0], 12.0) == pytest.approx(36 / 12)
    assert theory.residual([1.0, 4.0, 9.0], [2.0, 4.0, 6.0]) == pytest.approx(3.0)


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=6), positive)
def test_no_allocation_beats_the_optimum(pairs, budget):
    divergences, shares = zip(*pairs, strict=True)
    sizes = [budget * share / sum(shares) for share in shares]
    best = theory.optimal_residual(divergences, budget)
    assert theory.residual(divergences, sizes) >= best * (1 - 1e-9)
    assert theory.residual(divergences, theory.optimal_sizes(divergences, budget)) == pytest.approx(best)


@given(st.lists(positive, min_size=2, max_size=4), st.integers(4, 12))
def test_brute_force_over_whole_devices_keeps_rank_but_not_value(divergences, budget):
    every = integer_sizes(len(divergences), budget)
    best = min(every, key=lambda sizes: theory.residual(divergences, sizes))
    assert theory.residual(divergences, best) >= theory.optimal_residual(divergences, budget) * (1 - 1e-9)
    ranked = sorted(zip(divergences, best, strict=True))
    for (low, small), (high, large) in itertools.pairwise(ranked):
        assert small <= large or low == pytest.approx(high)


def test_top_k_shares_the_order_of_the_optimum_and_nothing_else():
    # K = 6 slots, cohorts of at most 4: after one mandatory slot each, top-k fills the most divergent block first.
    divergences = [1.2, 1.1, 1.0]
    top_k, even = (4, 1, 1), (2, 2, 2)
    assert theory.residual(divergences, even) < theory.residual(divergences, top_k)
    assert theory.optimal_sizes(divergences, 6.0) == pytest.approx(even, abs=0.15)


# Proposition 5 ---------------------------------------------------------------------------------------------------


def test_ema_lags_a_ramp_by_hand():
    # d = 0, 1, 2, 3 and gamma = 1/2: smoothed 0.5, 1.25, 2.125, so it lags by 0.5, 0.75, 0.875 (towards 1).
    assert theory.ema([1.0, 2.0, 3.0], gamma=0.5, initial=0.0) == (0.5, 1.25, 2.125)
    lags = [theory.ema_bias_bound(delta=1.0, gamma=0.5, num_rounds=r) for r in (1, 2, 3)]
    assert lags == pytest.approx([0.5, 0.75, 0.875])
    assert theory.ema_bias_bound(delta=1.0, gamma=0.5) == 1.0


@given(positive, st.floats(0.05, 0.95), st.integers(1, 200))
def test_a_ramp_attains_the_corrected_bound(delta, gamma, rounds):
    ramp = [delta * r for r in range(1, rounds + 1)]
    lag = ramp[-1] - theory.ema(ramp, gamma=gamma, initial=0.0)[-1]
    assert lag == pytest.approx(theory.ema_bias_bound(delta=delta, gamma=gamma, num_rounds=rounds), rel=1e-6)


@given(st.floats(0.05, 0.95), st.lists(st.floats(-1, 1), min_size=1, max_size=50))
def test_no_walk_exceeds_the_corrected_bound(gamma, steps):
    walk = list(itertools.accumulate(steps))
    smoothed = theory.ema(walk, gamma=gamma, initial=0.0)
    for rounds, (value, estimate) in enumerate(zip(walk, smoothed, strict=True), start=1):
        bound = theory.ema_bias_bound(delta=1.0, gamma=gamma, num_rounds=rounds)
        assert abs(estimate - value) <= bound + 1e-9


def test_printed_bias_bound_is_one_only_from_gamma_0_4302():
    for gamma, holds in ((0.1, False), (0.43, False), (0.4302, True), (0.9, True)):
        printed = theory.ema_bias_printed(delta=1.0, gamma=gamma)
        assert (printed >= theory.ema_bias_bound(delta=1.0, gamma=gamma)) is holds
    assert theory.ema_bias_printed(delta=1.0, gamma=0.9) == pytest.approx(90)
    assert theory.ema_bias_bound(delta=1.0, gamma=0.9) == pytest.approx(1 / 9)


def test_a_constant_bias_sums_to_order_r_and_passes_the_printed_square_root():
    def summed(rounds):
        ramp = [float(r) for r in range(1, rounds + 1)]
        return sum(d - e for d, e in zip(ramp, theory.ema(ramp, gamma=0.5, initial=0.0), strict=True))

    known = {"delta": 1.0, "gamma": 0.5}
    assert summed(2000) / summed(1000) == pytest.approx(2.0, rel=1e-2)  # not sqrt(2)
    assert summed(1000) <= theory.cumulative_bias_bound(**known, num_rounds=1000)
    assert summed(1000) > 10 * theory.cumulative_regret_printed(**known, num_rounds=1000)


# Bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.0, 1.0, -0.1, 1.5])
def test_gamma_outside_its_range_is_refused(gamma):
    with pytest.raises(ValueError, match="gamma"):
        theory.ema([1.0], gamma=gamma, initial=0.0)


@pytest.mark.parametrize(("active", "cohort"), [(0, 3), (4, 3)])
def test_impossible_cohorts_are_refused(active, cohort):
    with pytest.raises(ValueError, match="cohort sizes"):
        theory.cohort_error_worst(noise=0.0, zeta_sq=0.0, active_size=active, cohort_size=cohort)


def test_empty_active_cohort_and_all_zero_divergence_are_refused():
    with pytest.raises(ValueError, match="active_size"):
        theory.cohort_error_bound(noise=0.0, zeta_sq=0.0, active_size=0)
    with pytest.raises(ValueError, match="divergences"):
        theory.optimal_sizes([0.0, 0.0], 4.0)
