"""An experiment from its configuration to its records: set-up, round loop, evaluation, export, what-if."""
