"""Tables, figures and verdicts: functions of run records only."""

from relief_ray.report.compare import Comparison, by_setting, compare, compare_runs
from relief_ray.report.curves import curves
from relief_ray.report.load import Loaded, load_runs
from relief_ray.report.render import as_csv, as_json, markdown, plain, rich_tables
from relief_ray.report.timeline import timeline
from relief_ray.report.verdict import Claim, claims, last_line

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
