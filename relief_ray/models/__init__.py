"""Backbones as stages and parameter groups."""
