"""Figures of the report: each a function from a comparison to a ``Figure``, or None where the records lack it."""
