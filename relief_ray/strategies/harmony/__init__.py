"""Harmony: see ``strategy``."""
