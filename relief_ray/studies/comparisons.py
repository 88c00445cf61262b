"""Comparisons of a study: one setting by a clock, the runs that a picture draws, the tables in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relief_ray.report.claims import last_line
from relief_ray.report.comparison import Experiment
from relief_ray.report.tables.comparison import costs_table, scores_table
from relief_ray.support.errors import UserError, listed, nearest

if TYPE_CHECKING:
    from relief_ray.report.comparison import Comparison
    from relief_ray.report.runs import Loaded


def comparison_of(experiment: Experiment, clock: str | None = None) -> Comparison:
    """The comparison of a setting's methods by a clock; None: the one that the allocator planned with.

    Raises:
        UserError: the clock was not recorded.
    """
    found = experiment.main if clock is None else experiment.comparisons.get(clock)
    if found is None:
        known = ", ".join(experiment.comparisons)
        raise UserError(f"clock {clock!r}: not recorded by every run; recorded are {known}")
    return found


def drawn_runs(comparison: Comparison, methods: Sequence[str]) -> list[Loaded]:
    """Runs of the methods that share fold and seed, in the methods' order; of a few methods where none is named.

    Raises:
        UserError: a method has no finished run, or none of the same fold and seed.
    """
    from relief_ray.report.figures.timeline import featured

    if not methods:
        return featured(comparison)
    runs = [{r.replicate: r for r in comparison.runs_of(finished(comparison, name))} for name in methods]
    shared = next((key for key in runs[0] if all(key in one for one in runs)), None)
    if shared is None:
        raise UserError(f"timeline: {listed(methods)} have no run of the same fold and seed")
    return [one[shared] for one in runs]


def finished(comparison: Comparison, label: str) -> str:
    """The method's name, checked to have a finished run.

    Raises:
        UserError: it has none.
    """
    names = [row.label for row in comparison.rows]
    if label not in names:
        raise UserError(f"method {label!r}: no finished run{nearest(label, names)}; there are {', '.join(names)}")
    return label


def brief(experiment: Experiment, is_titled: bool) -> str:
    """Scores and costs as small HTML tables."""
    comparison = comparison_of(experiment)
    tables = (made(comparison) for made in (scores_table, costs_table))
    shown = [table.html() for table in tables]
    sentence = [] if len(comparison.rows) < 2 else [f"<p>{last_line(comparison)}</p>"]
    return "\n".join([*([f"<p>{experiment.title}</p>"] if is_titled else []), *shown, *sentence])
