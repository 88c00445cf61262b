"""FedLEASE: see ``strategy``."""
