"""FedICU (reconstructed): clients send what changed most; directions are averaged by agreement."""

from relief_ray.strategies.fedicu.strategy import PRESETS, FedICU

__all__ = ["PRESETS", "FedICU"]
