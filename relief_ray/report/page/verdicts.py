"""The paper's claims, one line each, with the verdict that the runs give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relief_ray.report.compare import Comparison
from relief_ray.report.experiments import Experiment
from relief_ray.report.page.document import Entry, Line, Prose, Sheet, Tone
from relief_ray.report.tables import NONE
from relief_ray.report.verdict import Claim, Supported, last_line, page_claims

TONES: Mapping[Supported, Tone] = {"yes": "good", "no": "bad", "undecided": ""}
WORDS: Mapping[Supported, str] = {"yes": "supported", "no": "not supported", "undecided": "undecided"}
NOTE = (
    "A claim about F1 is one paired comparison by test subject, seeds averaged first: supported where the difference "
    "is positive and Holm's adjusted p (exact sign-flip test) is below 0.05, not "
    "supported where it is negative and that p is. Subjects of one fold share a model, so they are not fully "
    "independent."
)


PRIMARY = "Primary setting (the first planned, usual fleet, real data): corrected over its own claims."
OTHER = "Not the page's primary setting: corrected over all {} tests of the page."


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A setting's claims after the correction; ``num_tests``: those of the whole page."""

    claims: Sequence[Claim]
    is_primary: bool
    num_tests: int

    @property
    def family(self) -> str:
        """Over what was corrected, for a sentence."""
        return "" if self.is_primary else f" over the page's {self.num_tests} tests"


def judge(found: Sequence[Experiment]) -> dict[int, Judged]:
    """The verdicts of every setting with at least two methods, by its number in the report (from 1)."""
    usable = [(i, e.main) for i, e in enumerate(found, 1) if e.main is not None and len(e.main.rows) > 1]
    chosen = primary(found)
    numbers = [i for i, _ in usable]
    place = numbers.index(chosen) if chosen in numbers else None
    judged = page_claims([c for _, c in usable], place)
    tests = sum(c.p is not None for claims in judged for c in claims)
    return {
        i: Judged(claims=claims, is_primary=i == chosen, num_tests=tests)
        for i, claims in zip(numbers, judged, strict=True)
    }


def primary(found: Sequence[Experiment]) -> int | None:
    """The setting whose claims count by themselves: the first in the plans' order, whatever its runs say.

    Of the usual fleet and, where any are, of real data.
    """
    usual = [i for i, e in enumerate(found, 1) if e.is_usual and not e.choice]
    return next((i for i in usual if found[i - 1].is_real), usual[0] if usual else None)


def verdict_sheet(judged: Judged, slug: str) -> Sheet:
    """A line per claim."""
    lines = tuple(_line(c) for c in judged.claims)
    place = PRIMARY if judged.is_primary else OTHER.format(judged.num_tests)
    caption = "The paper's claims, named before the runs."
    head = ("claim", "verdict", "p (Holm)", "evidence")
    return Sheet(slug=slug, caption=caption, head=head, lines=lines, notes=(place, NOTE), is_text=True)


def _line(claim: Claim) -> Line:
    verdict = _verdict(claim)
    p = Entry(
        text=NONE if claim.p_holm is None else f"{claim.p_holm:.3g}", numbers={"p": claim.p, "p_holm": claim.p_holm}
    )
    return Line(name=claim.text, entries=(verdict, p, Entry(text=claim.evidence)))


def _verdict(claim: Claim) -> Entry:
    """Simulated figures get no colour: a cost model's arithmetic is no test of the paper."""
    if not claim.is_tested:
        return Entry(text="no runs", tone="gap")
    if claim.is_simulated:
        return Entry(text=f"simulated: {WORDS[claim.supported]}")
    return Entry(text=WORDS[claim.supported], tone=TONES[claim.supported])


def sentence(comparison: Comparison, judged: Judged) -> Prose:
    """The verdict in one sentence."""
    return Prose(lines=(last_line(comparison, judged.claims, judged.family),))
