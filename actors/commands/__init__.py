"""What the commands do; imported only once a command has been chosen, so that `--help` stays quick."""
