"""Local training on a device, evaluation, and the serial executor."""
