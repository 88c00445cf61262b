"""The server's mathematics: aggregation, divergence, budget."""
