"""The built-in datasets: one module each with its facts, its parser and its `Loader`."""
