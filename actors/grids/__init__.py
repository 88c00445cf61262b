"""Grids through Ray Tune: the plan of cells, trials, live progress, estimates."""
