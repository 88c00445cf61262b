"""What the engine and the orchestration cost, measured against peers: `python -m benchmarks.engine --json FILE`."""
