"""Backbone 2: the MOMENT time-series transformer with LoRA adapters."""
