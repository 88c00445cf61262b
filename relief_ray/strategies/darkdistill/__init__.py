"""DarkDistill: depth-limited devices share an early-exit network; the server distils shallow into deeper."""

from relief_ray.strategies.darkdistill.strategy import PRESETS, DarkDistill

__all__ = ["PRESETS", "DarkDistill"]
