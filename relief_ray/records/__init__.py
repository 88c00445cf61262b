"""Records, ledger, checkpoints and identities of runs, and their copies elsewhere."""
