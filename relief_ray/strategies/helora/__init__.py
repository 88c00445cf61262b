"""HeLoRA: see ``strategy``."""
