"""FedEL: see ``strategy``."""
