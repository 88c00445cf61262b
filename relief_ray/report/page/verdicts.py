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

USUAL = "The paper's fleet, learning rate, batch and missing modality."
OTHER = "Not the paper's own setting: {}."
FAMILY = "Holm's correction is over all {} F1 tests of this page, whatever their setting and order: one family."


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A setting's claims after the correction over the page's ``num_tests`` tests; ``num_settings``: theirs."""

    claims: Sequence[Claim]
    num_tests: int
    num_settings: int

    @property
    def family(self) -> str:
        """Over what was corrected, for a sentence."""
        return "" if self.num_settings == 1 else f" over the page's {self.num_tests} tests"


def judge(found: Sequence[Experiment]) -> dict[int, Judged]:
    """The verdicts of every setting with at least two methods, by its number in the report (from 1)."""
    usable = [(i, e.main) for i, e in enumerate(found, 1) if e.main is not None and len(e.main.rows) > 1]
    judged = page_claims([c for _, c in usable])
    tests = sum(c.p is not None for claims in judged for c in claims)
    return {
        i: Judged(claims=claims, num_tests=tests, num_settings=len(usable))
        for (i, _), claims in zip(usable, judged, strict=True)
    }


def verdict_sheet(experiment: Experiment, judged: Judged, slug: str) -> Sheet:
    """A line per claim."""
    lines = tuple(_line(c) for c in judged.claims)
    place = OTHER.format(", ".join(experiment.unusual)) if experiment.unusual else USUAL
    caption = "The paper's claims, named before the runs."
    head = ("claim", "verdict", "p (Holm)", "evidence")
    notes = (f"{place} {FAMILY.format(judged.num_tests)}", NOTE)
    return Sheet(slug=slug, caption=caption, head=head, lines=lines, notes=notes, is_text=True)


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
