"""How every figure is drawn: no pyplot, no global state, embedded fonts, the same bytes for the same records.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; hatches, dashes and markers say it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from relief_ray.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEXT_WIDTH_IN = 7.16
COLUMN_WIDTH_IN = 3.5
DPI = 200
INK = "#222222"
FAINT = "#8a8a8a"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8a8a8a")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 3)))
STYLE: Mapping[str, object] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "axes.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "relief-ray",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
}
_UNDATED: Mapping[str, Mapping[str, None]] = {
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    ".svg": {"Date": None, "Creator": None},
    ".png": {"Software": None},
}


@contextmanager
def sheet(height_in: float, width_in: float = TEXT_WIDTH_IN, *, outlines: bool = False) -> Iterator[Figure]:
    """An empty figure in our style; the style is gone when the block ends, so draw and ``save`` inside it.

    ``outlines``: letters of an SVG as shapes, for readers without the font.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure as Sheet
    except ImportError as error:
        raise UserError("figures need matplotlib; install it with: pip install 'relief-ray[server]'") from error
    style = {**STYLE, **({"svg.fonttype": "path"} if outlines else {})}
    with matplotlib.rc_context(cast("dict[Any, Any]", style)):
        yield Sheet(figsize=(width_in, height_in), dpi=DPI)


def save(figure: Figure, path: Path) -> Path:
    """Writes the figure; the suffix (.png, .pdf, .svg) names the format.

    Raises:
        UserError: another suffix.
    """
    if path.suffix not in _UNDATED:
        raise UserError(f"{path}: figures are written as {', '.join(_UNDATED)}; rename the file")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI, metadata=dict(_UNDATED[path.suffix]))
    return path
