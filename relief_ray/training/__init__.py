"""What runs on a device: local training, reuse, evaluation; and the plain executor."""
