"""RELIEF-Ray's library: federated learning under coupled compute, sensor and data heterogeneity.

``import relief_ray as rr`` is all that a script, a notebook, or a method, data set or backbone of one's own needs:
``rr.run("demo")`` computes a study, ``rr.load("runs/demo")`` opens one, ``rr.methods()`` lists the methods. Names are
loaded when they are first used, so that the import itself takes no time and needs neither torch nor Ray.

The rooms follow Algorithm 1 of the paper: `server` allocates and aggregates, `training` runs on the device,
`federated.run_round` is one round from top to bottom. Nothing here imports Ray; the runtime is the package `actors`.
"""

import ast
from importlib import import_module
from pathlib import Path

# Module of every public name, as ``__init__.pyi`` lists them for type checkers and editors.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_MODULES = {each.name: node.module for node in _STUB.body if isinstance(node, ast.ImportFrom) for each in node.names}
__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    """Load a public name when it is first used."""
    if name not in _MODULES:
        from relief_ray.support.errors import nearest

        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{nearest(name, _MODULES)}")
    value: object = getattr(import_module(str(_MODULES[name])), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted(__all__)
