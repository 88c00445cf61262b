"""Tables of the report, one module each; ``columns`` says what every column is."""
