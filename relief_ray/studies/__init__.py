"""Studies: several runs that belong together, planned, computed in this process, and read again."""
