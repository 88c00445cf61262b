"""Implementations of the commands; imported only once a command has been chosen, so that `--help` stays quick."""
