"""The runtime and the command line: Ray actors around the Ray-free core of `relief_ray`."""
