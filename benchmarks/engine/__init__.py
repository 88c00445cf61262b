"""Measures training engine and orchestration against peers: `python -m benchmarks.engine --json FILE`."""
