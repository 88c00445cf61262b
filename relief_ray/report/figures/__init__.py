"""Figures of the report: each a function from an experiment to a ``Figure``, or None where the records lack it."""
