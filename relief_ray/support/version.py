"""Version of the distribution; apart from the package, whose lazy names lead to modules that record it."""

__version__ = "0.1.0"
