"""Section V of the paper as functions: aggregation error, convergence, allocation and regret.

Symbols: N clients, cohort C_m (devices that own modality m, size c), active cohort (those that trained A_m this round,
size k), g_bar = mean of the cohort's gradients, sigma^2 = stochastic variance, E = local epochs, eps_0 = largest norm
of an update from a device without the sensor, zeta_m^2 = mean squared deviation of the cohort's gradients from g_bar.
Noise enters everywhere as `noise` = sigma^2 / E, the variance of one device's averaged update.

Where the printed statement does not hold, the function computes what does hold; the printed one stands beside it under
`..._printed`, so that the difference can be tested (docs/paper-notes.md tells the story of each).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class AggregationError:
    """Terms that bound FedAvg's expected squared error on one fusion block (Lemma 1).

    Attributes:
        scaling: term (I), from dividing by all N clients.
        interference: term (II), from updates of clients without the sensor.
        variance: term (III), from stochastic gradients.
    """

    scaling: float
    interference: float
    variance: float

    @property
    def total(self) -> float:
        """Sum of the three terms."""
        return self.scaling + self.interference + self.variance


def fedavg_bias_sq(cohort_mean: _Vector, absent_mean: _Vector, *, cohort_size: int, num_clients: int) -> float:
    """Return the exact squared bias of plain averaging on one block: ((N - c)/N)^2 |g_bar - E[eps_hat]|^2.

    First line of Eq. (13), Lemma 1. Both vectors have the block's shape; `absent_mean` is the expected mean
    update of the N - c devices without the sensor.
    """
    absent = _absent_share(cohort_size, num_clients)
    return float(absent**2 * np.sum((cohort_mean - absent_mean) ** 2))


def fedavg_error_bound(
    *, mean_norm: float, eps_0: float, noise: float, cohort_size: int, num_clients: int
) -> AggregationError:
    """Bound FedAvg's expected squared error on one block by scaling (I), interference (II) and variance (III).

    Lemma 1 with the factor 2 that |a - b|^2 <= 2|a|^2 + 2|b|^2 brings and the paper drops, and with the absent devices'
    own variance, at most (N - c) eps_0^2 / N^2, which Eq. (12) has and the three-term form loses. All devices
    take part, so the cohort's heterogeneity is no source of error: g_bar is the mean of exactly these gradients.
    """
    absent = _absent_share(cohort_size, num_clients)
    variance = (cohort_size * noise + (num_clients - cohort_size) * eps_0**2) / num_clients**2
    return AggregationError(
        scaling=2 * absent**2 * mean_norm**2, interference=2 * absent**2 * eps_0**2, variance=variance
    )


def fedavg_error_printed(
    *, mean_norm: float, eps_0: float, noise: float, zeta_sq: float, cohort_size: int, num_clients: int
) -> AggregationError:
    """Return Lemma 1's three terms as printed: no factor 2, and zeta_m^2 inside the variance.

    Not an upper bound: with g_bar and the absent mean opposed and of one length, the squared bias is twice (I) + (II).
    """
    absent = _absent_share(cohort_size, num_clients)
    return AggregationError(
        scaling=absent**2 * mean_norm**2,
        interference=absent**2 * eps_0**2,
        variance=cohort_size * (noise + zeta_sq) / num_clients**2,
    )


def cohort_error_bound(*, noise: float, zeta_sq: float, active_size: int) -> float:
    """Return Theorem 2's bound (sigma^2/E + zeta_m^2)/k on the error of cohort-wise averaging.

    Holds when the active cohort is drawn uniformly from C_m, or is all of it. A choice that depends on the
    device (its speed, say) can exceed it: see `cohort_error_worst`.
    """
    _positive(active_size=active_size)
    return (noise + zeta_sq) / active_size


def cohort_error_uniform(*, noise: float, zeta_sq: float, active_size: int, cohort_size: int) -> float:
    """Return the exact expected error for k devices drawn uniformly without replacement from a cohort of c.

    noise/k + zeta_m^2/k * (c - k)/(c - 1): Theorem 2 with the finite-population factor, zero heterogeneity at k = c.
    """
    _within(active_size, cohort_size)
    spread = (cohort_size - active_size) / (cohort_size - 1) if cohort_size > 1 else 0.0
    return (noise + zeta_sq * spread) / active_size


def cohort_error_worst(*, noise: float, zeta_sq: float, active_size: int, cohort_size: int) -> float:
    """Return the largest error any fixed choice of k out of c devices can have: noise/k + zeta_m^2 (c - k)/k.

    Attained when the k chosen gradients deviate alike and the others balance them. It is what elastic training must be
    held against, because a server that picks devices by speed does not draw them at random.
    """
    _within(active_size, cohort_size)
    return (noise + zeta_sq * (cohort_size - active_size)) / active_size


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvergenceSetting:
    """Quantities of Theorem 3.

    Attributes:
        learning_rate: eta.
        num_epochs: local epochs, E.
        num_rounds: R.
        smoothness: L.
        initial_gap: F(Theta^0) - F*.
        sigma_sq: stochastic variance, sigma^2.
        zeta_sq: heterogeneity of all clients, zeta^2.
        num_clients: N.
        block_zeta_sq: zeta_m^2 by modality.
        active_sizes: smallest active cohort of all rounds by modality, min_r k_m.
    """

    learning_rate: float
    num_epochs: int
    num_rounds: int
    smoothness: float
    initial_gap: float
    sigma_sq: float
    zeta_sq: float
    num_clients: int
    block_zeta_sq: tuple[float, ...]
    active_sizes: tuple[int, ...]


def cohort_residual(setting: ConvergenceSetting) -> float:
    """Return sum_m (sigma^2/E + zeta_m^2) / min_r k_m: all of Theorem 3 that aggregation decides.

    It is no term of the rate by itself: it enters with the weight 2 L eta as printed, and L eta/E telescoped.
    """
    noise = setting.sigma_sq / setting.num_epochs
    pairs = zip(setting.block_zeta_sq, setting.active_sizes, strict=True)
    return sum(cohort_error_bound(noise=noise, zeta_sq=zeta, active_size=size) for zeta, size in pairs)


def convergence_bound(setting: ConvergenceSetting) -> float:
    """Return Theorem 3's bound on the mean squared gradient norm over R rounds.

    2 gap/(eta E R) + 4 L eta E zeta^2 + 2 L eta sigma^2/N + 2 L eta * residual. The printed per-round inequality gives
    smaller constants than this (see `convergence_bound_telescoped`), so the printed rate follows from it with room.
    """
    eta, epochs = setting.learning_rate, setting.num_epochs
    optimization = 2 * setting.initial_gap / (eta * epochs * setting.num_rounds)
    drift = 4 * setting.smoothness * eta * epochs * setting.zeta_sq
    noise = 2 * setting.smoothness * eta * setting.sigma_sq / setting.num_clients
    return optimization + drift + noise + 2 * setting.smoothness * eta * cohort_residual(setting)


def convergence_bound_telescoped(setting: ConvergenceSetting) -> float:
    """Return what the printed per-round inequality really gives after telescoping and dividing by eta E R / 2.

    2 gap/(eta E R) + L eta E zeta^2 + L eta sigma^2/(N E) + (L eta/E) * residual.
    """
    eta, epochs = setting.learning_rate, setting.num_epochs
    optimization = 2 * setting.initial_gap / (eta * epochs * setting.num_rounds)
    drift = setting.smoothness * eta * epochs * setting.zeta_sq
    noise = setting.smoothness * eta * setting.sigma_sq / (setting.num_clients * epochs)
    return optimization + drift + noise + setting.smoothness * eta * cohort_residual(setting) / epochs


def residual(divergences: Sequence[float], sizes: Sequence[float]) -> float:
    """Return the weighted cohort residual sum_m Delta_m / x_m (Proposition 4)."""
    return sum(delta / size for delta, size in zip(divergences, sizes, strict=True))


def optimal_sizes(divergences: Sequence[float], budget: float) -> tuple[float, ...]:
    """Return x_m* = K sqrt(Delta_m) / sum sqrt(Delta): the continuous optimum of Proposition 4, Eq. (17).

    Sizes are real numbers and know no cohort's limit; top-k selection by divergence shares only their order.
    """
    roots = [math.sqrt(delta) for delta in divergences]
    total = sum(roots)
    if total <= 0:
        raise ValueError(f"divergences: found {tuple(divergences)}, expected at least one above zero")
    return tuple(budget * root / total for root in roots)


def optimal_residual(divergences: Sequence[float], budget: float) -> float:
    """Return R* = (sum_m sqrt(Delta_m))^2 / K, the least residual that a budget of K allows (Proposition 4)."""
    return sum(math.sqrt(delta) for delta in divergences) ** 2 / budget


def ema(values: Sequence[float], *, gamma: float, initial: float) -> tuple[float, ...]:
    """Return the smoothed divergences d_bar^1..d_bar^R of Eq. (6): gamma d^r + (1 - gamma) d_bar^(r-1)."""
    _rate(gamma)
    smoothed, out = initial, []
    for value in values:
        smoothed = gamma * value + (1 - gamma) * smoothed
        out.append(smoothed)
    return tuple(out)


def ema_bias_bound(*, delta: float, gamma: float, num_rounds: int | None = None) -> float:
    """Bound |d_bar^r - d^r| when d moves by at most delta a round and d_bar^0 = d^0 (Proposition 5, corrected).

    delta (1 - gamma)/gamma, or after r rounds delta (1 - gamma)(1 - (1 - gamma)^r)/gamma; a ramp attains the latter.
    The sum is sum_s s q^s = q/(1 - q)^2 with q = 1 - gamma; the paper's last step takes 1/(1 - gamma)^2 for it.
    """
    _rate(gamma)
    reached = 1.0 if num_rounds is None else 1 - (1 - gamma) ** num_rounds
    return delta * (1 - gamma) * reached / gamma


def ema_bias_printed(*, delta: float, gamma: float) -> float:
    """Return the paper's bias bound gamma delta/(1 - gamma)^2, true only from gamma^2 = (1 - gamma)^3 (0.4302) upward.

    At the paper's gamma = 0.9 it is 90 delta where the bias is at most 0.111 delta.
    """
    _rate(gamma)
    return gamma * delta / (1 - gamma) ** 2


def cumulative_bias_bound(*, delta: float, gamma: float, num_rounds: int) -> float:
    """Bound the summed tracking bias over R rounds by R delta (1 - gamma)/gamma: linear in R, and a ramp attains O(R).

    What Proposition 5 can claim. A bias that does not shrink sums to O(R); no follow-the-leader argument turns a
    constant per-round error into O(sqrt R).
    """
    return num_rounds * ema_bias_bound(delta=delta, gamma=gamma)


def cumulative_regret_printed(*, delta: float, gamma: float, num_rounds: int) -> float:
    """Return the right-hand side of Eq. (20) as printed: gamma delta sqrt(R)/(1 - gamma)^2."""
    return ema_bias_printed(delta=delta, gamma=gamma) * math.sqrt(num_rounds)


def _absent_share(cohort_size: int, num_clients: int) -> float:
    _within(cohort_size, num_clients)
    return 1 - cohort_size / num_clients


def _within(part: int, whole: int) -> None:
    if not 1 <= part <= whole:
        raise ValueError(f"cohort sizes: found {part} of {whole}, expected 1 <= part <= whole")


def _positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}: found {size}, expected at least 1")


def _rate(gamma: float) -> None:
    if not 0 < gamma < 1:
        raise ValueError(f"gamma: found {gamma}, expected a number between 0 and 1, both excluded (Eq. 6)")
