"""HeLoRA: every device trains LoRA of a rank that it can afford; the server pads and averages."""

from relief_ray.strategies.helora.strategy import PRESETS, HeLoRA

__all__ = ["PRESETS", "HeLoRA"]
