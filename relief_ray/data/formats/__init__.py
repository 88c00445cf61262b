"""Parsers of the raw files, one module per published format."""
