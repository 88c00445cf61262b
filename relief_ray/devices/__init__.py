"""Devices: fleet, FLOPs, seconds and joules: a simulated clock that is split and calibrated (docs/costs.md)."""
