"""Pilot: adapters between features and fusion; each client's model is mixed with its nearest ones'."""

from relief_ray.strategies.pilot.strategy import PRESETS, Pilot

__all__ = ["PRESETS", "Pilot"]
