"""The paper's claims, one line each, with the verdict that the runs give."""

from __future__ import annotations

from collections.abc import Mapping

from relief_ray.report.compare import Comparison
from relief_ray.report.page.document import Entry, Line, Prose, Sheet, Tone
from relief_ray.report.tables import NONE
from relief_ray.report.verdict import Claim, Supported, claims, last_line

TONES: Mapping[Supported, Tone] = {"yes": "good", "no": "bad", "undecided": ""}
WORDS: Mapping[Supported, str] = {"yes": "supported", "no": "not supported", "undecided": "undecided"}
NOTE = (
    "A claim about F1 is one paired comparison by test subject, seeds averaged first: supported where the difference "
    "is positive and Holm's adjusted p (exact sign-flip test, over the claims that could be tested) is below 0.05, not "
    "supported where it is negative and that p is. Subjects of one fold share a model, so they are not fully "
    "independent."
)


def verdict_sheet(comparison: Comparison, slug: str) -> Sheet:
    """A line per claim."""
    lines = tuple(_line(c) for c in claims(comparison))
    caption = "The paper's claims, named before the runs."
    head = ("claim", "verdict", "p (Holm)", "evidence")
    return Sheet(slug=slug, caption=caption, head=head, lines=lines, notes=(NOTE,), is_text=True)


def _line(claim: Claim) -> Line:
    verdict = Entry(
        text=WORDS[claim.supported] if claim.is_tested else "no runs",
        tone=TONES[claim.supported] if claim.is_tested else "gap",
    )
    p = Entry(
        text=NONE if claim.p_holm is None else f"{claim.p_holm:.3g}", numbers={"p": claim.p, "p_holm": claim.p_holm}
    )
    return Line(name=claim.text, entries=(verdict, p, Entry(text=claim.evidence)))


def sentence(comparison: Comparison) -> Prose | None:
    """The verdict in one sentence; it needs two methods."""
    return Prose(lines=(last_line(comparison),)) if len(comparison.rows) > 1 else None
