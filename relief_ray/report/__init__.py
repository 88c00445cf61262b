"""Tables, figures and verdicts, computed from run records alone."""

from relief_ray.report.claims import JudgedClaim, Judgement, Registry, judge, last_line, registry_of
from relief_ray.report.comparison import Comparison, compare, compare_runs
from relief_ray.report.figures.progress import curves
from relief_ray.report.figures.timeline import timeline
from relief_ray.report.formats.text import as_csv, as_json, markdown, plain
from relief_ray.report.runs import Loaded, load_runs

__all__ = [
    "Comparison",
    "JudgedClaim",
    "Judgement",
    "Loaded",
    "Registry",
    "as_csv",
    "as_json",
    "compare",
    "compare_runs",
    "curves",
    "judge",
    "last_line",
    "load_runs",
    "markdown",
    "plain",
    "registry_of",
    "timeline",
]
