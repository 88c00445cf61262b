"""DarkDistill: see ``strategy``."""
