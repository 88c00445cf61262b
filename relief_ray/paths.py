"""Where files of the user's own lie that can always be made again, and names that nobody has taken."""

import os
from itertools import count
from pathlib import Path


def cache_root() -> Path:
    """RELIEF_CACHE, else the user's own cache folder."""
    given = os.environ.get("RELIEF_CACHE")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "relief-ray"


def unused(path: Path) -> Path:
    """The path, or the first of ``path.2``, ``path.3``, .. that does not exist."""
    names = (path if i == 1 else path.with_name(f"{path.name}.{i}") for i in count(1))
    return next(name for name in names if not name.exists())
