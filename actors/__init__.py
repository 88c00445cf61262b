"""The runtime and the command line: Ray actors around the Ray-free core of `relief_ray`.

``actors.run`` takes the words of ``relief_ray.run`` and computes the study on Ray.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.call import run

__all__ = ["run"]


def __getattr__(name: str) -> object:
    """Load ``run`` when it is first used: the command line's help needs no Ray."""
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = import_module(f"{__name__}.call").run
    globals()[name] = value
    return value
