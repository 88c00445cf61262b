"""Tables, figures and verdicts, computed from run records alone."""
