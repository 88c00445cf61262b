"""RELIEF: modality-aligned blocks decide what to aggregate, what to train and what to send."""

from relief_ray.strategies.relief.strategy import PRESETS, Relief

__all__ = ["PRESETS", "Relief"]
