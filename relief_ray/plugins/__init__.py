"""Users' code: loading it, checking what it returns, naming the line at fault."""
