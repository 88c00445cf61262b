"""Tables, figures and verdicts, computed from run records alone."""

from relief_ray.report.claims import Claim, claims, last_line
from relief_ray.report.comparison import Comparison, compare, compare_runs
from relief_ray.report.figures.progress import curves
from relief_ray.report.figures.timeline import timeline
from relief_ray.report.formats.text import as_csv, as_json, markdown, plain
from relief_ray.report.runs import Loaded, load_runs

__all__ = [
    "Claim",
    "Comparison",
    "Loaded",
    "as_csv",
    "as_json",
    "claims",
    "compare",
    "compare_runs",
    "curves",
    "last_line",
    "load_runs",
    "markdown",
    "plain",
    "timeline",
]
