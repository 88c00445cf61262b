"""Skewed partitions: windows dealt to clients in shares that a Dirichlet distribution gives.

`dirichlet`, label skew: p_k ~ Dir(alpha) over the N clients for every class k, and p_kn of class k's windows go to
client n. `quantity`: q ~ Dir(alpha) over the clients, and q_n of all windows, whatever their class. Small alpha: a few
clients get most; large alpha: equal shares. Shares are drawn again until every client has `min_partition_size` training
windows; the same shares then divide the validation windows. Terms and `self_balancing` are those of flwr-datasets'
DirichletPartitioner (Yurochkin et al. 2019, arXiv:1905.12022; quantity skew: Li et al. 2022, arXiv:2102.02079).

Test windows are split off in time before anything is dealt, so no test sample reaches a client. Windows of different
clients may overlap in time, as neighbouring windows do. Every draw has a generator of its own, named by attempt, class
and client: nothing depends on the order in which classes or clients are visited.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relief_ray.core.streams import Streams
from relief_ray.data.config import DataConfig
from relief_ray.support.errors import UserError

Labels = NDArray[np.int64]
Shares = NDArray[np.float64]
Counts = NDArray[np.int64]

# Shares are drawn again until there were so many gammas (about two seconds), but a few times in any case.
_MAX_GAMMAS = 50_000
_MIN_ATTEMPTS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Dealer:
    """Deals windows to clients.

    Attributes:
        config: with partition, alpha, minimum size and seed.
        num_clients: number N of clients.
        num_classes: number K of classes.
    """

    config: DataConfig
    num_clients: int
    num_classes: int

    def deal(self, train: Labels, validation: Labels) -> tuple[Labels, Labels]:
        """The client (n,) of every training and every validation window, given their class indices.

        Raises:
            UserError: there are too few windows, or no draw gave every client enough.
        """
        groups, others = self._grouped(train), self._grouped(validation)
        shares = self._shares(np.bincount(groups, minlength=self._num_groups))
        return self._owners(groups, shares, part=0), self._owners(others, shares, part=1)

    @property
    def _num_groups(self) -> int:
        return self.num_classes if self.config.partition == "dirichlet" else 1

    def _grouped(self, labels: Labels) -> Labels:
        """Groups that shares are drawn for: the classes, or all windows together."""
        return labels if self.config.partition == "dirichlet" else np.zeros_like(labels)

    def _shares(self, sizes: Counts) -> Shares:
        """Shares (K, N) under which every client has enough of K groups of these sizes."""
        least, total = self.config.min_partition_size, int(sizes.sum())
        if least * self.num_clients > total:
            raise UserError(
                f"data.min_partition_size={least}: {self.num_clients} clients need {least * self.num_clients} training "
                f"windows, found {total}; lower it, data.num_clients or data.stride_s (here {self.config.stride_s:g} s)"
            )
        best, attempts = 0, max(_MIN_ATTEMPTS, _MAX_GAMMAS // (len(sizes) * self.num_clients))
        for attempt in range(attempts):
            shares, per_client = self._draw(attempt, sizes)
            best = max(best, int(per_client.min()))
            if best >= least:
                return shares
        enough = f"set data.min_partition_size={best}, " if best else ""
        raise UserError(
            f"data.partition={self.config.partition}, data.dirichlet_alpha={self.config.dirichlet_alpha:g}: the "
            f"smallest of {self.num_clients} clients got at most {best} training windows in {attempts} draws, expected "
            f"{least} (data.min_partition_size); {enough}raise data.dirichlet_alpha, or lower "
            f"data.stride_s (here {self.config.stride_s:g} s: more windows) or data.num_clients"
        )

    def _draw(self, attempt: int, sizes: Counts) -> tuple[Shares, Counts]:
        """One draw: shares (K, N), and the windows (N,) that each client gets by them."""
        streams, total = Streams(seed=self.config.seed), np.zeros(self.num_clients, np.int64)
        shares = np.empty((len(sizes), self.num_clients))
        for group, size in enumerate(sizes.tolist()):
            is_full = total > sizes.sum() / self.num_clients
            excluded = is_full if self.config.self_balancing else np.zeros_like(is_full)
            shares[group] = draw_shares(
                streams, self.config.dirichlet_alpha, range(self.num_clients), (attempt, group), excluded.tolist()
            )
            total += apportion(size, shares[group])
        return shares, total

    def _owners(self, groups: Labels, shares: Shares, part: int) -> Labels:
        streams, owners = Streams(seed=self.config.seed), np.empty(len(groups), np.int64)
        for group in range(len(shares)):
            windows = np.flatnonzero(groups == group)
            order = streams.numpy("data.partition.order", part, group).permutation(len(windows))
            counts = apportion(len(windows), shares[group])
            owners[windows[order]] = np.repeat(np.arange(self.num_clients), counts)
        return owners


def draw_shares(
    streams: Streams, alpha: float, clients: Sequence[int], key: tuple[int, int], excluded: Sequence[bool]
) -> Shares:
    """A draw of Dir(alpha, .., alpha): the clients' shares (N,), in their order; 0 for those excluded.

    Shares are normalised gammas. Their logarithms are drawn, log G(alpha + 1) + log(U) / alpha, since gammas of small
    alpha underflow to 0.
    """
    logs = np.array([_log_gamma_draw(streams.numpy("data.partition", *key, client), alpha) for client in clients])
    logs[np.asarray(excluded)] = -np.inf
    weights = np.exp(logs - logs.max())
    shares: Shares = weights / weights.sum()
    return shares


def _log_gamma_draw(rng: np.random.Generator, alpha: float) -> float:
    return float(np.log(rng.gamma(alpha + 1.0)) + np.log1p(-rng.random()) / alpha)


def apportion(total: int, shares: Shares) -> Counts:
    """Whole numbers (N,) in proportion to the shares that sum to ``total``: largest remainders, ties to the first."""
    exact = shares * total
    counts: Counts = np.floor(exact).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts
