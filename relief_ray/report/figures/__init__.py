"""The report's figures: each a function from an experiment to a ``Plot``, or none where the records lack it."""
