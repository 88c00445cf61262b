"""The runtime and the command line: Ray actors around the Ray-free core of `relief_ray`.

``relief_ray.run(.., on="ray")`` finds its way here; ``actors.conformance`` judges a method, a backbone or a data set by
the rules that all of them keep.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.launch import conformance

__all__ = ["conformance"]


def __getattr__(name: str) -> object:
    """Load a public name when it is first used: the command line's help needs no Ray."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.launch"), name)
    globals()[name] = value
    return value
