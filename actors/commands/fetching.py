"""`relief-ray resume URI` and `grid resume URI`: the copy that a `--mirror` made is brought to a local folder first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from actors.terminal.exit_codes import MIRROR_BEHIND, Stopped, say
from relief_ray.records.sync.mirror import fetch, is_uri
from relief_ray.records.sync.sender import Senders
from relief_ray.support.errors import UserError
from relief_ray.support.masking import mask_text

_FOLDER = Path("runs")
_KEY = "runtime.mirror"


def local_folder(target: str, out: Path | None, settings: Sequence[str]) -> tuple[Path, list[str]]:
    """The folder to go on with, and the settings; a copy is fetched, and kept up to date from then on.

    ``out``: where a copy is brought; by default ``runs/`` and the last part of its URI.

    Raises:
        UserError: no copy is there, ``out`` holds something already, or was named for a local folder.
    """
    if not is_uri(target):
        if out is not None:
            raise UserError(
                f"--out {out}: is for a copy at a URI, which is brought there; found the folder {target}, which is "
                "gone on with where it lies; leave --out away"
            )
        return Path(target), list(settings)
    place = out or _FOLDER / target.rstrip("/").rpartition("/")[2]
    fetched = fetch(target, place)
    say(fetched.line(mask_text(target)))
    for note in fetched.notes:
        say(f"NOTE: {note}")
    is_chosen = any(setting.startswith(f"{_KEY}=") for setting in settings)
    return place, [*settings, *([] if is_chosen else [f"{_KEY}={target}"])]


def with_mirror(settings: Sequence[str] | None, uri: str | None) -> list[str]:
    """The settings, and that of `--mirror URI`."""
    return [*(settings or []), *([] if uri is None else [f"{_KEY}={uri}"])]


def refuse_behind(senders: Senders, command: str) -> None:
    """Check that the mirror has everything; ``command``: sends what it lacks.

    Raises:
        Stopped: it lacks something.
    """
    for name in senders.behind:
        raise Stopped(MIRROR_BEHIND, f"the {name} is behind; the records here are complete\nsend the rest: {command}")
