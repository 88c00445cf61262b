"""Pages of tables as text or Markdown, and pictures, which display themselves in a notebook."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from relief_ray.support.files import disk_errors, write_atomic


@dataclass(frozen=True, slots=True)
class Page:
    """A result in words and tables: ``print`` gives text for a terminal, a notebook shows the Markdown.

    Attributes:
        text: for terminals.
        markdown: for notebooks and files.
    """

    text: str
    markdown: str

    def __str__(self) -> str:
        """Return the text."""
        return self.text

    def __repr__(self) -> str:
        """Return the text: what a Python prompt shows."""
        return self.text

    def _repr_markdown_(self) -> str:
        return self.markdown


@dataclass(frozen=True, slots=True, repr=False)
class Picture:
    """A drawn figure; a notebook shows it.

    Attributes:
        png: the file's bytes.
        caption: what it shows, in a line.
    """

    png: bytes
    caption: str = ""

    def save(self, path: str | Path) -> Path:
        """Write the picture as a PNG file and return its path.

        Raises:
            UserError: the file cannot be written.
        """
        place = Path(path)
        with disk_errors(place, "write the picture"):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(place, self.png)
        return place

    def __repr__(self) -> str:
        """Return what it is; the picture itself is in ``png``."""
        return f"<Picture, {len(self.png)} bytes of PNG{f': {self.caption}' if self.caption else ''}; .save(path)>"

    def _repr_mimebundle_(self, **options: object) -> tuple[dict[str, str], dict[str, object]]:
        encoded = b2a_base64(self.png, newline=False).decode()
        return {"image/png": encoded, "text/plain": repr(self)}, {"image/png": {"width": 760}}


def drawn(draw: Callable[[Path], object], caption: str = "") -> Picture:
    """Return the picture that ``draw`` writes to the PNG file it is given."""
    with TemporaryDirectory(prefix="relief-ray-") as folder:
        path = Path(folder) / "figure.png"
        draw(path)
        return Picture(png=path.read_bytes(), caption=caption)
