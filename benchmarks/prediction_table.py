"""Predicted against measured, as Markdown."""

from __future__ import annotations


def table(found: dict[str, object]) -> str:
    """A case as Markdown; an earlier profile's prediction has two columns more, and its conditions below."""
    before, rows = found.get("earlier"), found["rows"]
    assert isinstance(rows, list)
    head = ["client", "assignment", "measured (quartiles)", "by stages", "error", "by phases", "by FLOPs"]
    head += [] if before is None else ["by stages, earlier", "error"]
    first, *others = (f"| {' | '.join(line)} |" for line in (head, *(cells(r) for r in rows if r["measured"] != 1.0)))
    lines = [first, "|---" * len(head) + "|", *others]
    return "\n".join([*lines, *(["", said(before)] if isinstance(before, dict) else [])])


def cells(r: dict[str, object]) -> list[str]:
    """A row's."""
    shown = [f"{r['measured']:.3f} ({r['measured_q1']:.3f} to {r['measured_q3']:.3f})", f"{r['predicted_stages']:.3f}"]
    shown += [f"{percent(r['error'])}", f"{r['predicted_phases']:.3f}", f"{r['predicted_flops']:.3f}"]
    if "predicted_earlier" in r:
        shown += [f"{r['predicted_earlier']:.3f}", percent(r["error_earlier"])]
    return [str(r["client"]), str(r["assignment"]), *shown]


def percent(share: object) -> str:
    """With its sign."""
    assert isinstance(share, float)
    return f"{100 * share:+.0f} %"


def said(before: dict[str, object]) -> str:
    """Of what the last two columns are."""
    return (
        f"earlier: a file of `relief-ray device profile`, {before['date']}, commit {before['commit']}, "
        f"{before['turns']} turns, spread {before['spread']:.3f}"
    )
