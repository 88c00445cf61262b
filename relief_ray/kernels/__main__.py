"""``python -m relief_ray.kernels``: compile the library if needed, and print its path or what is missing."""

from relief_ray.kernels.library import library, why_missing

print(f"none: {why}" if (why := why_missing()) else library()._name)
