"""Modules that a strategy adds to a backbone: experts, routers, connectors, early exits."""
