"""Harmony: one network per sensor first, then fusion averaged inside clusters of clients."""

from relief_ray.strategies.harmony.strategy import PRESETS, Harmony

__all__ = ["PRESETS", "Harmony"]
