"""What commands share at the terminal: options, console, exit codes, signals."""
