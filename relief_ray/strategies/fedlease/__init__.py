"""FedLEASE: one LoRA expert per cluster of like clients, mixed by a router."""

from relief_ray.strategies.fedlease.strategy import PRESETS, FedLEASE

__all__ = ["PRESETS", "FedLEASE"]
