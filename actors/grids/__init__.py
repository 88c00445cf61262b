"""Grids through Ray Tune: the book of cells, trials, live progress, estimates."""
