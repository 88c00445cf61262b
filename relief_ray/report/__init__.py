"""Tables, figures and verdicts: functions of run records only."""

from relief_ray.report.claims import Claim, claims, last_line
from relief_ray.report.comparison import Comparison, by_setting, compare, compare_runs
from relief_ray.report.figures.progress import curves
from relief_ray.report.figures.timeline import timeline
from relief_ray.report.formats.text import as_csv, as_json, markdown, plain, rich_tables
from relief_ray.report.runs import Loaded, load_runs

__all__ = [
    "Claim",
    "Comparison",
    "Loaded",
    "as_csv",
    "as_json",
    "by_setting",
    "claims",
    "compare",
    "compare_runs",
    "curves",
    "last_line",
    "load_runs",
    "markdown",
    "plain",
    "rich_tables",
    "timeline",
]
