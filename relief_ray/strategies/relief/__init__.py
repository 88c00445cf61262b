"""RELIEF: see ``strategy``."""
