"""Experiment grids as typed data: the paper's tables, searches, presets, and cells made from them."""

from pathlib import Path

# Files with the claims that grids judge.
CLAIMS = Path(__file__).parent / "claims"
