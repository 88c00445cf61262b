"""Conformance: rules that every strategy keeps, judged by running it on a small problem."""
