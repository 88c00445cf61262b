"""Errors, text, files, processes and frozen values: what every room stands on."""
