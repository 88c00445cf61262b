"""``python -m relief_ray.kernels``: compile the library where it is not there yet; say where it is, or what lacks."""

from relief_ray.kernels.library import library, why_missing

print(f"none: {why}" if (why := why_missing()) else library()._name)
