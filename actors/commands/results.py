"""What a user sees at the end: the comparison, the figure and a plain verdict."""

from __future__ import annotations

from actors.commands.plan import Plan


def show_results(plan: Plan, as_json: bool) -> None:
    """Table, figure file, verdict."""
