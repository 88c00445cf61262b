"""FedEL: equal time for all devices; each trains the most important tensors of a sliding window."""

from relief_ray.strategies.fedel.strategy import PRESETS, FedEL

__all__ = ["PRESETS", "FedEL"]
