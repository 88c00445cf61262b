"""RELIEF-Ray's library: federated learning under coupled compute, sensor and data heterogeneity.

The rooms follow Algorithm 1 of the paper: `server` allocates and aggregates, `training` runs on the device,
`federated.run_round` is one round from top to bottom. Nothing here imports Ray; the runtime is the package `actors`.
"""

from relief_ray.version import __version__

__all__ = ["__version__"]
