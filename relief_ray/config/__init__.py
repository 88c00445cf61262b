"""The typed configuration of one run, and the names of all its keys."""
