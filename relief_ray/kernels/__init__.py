"""Backbone 1's layers in C (``kernels.c``), compiled at first use."""
