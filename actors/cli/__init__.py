"""The command line: its commands, their groups and shared options."""
