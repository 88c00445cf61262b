"""Experiment grids as typed data: one module per table of the paper, each with a function `grid()`."""
