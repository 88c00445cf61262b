"""FedICU: see ``strategy``."""
