"""The server's side of all methods: means of updates, and the order in which updates are summed."""
