"""Shared by commands at the terminal: options, progress, exit codes, signals."""
