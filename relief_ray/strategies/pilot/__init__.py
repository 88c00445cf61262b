"""Pilot: see ``strategy``."""
