"""The machine as a physical device: its power rails, temperatures and power mode, read from the kernel's files."""
