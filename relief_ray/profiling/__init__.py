"""Measures stage times on this machine and fits the parameters of the measured time model."""
