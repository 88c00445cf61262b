"""Where files of the user's own lie that can always be made again."""

import os
from pathlib import Path


def cache_root() -> Path:
    """RELIEF_CACHE, else the user's own cache folder."""
    given = os.environ.get("RELIEF_CACHE")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "relief-ray"
