"""Clusters of machines: starting and joining nodes, checking that a target fits, jobs. Ray does the work."""

GCS_PORT, DASHBOARD_PORT, FIRST_PORT = 6379, 8265, 10000
