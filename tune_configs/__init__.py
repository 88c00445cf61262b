"""Experiment grids as typed data: the paper's tables, searches, presets, and cells made from them."""
